use super::*;
use crate::ledger::comparison::{Compared, Turn};
use crate::ledger::windows::Work;

const MONTH: &str = "2026-11";

/// A job that used so much under a plan that saves a tenth, more or less.
fn known(job: &str, energy_j: f64) -> Known {
    let turn = |energy_j, time_s| Turn { steps: 1, time_s, energy_j };
    let compared = |at_unix_s, saving: f64| Compared {
        at_unix_s,
        default: turn(10.0 * (1.0 + saving), 0.9),
        plan: turn(10.0, 1.0),
    };
    let work = Work { uid: Uid(7), job: job.into(), plan: "p".into(), shape: "s".into() };
    let window = Measured {
        from_unix_s: 5,
        until_unix_s: 5,
        steps: (energy_j / 10.0) as u64,
        time_s: energy_j / 10.0,
        energy_j: Some(energy_j),
        heat: Heat { throttled_s: Some(1.0), hottest_c: Some(60) },
        given_j: 0.0,
        lost_s: 0.0,
        partition: Some("big".into()),
        model: Some("A40".into()),
    };
    let comparisons = vec![compared(1, 0.09), compared(5, 0.1), compared(9, 0.11)];
    Known { work, comparisons, windows: vec![window] }
}

fn told(ledger: &str, months: &[(&str, Vec<Known>)]) -> Told {
    let mut told = Told::default();
    let months = months.iter().map(|(name, known)| ((*name).to_owned(), known.clone()));
    told.tell(ledger, &months.collect(), (&Prices::default(), 77));
    told
}

fn merge(told: &[(&str, &Told)], by: SavingsBy) -> Fleet {
    let told = told.iter().map(|(node, told)| ((*node).to_owned(), (*told).clone()));
    merged(&told.collect(), MONTH, (by, &Tariff::default()), |_, _| true)
}

#[track_caller]
fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * (1.0 + expected.abs()), "{found}, not {expected}");
}

#[test]
fn a_node_by_itself_says_what_its_ledger_says() {
    let known = [known("j", 1000.0), known("k", 500.0)];
    let told = told("l", &[(MONTH, known.to_vec())]);
    let read = Told::read(&told.written(usize::MAX));
    assert_eq!(read, told);
    let fleet = merge(&[("a", &read)], SavingsBy::Job);
    let own = crate::ledger::query::total(&known, &Prices::default());
    let (found, expected) = (fleet.total.saved.unwrap(), own.saved.unwrap());
    assert_near(found.estimate_j, expected.estimate_j);
    assert_near(found.low_j, expected.low_j);
    assert_eq!((fleet.total.energy_j, fleet.total.compared_j), (own.energy_j, own.compared_j));
    assert_eq!(fleet.total.slowdown_s, own.slowdown_s);
    assert_eq!(fleet.rows.len(), 2);
    assert_eq!(fleet.nodes, [SavingsNode { name: "a".into(), written_unix_s: 77 }]);
}

#[test]
fn nodes_add_up_by_user_partition_job_and_model() {
    let a = told("l", &[(MONTH, vec![known("j", 1000.0)])]);
    let b = told("m", &[(MONTH, vec![known("j", 1000.0), known("k", 10.0)])]);
    let rows = |by| -> Vec<_> {
        let rows = merge(&[("a", &a), ("b", &b)], by).rows.into_iter();
        rows.map(|row| {
            let name = row.job.map(|job| job.to_string()).or(row.partition).or(row.model);
            (row.uid, name, row.savings.energy_j)
        })
        .collect()
    };
    let uid = Some(Uid(7));
    assert_eq!(
        rows(SavingsBy::Job),
        [(uid, Some("j".into()), 2000.0), (uid, Some("k".into()), 10.0)]
    );
    assert_eq!(rows(SavingsBy::User), [(uid, None, 2010.0)]);
    assert_eq!(rows(SavingsBy::Partition), [(None, Some("big".into()), 2010.0)]);
    assert_eq!(rows(SavingsBy::Model), [(None, Some("A40".into()), 2010.0)]);
}

#[test]
fn a_job_over_nodes_is_off_by_the_same_share_on_all_of_them_and_slower_once() {
    // A step of the whole job takes 10 J, and each node counts all of its steps.
    let half = |energy_j: f64| {
        let mut known = known("j", energy_j);
        known.windows[0].steps = (energy_j / 5.0) as u64;
        known.windows[0].time_s = energy_j / 5.0;
        known
    };
    let [a, b] = ["l", "m"].map(|ledger| told(ledger, &[(MONTH, vec![half(500.0)])]));
    let fleet = merge(&[("a", &a), ("b", &b)], SavingsBy::Job).total;
    let whole = crate::ledger::query::total(&[known("j", 1000.0)], &Prices::default());
    let (found, expected) = (fleet.saved.unwrap(), whole.saved.unwrap());
    assert_near(found.estimate_j, expected.estimate_j);
    assert_near(found.high_j, expected.high_j);
    assert_near(fleet.slowdown_s.unwrap(), whole.slowdown_s.unwrap());
}

#[test]
fn a_ledger_that_two_nodes_tell_of_counts_once() {
    // A node was renamed: it tells the same ledger again, with more in it.
    let before = told("l", &[(MONTH, vec![known("j", 1000.0)])]);
    let after = told("l", &[(MONTH, vec![known("j", 1500.0)])]);
    let fleet = merge(&[("old", &before), ("new", &after)], SavingsBy::Job);
    assert_eq!(fleet.total.energy_j, 1500.0);
    assert_eq!(fleet.nodes.len(), 1);
}

#[test]
fn a_node_that_begins_a_new_ledger_keeps_the_months_of_the_old_one() {
    let mut told = told("old", &[(MONTH, vec![known("j", 1000.0)])]);
    told.tell(
        "new",
        &[(MONTH.to_owned(), vec![known("j", 10.0)])].into(),
        (&Prices::default(), 78),
    );
    assert_eq!(merge(&[("a", &told)], SavingsBy::Job).total.energy_j, 1010.0);
}

#[test]
fn what_is_told_again_counts_once_and_rows_that_were_removed_take_nothing_away() {
    let mut told = told("l", &[(MONTH, vec![known("j", 1000.0)])]);
    let before = told.clone();
    told.tell(
        "l",
        &[(MONTH.to_owned(), vec![known("j", 1000.0)])].into(),
        (&Prices::default(), 99),
    );
    assert_eq!(told, before, "nothing is new, so nothing is written");
    told.tell("l", &[(MONTH.to_owned(), vec![known("j", 400.0)])].into(), (&Prices::default(), 99));
    told.tell("l", &[(MONTH.to_owned(), Vec::new())].into(), (&Prices::default(), 99));
    assert_eq!(told, before);
    told.tell(
        "l",
        &[(MONTH.to_owned(), vec![known("j", 1001.0)])].into(),
        (&Prices::default(), 99),
    );
    assert_eq!(merge(&[("a", &told)], SavingsBy::Job).total.energy_j, 1001.0);
}

fn euros(price_per_kwh: f64) -> Tariff {
    Tariff { price_per_kwh: Some(price_per_kwh), currency: "EUR".into(), co2e_g_per_kwh: None }
}

fn told_at(ledger: &str, prices: &Prices, energy_j: f64) -> Told {
    let mut told = Told::default();
    told.tell(ledger, &[(MONTH.to_owned(), vec![known("j", energy_j)])].into(), (prices, 77));
    told
}

fn money_of(told: &[(&str, &Told)], flat: &Tariff) -> Option<f64> {
    let told = told.iter().map(|(node, told)| ((*node).to_owned(), (*told).clone()));
    let fleet = merged(&told.collect(), MONTH, (SavingsBy::User, flat), |_, _| true);
    assert_eq!(fleet.rows[0].savings.money, fleet.total.money);
    fleet.total.money.map(|money| money.estimate)
}

#[test]
fn each_node_counts_by_its_own_hours_and_one_without_prices_by_those_of_who_asks() {
    let hours = Prices::by_hour(euros(0.3), "time,price_per_kwh\n00:00,-0.5\n");
    let by_hour = told_at("l", &hours, 10.0 * KWH_J);
    let without = told_at("m", &Prices::default(), 10.0 * KWH_J);
    let read = Told::read(&by_hour.written(usize::MAX));
    assert_near(money_of(&[("a", &read)], &euros(9.0)).unwrap(), -0.5);
    assert_near(money_of(&[("a", &read), ("b", &without)], &euros(0.4)).unwrap(), -0.1);
    assert_eq!(money_of(&[("a", &read), ("b", &without)], &Tariff::default()), None);
    let dollars = Tariff { currency: "USD".into(), ..euros(0.4) };
    assert_eq!(money_of(&[("a", &read)], &dollars), None, "of another currency");
}

#[test]
fn a_price_that_is_corrected_is_told_again() {
    let flat = |price| Prices::flat(euros(price));
    let mut told = told_at("l", &flat(0.3), 10.0 * KWH_J);
    let months = [(MONTH.to_owned(), vec![known("j", 10.0 * KWH_J)])].into();
    told.tell("l", &months, (&flat(0.2), 99));
    assert_near(money_of(&[("a", &told)], &euros(9.0)).unwrap(), 0.2);
}

#[test]
fn what_an_agent_told_that_knew_no_money_has_that_of_who_asks() {
    let told = told_at("l", &Prices::default(), 10.0 * KWH_J);
    let mut json = serde_json::to_value(&told).unwrap();
    let month = &mut json["l"][MONTH];
    assert!(month.as_object_mut().unwrap().remove("currency").is_some());
    let row = month["rows"][0].as_object_mut().unwrap();
    assert!(row.remove("money").is_some() && row.remove("co2e_g").is_some());
    for new in ["money", "co2e_g"] {
        assert!(row["savings"].as_object_mut().unwrap().remove(new).is_some());
    }
    let former: Told = serde_json::from_value(json).unwrap();
    assert_near(money_of(&[("a", &former)], &euros(0.4)).unwrap(), 0.4);
}

#[test]
fn only_what_is_asked_for_is_in_it() {
    let told = told("l", &[(MONTH, vec![known("j", 1000.0), known("k", 10.0)])]);
    let all = [("a".to_owned(), told)].into();
    let of = |month, is_asked: &dyn Fn(Uid, Option<&str>) -> bool| {
        merged(&all, month, (SavingsBy::User, &Tariff::default()), is_asked).total.energy_j
    };
    assert_eq!(of(MONTH, &|uid, _| uid == Uid(8)), 0.0);
    assert_eq!(of(MONTH, &|_, job| job == Some("k")), 10.0);
    assert_eq!(of("2026-10", &|_, _| true), 0.0);
}

#[test]
fn where_jobs_are_too_many_their_names_go_and_no_joule() {
    let many: Vec<_> = (0..500).map(|job| known(&format!("job-{job}"), 10.0)).collect();
    let told = told("l", &[("2026-10", many.clone()), (MONTH, many)]);
    let all = told.written(usize::MAX).len();
    let read = Told::read(&told.written(all * 2 / 3));
    let october = merged(
        &[("a".into(), read.clone())].into(),
        "2026-10",
        (SavingsBy::Job, &Tariff::default()),
        |_, _| true,
    );
    assert_eq!((october.rows.len(), october.total.energy_j), (1, 5000.0), "the oldest month first");
    assert_eq!(merge(&[("a", &read)], SavingsBy::Job).rows.len(), 500);
    let least = Told::read(&told.written(2000));
    let november = merge(&[("a", &least)], SavingsBy::Job);
    assert_eq!((november.rows.len(), november.total.energy_j), (1, 5000.0));
    assert!(told.written(10).len() < 100, "nothing fits");
}

#[test]
fn what_no_agent_wrote_tells_nothing() {
    let garbage: [&[u8]; 4] = [b"", b"{}", &[0x1f, 0x8b, 8, 0], &[0xff; 999]];
    for bytes in garbage {
        assert_eq!(Told::read(bytes), Told::default());
    }
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    let zeros = vec![b' '; 1 << 20];
    (0..64).for_each(|_| bomb.write_all(&zeros).unwrap());
    assert_eq!(Told::read(&bomb.finish().unwrap()), Told::default());
}
