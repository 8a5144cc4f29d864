use pfo_protocol::Tariff;
use proptest::prelude::*;

use super::*;
use crate::ledger::comparison::Turn;
use crate::ledger::saving::NEAREST;

fn window(from_unix_s: u64, lasts_s: u64, energy_j: f64) -> Measured {
    Measured {
        from_unix_s,
        until_unix_s: from_unix_s + lasts_s,
        steps: lasts_s,
        time_s: lasts_s as f64,
        energy_j: Some(energy_j),
        heat: Heat { throttled_s: Some(1.0), hottest_c: Some(61) },
        given_j: 1.0,
        lost_s: 0.5,
        partition: None,
        model: None,
    }
}

fn known(windows: Vec<Measured>) -> Known {
    let compared = |at_unix_s, saving: f64| {
        let turn = |energy_j, time_s| Turn { steps: 1, time_s, energy_j };
        let default = turn(10.0 * (1.0 + saving), 0.9 - saving);
        Compared { at_unix_s, default, plan: turn(10.0, 1.0) }
    };
    let work = Work { uid: Uid(1), job: "j".into(), plan: "p".into(), shape: "s".into() };
    // As many of each as count for a row.
    let of = |(at, saving)| std::iter::repeat_n(compared(at, saving), NEAREST);
    let comparisons = [(100, 0.1), (5000, 0.3), (9000, -0.1)].into_iter().flat_map(of).collect();
    Known { work, comparisons, windows }
}

fn between(known: &Known, since_unix_s: u64, until_unix_s: u64) -> Savings {
    let span = Span { since_unix_s, until_unix_s };
    let mut known = known.clone();
    known.windows.retain(|measured| measured.is_in(span));
    total(&[known], &Prices::default())
}

#[test]
fn a_row_belongs_where_its_middle_is() {
    let known = known(vec![window(100, 600, 7.0)]);
    let energy_j = |since, until| between(&known, since, until).energy_j;
    assert_eq!((energy_j(0, 400), energy_j(400, 900)), (0.0, 7.0));
    assert_eq!((energy_j(0, 401), energy_j(401, 900)), (7.0, 0.0));
}

#[test]
fn rows_are_of_the_partition_and_the_model_in_which_they_were_measured() {
    let of = |partition: Option<&str>, model: &str, energy_j| Measured {
        partition: partition.map(str::to_owned),
        model: Some(model.to_owned()),
        ..window(0, 10, energy_j)
    };
    let known =
        known(vec![of(None, "A40", 1.0), of(Some("big"), "A40", 2.0), of(None, "H100", 4.0)]);
    let of_all = std::slice::from_ref(&known);
    let partitions: Vec<_> = rows(of_all, SavingsBy::Partition, &Prices::default())
        .into_iter()
        .map(|row| (row.partition, row.model, row.uid, row.savings.energy_j))
        .collect();
    assert_eq!(partitions, [(None, None, None, 5.0), (Some("big".into()), None, None, 2.0)]);
    let models: Vec<_> = rows(of_all, SavingsBy::Model, &Prices::default())
        .into_iter()
        .map(|row| (row.model.unwrap(), row.partition, row.savings.energy_j))
        .collect();
    assert_eq!(models, [("A40".to_owned(), None, 3.0), ("H100".to_owned(), None, 4.0)]);
}

#[test]
fn the_slowdown_is_what_the_comparisons_nearest_in_time_say() {
    let at = |from| between(&known(vec![window(from, 100, 7.0)]), 0, u64::MAX).slowdown_s;
    assert!((at(0).unwrap() - 20.0).abs() < 1e-9, "{:?}", at(0));
    assert!((at(5000).unwrap() - 40.0).abs() < 1e-9, "{:?}", at(5000));
    assert_eq!(
        total(
            &[Known { comparisons: Vec::new(), ..known(vec![window(0, 9, 1.0)]) }],
            &Prices::default()
        )
        .slowdown_s,
        None
    );
}

fn priced(known: &[Known], flat: Option<f64>, hours: &str) -> Savings {
    let flat = Tariff { price_per_kwh: flat, ..Tariff::default() };
    total(known, &Prices::by_hour(flat, hours))
}

#[test]
fn a_saving_has_the_price_of_the_hour_in_which_it_was_made() {
    // A tenth of 3 kWh in the first hour, three tenths of 5 kWh in the second one.
    let known = [known(vec![window(0, 600, 3.0 * KWH_J), window(5000, 600, 5.0 * KWH_J)])];
    let prices = "time,price_per_kwh\n1970-01-01T00:00Z,0.5\n1970-01-01T01:00Z,-0.25\n";
    let savings = priced(&known, None, prices);
    let money = savings.money.unwrap();
    assert!((money.estimate - (0.3 * 0.5 - 1.5 * 0.25)).abs() < 1e-9, "{money:?}");
    assert_eq!(savings.co2e_g, None, "nothing says it");
    // The same as by hand: the joules of each comparison, priced.
    let used = |at_unix_s, energy_j| Used { at_unix_s, energy_j };
    let by_hand = Estimate::of(&known[0].comparisons, &[used(300, 1.5), used(5300, -1.25)]);
    let Worth { low, high, .. } = Interval::of(&[by_hand.unwrap()]).unwrap().worth();
    assert!((money.low - low).abs() < 1e-9 && (money.high - high).abs() < 1e-9, "{money:?}");
}

#[test]
fn prices_that_are_all_alike_are_the_flat_price() {
    let known = [known(vec![window(0, 600, KWH_J), window(8000, 600, 2.0 * KWH_J)])];
    let by_hour = priced(&known, None, "time,price_per_kwh\n00:00,0.3\n01:00,0.3\n");
    let flat = Tariff { price_per_kwh: Some(0.3), ..Tariff::default() };
    let flat = total(&known, &Prices::flat(flat));
    assert_eq!(by_hour, flat);
    let (saved, money) = (flat.saved.unwrap(), flat.money.unwrap());
    assert!((money.high - saved.high_j / KWH_J * 0.3).abs() < 1e-9, "{money:?}");
    assert!((money.estimate - saved.estimate_j / KWH_J * 0.3).abs() < 1e-9, "{money:?}");
}

#[test]
fn a_saving_part_of_which_has_no_price_has_no_money_but_for_a_flat_tariff() {
    let known = [known(vec![window(0, 600, KWH_J), window(8000, 600, KWH_J)])];
    let hours = "time,price_per_kwh\n1970-01-01T00:00Z,0.5\n";
    assert_eq!(priced(&known, None, hours).money, None);
    let money = priced(&known, Some(0.25), hours).money.unwrap();
    assert!((money.estimate - (0.1 * 0.5 - 0.1 * 0.25)).abs() < 1e-9, "{money:?}");
}

proptest! {
    #[test]
    fn a_month_and_the_next_one_add_up_to_both(
        windows in prop::collection::vec((0_u64..10_000, 0_u64..700, 0.0_f64..1e6), 1..40),
        bound in 0_u64..11_000,
    ) {
        let windows = windows.into_iter().map(|(from, lasts_s, j)| window(from, lasts_s, j));
        let known = known(windows.collect());
        let [both, first, next] =
            [(0, 20_000), (0, bound), (bound, 20_000)].map(|(from, to)| between(&known, from, to));
        prop_assert_eq!(first.steps + next.steps, both.steps);
        let near = |one: f64, more: f64, sum: f64| (one + more - sum).abs() <= 1e-9 * (1.0 + sum.abs());
        prop_assert!(near(first.energy_j, next.energy_j, both.energy_j));
        prop_assert!(near(first.compared_j, next.compared_j, both.compared_j));
        prop_assert!(near(first.time_s, next.time_s, both.time_s));
        prop_assert!(near(first.given_j, next.given_j, both.given_j));
        let slowdown_s = |of: &Savings| of.slowdown_s.unwrap_or_default();
        prop_assert!(near(slowdown_s(&first), slowdown_s(&next), slowdown_s(&both)));
        let saved_j = |of: &Savings| of.saved.map_or(0.0, |saved| saved.estimate_j);
        prop_assert!((saved_j(&first) + saved_j(&next) - saved_j(&both)).abs() < 1e-3);
    }
}
