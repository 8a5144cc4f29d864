//! What is found of a rank whose every watt is known.

use pfo_protocol::{InstructionSample, LeftOut, ThrottledNs, TrialRow};
use proptest::prelude::*;

use super::played::{BACKWARD, FORWARD, MS, Played, SETTLE_NS, gpu};
use super::*;
use crate::record::sample::HW_THERMAL_SLOWDOWN;

fn ordinary() -> (Played, impl Fn(&mut Played, Range<u64>)) {
    let steps = |played: &mut Played, steps| {
        played.steps(steps, (31 * MS, 200.0), (57 * MS, 300.0), &[9 * MS, 23 * MS, 0]);
    };
    (Played::new(10..30, 20 * MS), steps)
}

#[test]
fn a_sample_that_comes_out_of_order_changes_nothing() {
    let measured = |late: bool| {
        let (mut played, steps) = ordinary();
        for step in 8..31 {
            if late {
                let at_ns = played.now_ns - 45 * MS;
                played.digest.take(TapRecord::Counter(CounterReading {
                    at_ns,
                    read_ns: at_ns,
                    energy_j: Some(played.energy_j),
                    sm_clock: Some(Mhz(1200)),
                    throttled_ns: ThrottledNs::default(),
                    throttle_reasons: HW_THERMAL_SLOWDOWN,
                }));
            }
            steps(&mut played, step..step + 1);
        }
        played.finish(31)
    };
    assert_eq!(format!("{:?}", measured(true)), format!("{:?}", measured(false)));
}

#[test]
fn steps_outside_the_range_count_for_nothing() {
    let (mut played, steps) = ordinary();
    steps(&mut played, 7..30);
    let recorded = played.finish(30);
    assert_eq!(
        recorded.steps.iter().map(|mark| mark.step).collect::<Vec<_>>(),
        (10..=30).collect::<Vec<_>>()
    );
    assert_eq!(recorded.rows.iter().map(|row| row.count).collect::<Vec<_>>(), [80, 80]);
}

#[test]
fn the_energies_of_steps_add_up_to_what_the_counter_moved_by() {
    let (mut played, steps) = ordinary();
    steps(&mut played, 9..10);
    let before_j = played.energy_j;
    steps(&mut played, 10..30);
    let used_j = played.energy_j - before_j;
    let marks = played.finish(30).steps;
    let found_j = marks[20].energy_j.unwrap() - marks[0].energy_j.unwrap();
    // At either end the counter is up to a refresh old.
    assert!((found_j - used_j).abs() < 0.020 * 240.0, "{found_j} {used_j}");
    assert!(marks.iter().all(|mark| mark.energy_j.is_some()));
}

#[test]
fn what_began_before_its_clock_had_settled_is_left_out_of_time_and_energy() {
    let (mut played, steps) = ordinary();
    steps(&mut played, 10..20);
    // Another clock was locked for a while, and the power was another.
    played.locked = Some((Mhz(900), u64::MAX));
    played.steps(20..21, (99 * MS, 400.0), (99 * MS, 400.0), &[5 * MS]);
    played.locked = Some((Mhz(1200), 0));
    played.steps(21..22, (99 * MS, 400.0), (99 * MS, 400.0), &[5 * MS]);
    played.locked = Some((Mhz(900), played.now_ns));
    played.draw(SETTLE_NS, 400.0);
    steps(&mut played, 22..30);
    let recorded = played.finish(30);
    for (row, (time_s, power_w)) in recorded.rows.iter().zip([(0.031, 200.0), (0.057, 300.0)]) {
        assert_eq!((row.count, row.left_out.settling), (72, 8), "{row:?}");
        assert!((row.time_mean_s - time_s).abs() < 1e-9, "{row:?}");
        assert!((row.energy_mean_j.unwrap() / (time_s * power_w) - 1.0).abs() < 1e-3, "{row:?}");
    }
}

/// Steps 20 to 22: one too hot, one at another clock, one astray.
fn doubtful_steps(played: &mut Played) {
    let step = |played: &mut Played, number: u64| {
        played.steps(number..number + 1, (99 * MS, 400.0), (99 * MS, 400.0), &[5 * MS]);
    };
    played.reasons = HW_THERMAL_SLOWDOWN;
    step(played, 20);
    played.reasons = 0;
    played.clock = Mhz(600);
    step(played, 21);
    played.clock = Mhz(900);
    played.astray = true;
    step(played, 22);
    played.astray = false;
}

#[test]
fn what_was_too_hot_or_at_another_clock_or_astray_is_left_out_and_counted() {
    let (mut played, steps) = ordinary();
    steps(&mut played, 10..20);
    doubtful_steps(&mut played);
    steps(&mut played, 23..30);
    let recorded = played.finish(30);
    for (row, (time_s, power_w)) in recorded.rows.iter().zip([(0.031, 200.0), (0.057, 300.0)]) {
        let LeftOut { mismatched, settling, throttled, other_clock } = row.left_out;
        assert_eq!((mismatched, settling), (4, 0), "{row:?}");
        // Those at whose end or beginning it was seen are in doubt as well.
        assert!((4..=6).contains(&throttled) && (3..=4).contains(&other_clock), "{row:?}");
        assert_eq!(row.count, 76 - throttled - other_clock);
        assert_eq!(row.observed_mhz, Some(900.0));
        assert!((row.energy_mean_j.unwrap() / (time_s * power_w) - 1.0).abs() < 1e-3, "{row:?}");
    }
}

/// The rows of forwards of 200 W and backwards of 300 W on a GPU that runs at this clock where its
/// power cap holds it back.
fn capped(capped_ns: Option<u64>, clock: u32) -> [TrialRow; 2] {
    let (mut played, steps) = ordinary();
    played.capped_ns = capped_ns;
    played.capped_clock = Some(Mhz(clock));
    steps(&mut played, 10..30);
    played.finish(30).rows.try_into().unwrap()
}

#[test]
fn a_power_cap_is_a_fact_about_a_clock_and_its_share_of_the_time_is_found_like_a_power() {
    let rows = capped(Some(7), 780);
    for (row, (mhz, power_w, share)) in rows.iter().zip([(900.0, 200.0, 0.0), (780.0, 300.0, 1.0)])
    {
        assert_eq!((row.mhz, row.observed_mhz), (Some(Mhz(900)), Some(mhz)), "{row:?}");
        assert_eq!((row.count, row.left_out), (80, LeftOut::default()), "{row:?}");
        assert!((row.throttled.unwrap() - share).abs() < 0.02, "{row:?}");
        let energy_j = row.time_mean_s * power_w;
        assert!((row.energy_mean_j.unwrap() / energy_j - 1.0).abs() < 1e-3, "{row:?}");
    }
}

#[test]
fn a_driver_without_counters_shows_a_power_cap_by_its_reasons() {
    let [forward, backward] = capped(None, 780);
    assert_eq!((forward.observed_mhz, forward.count), (Some(900.0), 80), "{forward:?}");
    assert_eq!((backward.observed_mhz, backward.count), (Some(780.0), 80), "{backward:?}");
    assert_eq!((forward.throttled, backward.throttled), (Some(0.0), Some(1.0)));
}

#[test]
fn the_clock_beside_the_one_that_was_asked_for_counts_and_is_recorded_without_any_reason() {
    for (clock, counts) in [(870, true), (930, true), (840, false), (960, false)] {
        let (mut played, steps) = ordinary();
        played.capped_ns = Some(0);
        played.clock = Mhz(clock);
        steps(&mut played, 10..30);
        for row in played.finish(30).rows {
            assert_eq!(row.observed_mhz, Some(clock.into()), "{row:?}");
            assert_eq!(row.throttled, (row.count > 0).then_some(0.0), "{row:?}");
            // Some have no reading within them.
            assert_eq!(row.left_out.other_clock < 10, counts, "{row:?}");
        }
    }
}

#[test]
fn a_clock_that_was_read_late_is_that_of_what_ran_then() {
    let mut digest = Digest::new(0..1, gpu(), None);
    let ran = |unit, from_ms: u64, until_ms: u64| TapRecord::Ran {
        unit,
        began_ns: from_ms * MS,
        ended_ns: until_ms * MS,
        asked: Some(Mhz(900)),
        locked: Some((Mhz(900), 0)),
        astray: false,
    };
    let reading = |at_ms: u64, read_ms: u64, clock| {
        let (at_ns, read_ns, sm_clock) = (at_ms * MS, read_ms * MS, Some(Mhz(clock)));
        TapRecord::Counter(CounterReading { at_ns, read_ns, sm_clock, ..NO_READING })
    };
    digest.take(TapRecord::StepBegan { step: 0, at_ns: 50 * MS, astray: false });
    for record in [
        reading(69, 71, 870),
        ran(FORWARD, 50, 70),
        reading(80, 81, 870),
        ran(BACKWARD, 70, 90),
        reading(100, 101, 900),
        ran(FORWARD, 90, 110),
    ] {
        digest.take(record);
    }
    let clocks: Vec<_> = digest.finish().rows.iter().map(|row| row.observed_mhz).collect();
    assert_eq!(clocks, [Some(900.0), Some(870.0)]);
}

#[test]
fn a_clock_above_the_one_that_was_asked_for_is_left_out_whatever_the_reason() {
    let [forward, backward] = capped(Some(7), 1200);
    assert_eq!(forward.left_out, LeftOut::default(), "{forward:?}");
    assert!(backward.left_out.other_clock > 60, "{backward:?}");
}

#[test]
fn a_gpu_without_a_counter_has_times_and_no_energies() {
    let (mut played, steps) = ordinary();
    played.refresh_ns = u64::MAX / 2;
    steps(&mut played, 10..30);
    played.begin_step(30);
    played.draw(3000 * MS, 60.0);
    let at_ns = played.now_ns;
    let reading = CounterReading { at_ns, read_ns: at_ns, ..NO_READING };
    played.digest.take(TapRecord::Counter(reading));
    assert!(!played.digest.is_complete());
    played.digest.take(TapRecord::StepEnded { at_ns, astray: false });
    assert!(played.digest.is_complete());
    let recorded = played.digest.finish();
    assert_eq!((recorded.rows.len(), recorded.waits.len()), (2, 0));
    assert!(recorded.rows.iter().all(|row| row.count == 80 && row.energy_mean_j.is_none()));
}

#[test]
fn a_counter_that_looks_for_a_part_of_the_time_tells_the_same_powers() {
    let (mut played, steps) = ordinary();
    (played.refresh_ns, played.part) = (100 * MS, 0.25);
    steps(&mut played, 9..30);
    for (row, (time_s, power_w)) in
        played.finish(30).rows.iter().zip([(0.031, 200.0), (0.057, 300.0)])
    {
        assert!((row.energy_mean_j.unwrap() / (time_s * power_w) - 1.0).abs() < 0.01, "{row:?}");
    }
}

#[test]
fn a_counter_that_is_late_tells_the_same_powers() {
    for late_ns in [5 * MS, 14 * MS, 40 * MS] {
        let mut played = Played::new(10..60, 100 * MS);
        played.late_ns = late_ns;
        played.steps(9..60, (9 * MS, 200.0), (17 * MS, 300.0), &[3 * MS, 2 * MS, MS]);
        let rows = played.finish(60).rows;
        for (row, (time_s, power_w)) in rows.iter().zip([(0.009, 200.0), (0.017, 300.0)]) {
            let off = row.energy_mean_j.unwrap() / (time_s * power_w) - 1.0;
            assert!(off.abs() < 0.03, "{late_ns} ns late: {off} {row:?}");
        }
    }
}

#[test]
fn what_is_kept_does_not_grow_with_the_trial() {
    let (mut played, steps) = ordinary();
    steps(&mut played, 10..30);
    let digest = &played.digest;
    let kept = [
        digest.spans.len(),
        digest.readings.len(),
        digest.interval.pieces.len(),
        digest.found.len(),
    ];
    assert!(kept.iter().all(|kept| *kept < 10), "{kept:?}");
}

/// A trial that keeps `room` instructions, some of them in doubt, for every reason there is.
fn doubtful(room: usize) -> Recorded {
    let (mut played, steps) = ordinary();
    played.digest = Digest::new(10..30, gpu(), Some(room));
    steps(&mut played, 8..20);
    doubtful_steps(&mut played);
    played.locked = Some((Mhz(900), played.now_ns + SETTLE_NS));
    steps(&mut played, 23..30);
    played.finish(30)
}

#[test]
fn every_instruction_is_kept_as_it_was_and_left_out_for_what_its_row_counts() {
    let recorded = doubtful(1000);
    assert_eq!((recorded.samples.len(), recorded.dropped_samples), (160, 0));
    let settling = |sample: &&InstructionSample| sample.left_out == Some(Doubt::Settling);
    assert_eq!(recorded.samples.iter().find(settling).map(|sample| sample.step), Some(23));
    for (row, unit) in recorded.rows.iter().zip([FORWARD, BACKWARD]) {
        let samples: Vec<_> =
            recorded.samples.iter().filter(|sample| sample.unit == unit).collect();
        let count = |doubt| samples.iter().filter(|sample| sample.left_out == doubt).count() as u64;
        let left_out = LeftOut {
            mismatched: count(Some(Doubt::Mismatched)),
            settling: count(Some(Doubt::Settling)),
            throttled: count(Some(Doubt::Throttled)),
            other_clock: count(Some(Doubt::OtherClock)),
        };
        assert_eq!((row.left_out, row.count), (left_out, count(None)));
        assert!(samples.iter().map(|sample| sample.step).is_sorted());
        let steps: Vec<_> = samples.iter().step_by(4).map(|sample| sample.step).collect();
        assert!(steps.iter().copied().eq(10..30), "{steps:?}");
        for sample in samples {
            let throttled = sample.throttle_reasons != 0;
            assert!(throttled || sample.left_out != Some(Doubt::Throttled), "{sample:?}");
            let (mhz, _) = sample.observed.unwrap();
            assert_eq!((mhz == Mhz(600), mhz == Mhz(900)), (sample.step == 21, sample.step != 21));
            assert_eq!(sample.mhz, Some(Mhz(900)));
        }
    }
}

#[test]
fn what_the_counter_moved_by_is_told_of_each_instruction_however_long_it_is() {
    let mut played = Played::new(10..12, 20 * MS);
    played.digest = Digest::new(10..12, gpu(), Some(1000));
    played.steps(9..12, (3 * MS, 200.0), (2007 * MS, 300.0), &[40 * MS]);
    for sample in played.finish(12).samples {
        let (refreshes, energy_j) = (sample.counter_refreshes, sample.counter_j.unwrap());
        let time_s = (sample.ended_ns - sample.began_ns) as f64 / 1e9;
        if sample.unit == BACKWARD {
            assert!((100..=101).contains(&refreshes), "{sample:?}");
            // At either end a part of a refresh is shared with a wait at 60 W.
            assert!((energy_j / (time_s * 300.0) - 1.0).abs() < 0.005, "{sample:?}");
        } else {
            assert!(refreshes <= 1 && energy_j < time_s * 200.0, "{sample:?}");
        }
    }
}

#[test]
fn more_instructions_than_there_is_room_for_are_counted_and_not_kept() {
    let (all, some) = (doubtful(1000), doubtful(33));
    assert_eq!((some.samples.len(), some.dropped_samples), (33, 160 - 33));
    assert_eq!(some.samples[..], all.samples[..33]);
    assert_eq!(format!("{:?}", some.rows), format!("{:?}", all.rows));
}

proptest! {
    #[test]
    fn power_and_time_are_found_for_instructions_shorter_and_longer_than_the_refresh(
        forward in (2 * MS..80 * MS, 90.0..400.0),
        backward in (2 * MS..80 * MS, 90.0..400.0),
        waits_ns in prop::collection::vec(MS..60 * MS, 3..40),
        refresh_ns in 10 * MS..100 * MS,
    ) {
        let mut played = Played::new(0..60, refresh_ns);
        played.steps(0..60, forward, backward, &waits_ns);
        let recorded = played.finish(60);
        for (row, (length_ns, power_w)) in recorded.rows.iter().zip([forward, backward]) {
            let time_s = length_ns as f64 / 1e9;
            prop_assert!((row.time_mean_s - time_s).abs() < 1e-9 && row.count == 240);
            let energy_j = row.energy_mean_j.unwrap();
            let off = energy_j / (time_s * power_w) - 1.0;
            prop_assert!(off.abs() < 0.01, "{:?} {}", row, power_w);
        }
        let wait = recorded.waits[0];
        prop_assert!((wait.power_w / 60.0 - 1.0).abs() < 0.01, "{:?}", wait);
    }

    #[test]
    fn whatever_a_rank_tells_in_whatever_order_nothing_is_negative_or_grows(
        told in prop::collection::vec((0..4u8, any::<u64>(), any::<u64>(), 0..9u64), 0..300)
    ) {
        let mut digest = Digest::new(2..7, gpu(), Some(50));
        for (what, at_ns, other_ns, step) in told {
            match what {
                0 => digest.take(TapRecord::StepBegan { step, at_ns, astray: false }),
                1 => digest.take(TapRecord::StepEnded { at_ns, astray: step == 3 }),
                2 => digest.take(TapRecord::Ran {
                    unit: FORWARD,
                    began_ns: at_ns,
                    ended_ns: other_ns,
                    asked: Some(Mhz(900)),
                    locked: Some((Mhz(900), other_ns)),
                    astray: false,
                }),
                _ => {
                    let at_ns = digest.reading.at_ns.saturating_add(at_ns % (50 * MS));
                    let energy_j = Some(at_ns as f64);
                    let read_ns = at_ns.saturating_add(other_ns % MS);
                    let reading = CounterReading { at_ns, energy_j, read_ns, ..NO_READING };
                    digest.take(TapRecord::Counter(reading));
                }
            }
        }
        let recorded = digest.finish();
        prop_assert!(recorded.rows.iter().all(|row| row.time_mean_s >= 0.0));
        prop_assert!(recorded.samples.len() <= 50);
        prop_assert!(recorded.samples.iter().all(|sample| sample.began_ns <= sample.ended_ns));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The counter counts whole millijoules and is refreshed every 20 ms, which is known to 30 us;
    /// no instruction takes exactly as long as another.
    #[test]
    fn rows_are_within_half_a_percent_of_time_and_two_of_energy_from_half_a_millisecond_on(
        forward in (MS / 2..30 * MS, 90.0..400.0),
        backward in (MS / 2..30 * MS, 90.0..400.0),
        waits_ns in prop::collection::vec(MS / 3..15 * MS, 20..40),
    ) {
        let steps = 30 * 1000 * MS / (4 * (forward.0 + backward.0 + 15 * MS));
        let mut played = Played::new(0..steps, 20 * MS);
        (played.misplaced_ns, played.uneven) = (30_000, 0.02);
        played.steps(0..steps, forward, backward, &waits_ns);
        let recorded = played.finish(steps);
        for (row, (length_ns, power_w)) in recorded.rows.iter().zip([forward, backward]) {
            let time_s = length_ns as f64 / 1e9;
            prop_assert!((row.time_median_s / time_s - 1.0).abs() < 0.005, "{:?} {}", row, time_s);
            let off = row.energy_median_j.unwrap() / (time_s * power_w) - 1.0;
            prop_assert!(off.abs() < 0.02, "{}: {:?} {}", off, row, power_w);
        }
        let wait = recorded.waits[0];
        prop_assert!((wait.power_w / 60.0 - 1.0).abs() < 0.01, "{:?}", wait);
    }
}
