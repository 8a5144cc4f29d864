use std::io::{Seek, SeekFrom, Write};

use super::*;
use crate::config::Config;
use crate::ledger::comparison::Turn;
use crate::ledger::example::example;

fn ledger(state: &Path) -> Ledger {
    let settings = InForce::new(crate::ConfigSource::default(), Config::default());
    Ledger::under(state, Arc::new(settings))
}

/// The same, of an agent that has reached `pfod`.
fn begun(state: &Path) -> Ledger {
    let ledger = ledger(state);
    ledger.reached(Pid(1));
    ledger.write();
    ledger
}

fn query(by: SavingsBy) -> SavingsQuery {
    SavingsQuery { by, ..SavingsQuery::default() }
}

fn steps(ledger: &Ledger) -> u64 {
    ledger.savings(&query(SavingsBy::Job), None).total.steps
}

fn compare(ledger: &Ledger, job: &JobView, saving: f64) {
    let turn = |energy_j| Turn { steps: 1, time_s: 1.0, energy_j };
    let (default, plan) = (turn(10.0 * (1.0 + saving)), turn(10.0));
    let compared = Compared { at_unix_s: unix_s(SystemTime::now()), default, plan };
    ledger.take(job, job.plan.as_ref().unwrap(), compared);
}

#[test]
fn the_next_agent_has_the_same_figures_whatever_ended_this_one() {
    let state = tempfile::tempdir().unwrap();
    let job = example("p", 1, 7, 50);
    let first = begun(state.path());
    first.see(std::slice::from_ref(&job));
    for saving in [0.09, 0.1, 0.11] {
        compare(&first, &job, saving);
    }
    let before = first.savings(&query(SavingsBy::Plan), None);
    assert!(before.total.saved.is_some_and(|saved| saved.shown), "{before:?}");
    assert_eq!(before.total.energy_j, 1000.0);
    first.end();
    for _ in 0..3 {
        let next = begun(state.path());
        next.see(std::slice::from_ref(&job));
        let now = next.savings(&query(SavingsBy::Plan), None);
        assert_eq!((&now.rows, now.total), (&before.rows, before.total));
        assert_eq!((now.entries, now.ledger_problem), (4, None));
    }
}

#[test]
fn a_comparison_of_a_whole_job_counts_once_however_often_it_is_read() {
    let state = tempfile::tempdir().unwrap();
    let job = example("p", 1, 7, 50);
    let turn = |energy_j| pfo_fleet::Turn { steps: 3, time_s: 1.0, energy_j };
    let predicted_j = job.plan.as_ref().unwrap().predicted_energy_j;
    let whole = |at_unix_s, default_j| pfo_fleet::Compared {
        label: "p".into(),
        predicted_j,
        at_unix_s,
        default: turn(default_j),
        plan: turn(10.0),
    };
    // Old ones would be removed.
    let now = unix_s(SystemTime::now());
    let both = [whole(now, 11.0), whole(now + 1, 11.1)];
    let mut before = None;
    for agent in 0..3 {
        let ledger = begun(state.path());
        ledger.see(std::slice::from_ref(&job));
        for _ in 0..3 {
            both.iter().for_each(|whole| ledger.take_whole(&job, whole));
            let total = ledger.savings(&query(SavingsBy::Job), None).total;
            assert_eq!((total.comparisons, total.steps), (2, 50), "agent {agent}");
            assert_eq!(*before.get_or_insert(total), total);
            ledger.write();
        }
    }
    // One of the same second that measured something else is another one.
    let ledger = begun(state.path());
    ledger.see(std::slice::from_ref(&job));
    ledger.take_whole(&job, &whole(now + 1, 11.2));
    ledger.write();
    let total = ledger.savings(&query(SavingsBy::Job), None).total;
    assert_eq!(total.comparisons, 3);
}

#[test]
fn a_user_sees_its_own_jobs_and_no_other() {
    let state = tempfile::tempdir().unwrap();
    let ledger = begun(state.path());
    let job = example("p", 1, 7, 50);
    ledger.see(std::slice::from_ref(&job));
    let of = |uid| ledger.savings(&query(SavingsBy::User), Some(uid)).rows.len();
    assert_eq!((of(job.uid), of(Uid(job.uid.0 + 1))), (1, 0));
    let foreign = SavingsQuery { uid: Some(job.uid), ..query(SavingsBy::User) };
    assert_eq!(ledger.savings(&foreign, Some(Uid(job.uid.0 + 1))).rows, []);
    ledger.end();
    assert_eq!((of(job.uid), of(Uid(job.uid.0 + 1))), (1, 0), "as it is on disk");
    for since_unix_s in [1 << 40, u64::MAX].map(Some) {
        let later = SavingsQuery { since_unix_s, ..query(SavingsBy::User) };
        let report = ledger.savings(&later, None);
        assert_eq!((report.rows, report.ledger_problem), (Vec::new(), None));
    }
}

#[test]
fn a_file_that_cannot_be_read_is_kept_aside_and_said_so() {
    let damages: [fn(&mut fs::File); 4] = [
        |file| file.set_len(0).and_then(|()| file.write_all(&[7; 8192])).unwrap(),
        |file| {
            let length = file.metadata().unwrap().len();
            file.set_len(length - 5000).unwrap();
        },
        |file| {
            file.seek(SeekFrom::Start(4096)).unwrap();
            file.write_all(&[0xff; 16_384]).unwrap();
        },
        |file| {
            // Of a later version.
            file.seek(SeekFrom::Start(60)).unwrap();
            file.write_all(&[0, 0, 0, 9]).unwrap();
        },
    ];
    for damage in damages {
        let state = tempfile::tempdir().unwrap();
        let first = begun(state.path());
        first.see(&[example("p", 1, 7, 50)]);
        first.end();
        let path = first.path.clone();
        drop(first);
        damage(&mut fs::OpenOptions::new().write(true).open(&path).unwrap());
        let damaged = fs::read(&path).unwrap();
        let next = begun(state.path());
        next.see(&[example("p", 1, 7, 60)]);
        let report = next.savings(&query(SavingsBy::Job), None);
        assert_eq!(report.total.steps, 60, "what pfod still counts is counted again, once");
        let problem = report.ledger_problem.unwrap();
        assert!(problem.contains("could not be read") && problem.contains("kept as"), "{problem}");
        let aside = fs::read_dir(path.parent().unwrap()).unwrap().map(|file| file.unwrap().path());
        let aside: Vec<_> =
            aside.filter(|file| file.display().to_string().contains("unreadable")).collect();
        assert!(aside.iter().any(|file| fs::read(file).unwrap() == damaged), "{aside:?}");
        next.end();
        assert_eq!(steps(&begun(state.path())), 60);
    }
}

#[test]
fn an_empty_file_is_a_new_ledger() {
    let state = tempfile::tempdir().unwrap();
    let path = ledger(state.path()).path;
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "").unwrap();
    let ledger = begun(state.path());
    assert_eq!(ledger.savings(&query(SavingsBy::Day), None).ledger_problem, None);
}

#[test]
fn where_nothing_can_be_written_rows_wait_and_are_written_later() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("state");
    fs::write(&path, "no directory").unwrap();
    let ledger = ledger(&path);
    ledger.reached(Pid(1));
    let job = example("p", 1, 7, 50);
    assert!(ledger.see(std::slice::from_ref(&job)), "it is tried");
    ledger.write();
    assert!(!ledger.see(std::slice::from_ref(&job)), "and not at once again");
    let report = ledger.savings(&query(SavingsBy::Job), None);
    assert!(report.ledger_problem.unwrap().contains("waits in memory"));
    compare(&ledger, &job, 0.1);
    fs::remove_file(&path).unwrap();
    ledger.write();
    ledger.see(&[job]);
    let report = ledger.savings(&query(SavingsBy::Job), None);
    assert_eq!((report.total.steps, report.ledger_problem), (50, None));
    assert_eq!(report.total.comparisons, 1);
}

#[test]
fn what_was_not_written_because_the_disk_was_full_is_written_once() {
    let state = tempfile::tempdir().unwrap();
    let ledger = begun(state.path());
    let mut full = 0;
    for swap in 1..40 {
        // Each needs pages of its own.
        ledger.see(&[example(&"p".repeat(100 * swap as usize), swap, 7, 50)]);
        // Pages that the file has already are all that there is, for every other write.
        let most = if swap % 2 == 0 { 1 } else { u32::MAX };
        // It is opened anew after a write that failed.
        lock(&ledger.file).store.iter().for_each(|store| store.set_most_pages(most));
        ledger.write();
        full += u32::from(ledger.problem().is_some());
    }
    ledger.end();
    assert!(full > 0, "no write failed");
    assert_eq!(steps(&begun(state.path())), 39 * 50);
}

#[test]
fn a_file_that_was_removed_is_written_anew_also_at_the_end() {
    let state = tempfile::tempdir().unwrap();
    let ledger = begun(state.path());
    ledger.see(&[example("p", 1, 7, 50)]);
    fs::remove_dir_all(ledger.path.parent().unwrap()).unwrap();
    ledger.see(&[example("q", 2, 7, 60)]);
    ledger.end();
    assert_eq!(steps(&begun(state.path())), 110);
}
