use std::path::Path;

use super::*;
use crate::ledger::comparison::{Compared, Turn};
use crate::ledger::saving::{Estimate, Used};
use crate::ledger::store::Store;
use crate::ledger::windows::{Entry, Work};

fn work(uid: u32) -> Work {
    Work { uid: Uid(uid), job: "j".into(), plan: "p".into(), shape: "s".into() }
}

/// A row of ten steps of a second each, in the middle of which it is this time.
fn row(at_unix_s: u64, energy_j: f64) -> Entry {
    let mut row = Entry::begin(work(1), "r".into(), at_unix_s);
    (row.used.steps, row.used.time_s, row.used.energy_j) = (10, 10.0, Some(energy_j));
    row
}

/// Default clocks took more energy by this share, and less time by a tenth of a second of each.
fn compared(at_unix_s: u64, saving: f64) -> (Work, Compared) {
    let default = Turn { steps: 1, time_s: 0.9, energy_j: 10.0 * (1.0 + saving) };
    let plan = Turn { steps: 1, time_s: 1.0, energy_j: 10.0 };
    (work(1), Compared { at_unix_s, default, plan })
}

fn store(directory: &Path) -> Store {
    Store::open(&directory.join("l")).unwrap()
}

fn only(store: &Store) -> Booked {
    let accounts = store.accounts().unwrap();
    let [account] = &accounts[..] else { panic!("{accounts:?}") };
    assert_eq!((account.uid, account.partition.as_deref()), (Uid(1), None));
    account.booked
}

#[track_caller]
fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * (1.0 + expected.abs()), "{found}, not {expected}");
}

#[test]
fn a_row_is_booked_once_when_its_plan_was_compared_twice() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = store(directory.path());
    ledger.append(&[row(10, 100.0)], &[compared(0, 0.1)]).unwrap();
    assert_eq!(only(&ledger), Booked::default(), "they are there before they rise");
    ledger.append(&[], &[compared(100, 0.2)]).unwrap();
    let first = only(&ledger);
    assert_near(first.saved_j, 15.0);
    assert_near(first.slower_s, 1.0);
    assert_eq!((first.compared_j, first.lost_j, first.faster_s), (100.0, 0.0, 0.0));
    // It is not booked again by who writes, nor by the next agent.
    ledger.append(&[], &[]).unwrap();
    drop(ledger);
    let mut ledger = store(directory.path());
    ledger.append(&[], &[compared(110, 0.2)]).unwrap();
    assert_eq!(only(&ledger), first);
    ledger.append(&[row(101, 100.0)], &[]).unwrap();
    assert_near(only(&ledger).saved_j, 15.0 + 50.0 / 3.0);
}

#[test]
fn sums_stay_when_rows_are_removed_and_rise_on_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = store(directory.path());
    ledger.append(&[row(10, 100.0)], &[compared(0, 0.1), compared(1, 0.1)]).unwrap();
    let before = only(&ledger);
    // As after a clock that jumps ahead by years: nothing is young enough to stay.
    ledger.bound(1 << 40, u64::MAX).unwrap();
    assert_eq!(ledger.entries().unwrap(), 0);
    assert_eq!(only(&ledger), before);
    ledger.append(&[row(10, 100.0)], &[compared(0, 0.1), compared(1, 0.1)]).unwrap();
    assert_near(only(&ledger).saved_j, 20.0);
}

#[test]
fn what_a_plan_takes_more_is_no_saving_that_falls() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = store(directory.path());
    ledger.append(&[row(0, 100.0)], &[compared(0, 0.1), compared(1, 0.1)]).unwrap();
    let before = only(&ledger);
    ledger.append(&[row(100, 100.0)], &[compared(100, -1.1)]).unwrap();
    let after = only(&ledger);
    assert_eq!(after.saved_j, before.saved_j);
    assert_near(after.lost_j, 30.0);
}

#[test]
fn every_partition_of_every_user_has_sums_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = store(directory.path());
    let of = |uid: u32, partition: Option<&str>| {
        let mut row = row(0, f64::from(uid) * 100.0);
        (row.work, row.used.partition) = (work(uid), partition.map(str::to_owned));
        row
    };
    let rows = [of(1, None), of(1, Some("big")), of(1, Some("big")), of(2, Some("big"))];
    let comparisons = [1, 2]
        .map(|uid| [compared(0, 0.1), compared(1, 0.1)].map(|(_, compared)| (work(uid), compared)));
    ledger.append(&rows, &comparisons.concat()).unwrap();
    let accounts = ledger.accounts().unwrap();
    let sums: Vec<_> = accounts
        .iter()
        .map(|of| (of.uid.0, of.partition.as_deref(), of.booked.compared_j))
        .collect();
    assert_eq!(sums, [(1, None, 100.0), (1, Some("big"), 200.0), (2, Some("big"), 200.0)]);
}

#[test]
fn the_variance_of_rows_is_that_of_their_sum_however_they_are_written() {
    let comparisons = [compared(0, 0.1), compared(1000, 0.2), compared(2000, 0.15)];
    let booked = |parts: &[f64]| {
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = store(directory.path());
        ledger.append(&[], &comparisons).unwrap();
        // A step of the job takes 10 J: this node has all of its GPUs.
        for part in parts {
            let mut row = row(1000, *part);
            row.used.steps = (part / 10.0) as u64;
            ledger.append(&[row], &[]).unwrap();
        }
        only(&ledger)
    };
    let (at_once, in_parts) = (booked(&[300.0]), booked(&[50.0, 150.0, 100.0]));
    assert_near(in_parts.variance_j2, at_once.variance_j2);
    assert_near(in_parts.saved_j, at_once.saved_j);
    // It is that of the estimate, but for Student's interval of few comparisons.
    let comparisons = comparisons.map(|(_, compared)| compared);
    let used = [Used { at_unix_s: 1000, energy_j: 300.0 }];
    let estimate = Estimate::of(&comparisons, &used).unwrap();
    let rates = Rates::of(&comparisons).unwrap();
    assert_near(at_once.variance_j2, estimate.variance * rates.widening().unwrap());
    let reach = crate::ledger::saving::NORMAL_REACH * at_once.variance_j2.sqrt();
    let students = crate::ledger::saving::Interval::of(&[estimate]).unwrap();
    assert_near(reach, students.high - students.estimate);
}

#[test]
fn the_nodes_of_a_job_have_the_variance_of_the_whole_job_together() {
    let booked = |shares: &[f64]| -> f64 {
        let of_node = |share: &f64| {
            let directory = tempfile::tempdir().unwrap();
            let mut ledger = store(directory.path());
            // A step of the whole job takes 10 J.
            let entry = row(0, 100.0 * share);
            ledger.append(&[entry], &[compared(0, 0.1), compared(9, 0.2)]).unwrap();
            only(&ledger).variance_j2
        };
        shares.iter().map(of_node).sum()
    };
    assert_near(booked(&[0.7, 0.2, 0.1]), booked(&[1.0]));
}

#[test]
fn no_figure_that_is_none_ends_a_sum() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = store(directory.path());
    let rows = [f64::INFINITY, -1.0, 1e308].map(|energy_j| row(0, energy_j));
    ledger.append(&rows, &[compared(0, 0.1), compared(1, 0.3)]).unwrap();
    ledger.append(&[row(0, 100.0)], &[]).unwrap();
    assert_eq!(only(&ledger).compared_j, 100.0);
}
