use pfo_protocol::{Instruction, LeftOut, Stage, TrialResult, TrialStep};
use proptest::prelude::*;

use super::*;
use crate::sweep::replicas::tests::of_replicas;
use crate::sweep::shape;
use crate::sweep::swept::tests::trial;

pub(crate) fn record(max_slowdown: Option<f64>, clocks: u32) -> SweepRecord {
    let settings = SweepSettings {
        steps: 4,
        settling_steps: 1,
        stride_mhz: Mhz(1),
        min_mhz: Mhz(0),
        max_slowdown,
    };
    SweepRecord::new(
        JobKey { uid: Uid(7), name: "team/j".parse().unwrap() },
        Uid(7),
        "gpt".parse().unwrap(),
        settings,
        shape::example(),
        (0..clocks).map(|rung| Mhz(1400 - 10 * rung)).collect(),
    )
}

/// What a job with a valley of energy takes.
fn measure(next: Next, valley_mhz: u32) -> RecordedTrial {
    let mhz = match next {
        Next::Clock(mhz) => mhz.0,
        _ => 1400,
    };
    let energy_j = 10.0 + f64::from(mhz.abs_diff(valley_mhz));
    let time_s = 1400.0 / f64::from(mhz);
    trial(time_s, &[&[(Instruction::Forward, time_s / 2.0, Some(energy_j))]])
}

fn through_json(record: &SweepRecord) -> SweepRecord {
    serde_json::from_slice(&serde_json::to_vec(record).unwrap()).unwrap()
}

/// Everything that a sweep measures, and why it ends; `restart` is done before each trial.
fn sweep(
    mut record: SweepRecord,
    valley_mhz: u32,
    restart: impl Fn(&SweepRecord) -> SweepRecord,
) -> (Vec<Next>, SweepEnd) {
    let mut ran = Vec::new();
    loop {
        record = restart(&record);
        match record.next() {
            Next::End(end) => return (ran, end),
            next => {
                record.take(&measure(next, valley_mhz)).unwrap();
                ran.push(next);
            }
        }
    }
}

fn clock(next: &Next) -> u32 {
    match next {
        Next::Clock(mhz) => mhz.0,
        _ => u32::MAX,
    }
}

#[test]
fn default_clocks_are_measured_first_where_a_slowdown_is_to_be_kept() {
    let (ran, end) = sweep(record(Some(0.05), 40), 0, Clone::clone);
    assert_eq!((ran[0], end), (Next::DefaultClocks, SweepEnd::TooSlow));
    // 1400 / 1.05 = 1333
    assert_eq!(ran.last(), Some(&Next::Clock(Mhz(1330))));
}

#[test]
fn without_a_rise_the_lowest_clock_is_the_last() {
    let (ran, end) = sweep(record(None, 12), 0, Clone::clone);
    assert_eq!((ran.len(), end), (12, SweepEnd::LowestClock));
}

#[test]
fn a_trial_without_any_energy_is_refused_and_changes_nothing() {
    let mut record = record(None, 3);
    let before = record.clone();
    let trial = trial(1.0, &[&[(Instruction::Forward, 0.5, None)]]);
    (0..MOST_REPEATS).for_each(|_| record.take(&trial).unwrap());
    assert!(record.take(&trial).unwrap_err().contains("1400 MHz"));
    assert_eq!(record, before);
}

/// A trial of one rank whose GPU really had this clock, if forwards were measured.
fn at_clock(observed_mhz: f64, forward_j: Option<f64>, left_out: LeftOut) -> RecordedTrial {
    let mut trial = trial(1.0, &[&[(Instruction::Forward, 0.5, forward_j)]]);
    let row = &mut trial.ranks[0].rows[0];
    (row.observed_mhz, row.left_out) = (Some(observed_mhz), left_out);
    row.throttled = forward_j.map(|_| 1.0);
    row.count = if forward_j.is_some() { 4 } else { 0 };
    trial
}

#[test]
fn clocks_above_the_one_that_a_power_cap_holds_are_measured_once() {
    let mut record = record(None, 40);
    record.take(&at_clock(1307.0, Some(9.0), LeftOut::default())).unwrap();
    // The lowest clock that leads to 1307 MHz.
    assert_eq!(record.next(), Next::Clock(Mhz(1310)));
    record.take(&at_clock(1307.0, Some(9.0), LeftOut::default())).unwrap();
    assert_eq!(record.next(), Next::Clock(Mhz(1300)));
    record.take(&at_clock(1300.0, Some(8.9), LeftOut::default())).unwrap();
    assert_eq!(record.next(), Next::Clock(Mhz(1290)));
    let remark = through_json(&record).status(SweepState::Running).remark.unwrap();
    assert_eq!(remark, "power limits hold the GPUs at 1307 MHz where 1400 MHz was asked for");
    let csv = record.csv();
    assert!(csv.lines().nth(1).unwrap().ends_with(",1307,1"), "{csv}");
    let profile = pfo_planner::Profile::from_csv(csv.as_bytes()).unwrap();
    assert_eq!(profile.rows().count(), 2, "1400 MHz is no faster than 1310 MHz");
}

#[test]
fn the_clock_above_the_one_that_a_power_cap_holds_is_measured_though_a_stride_passes_it_by() {
    let after = |clocks: [u32; 3], observed_mhz| {
        let mut record = record(None, 40);
        let allowed = std::mem::replace(&mut record.clocks, clocks.map(Mhz).to_vec());
        let mut record = record.among(allowed.into_iter().collect());
        record.take(&at_clock(observed_mhz, Some(9.0), LeftOut::default())).unwrap();
        through_json(&record)
    };
    let mut capped = after([1400, 1250, 1100], 1310.5);
    assert_eq!(capped.next(), Next::Clock(Mhz(1320)));
    capped.take(&at_clock(1310.0, Some(9.0), LeftOut::default())).unwrap();
    assert_eq!(capped.next(), Next::Clock(Mhz(1250)));
    let profile = pfo_planner::Profile::from_csv(capped.csv().as_bytes()).unwrap();
    let clocks: Vec<_> = profile.rows().map(|(.., row)| row.frequency).collect();
    assert_eq!(clocks, [Mhz(1320)], "1400 MHz is no faster");
    assert_eq!(after([1400, 1360, 1300], 1310.0).next(), Next::Clock(Mhz(1320)), "below 1360 MHz");
    assert_eq!(after([1400, 1310, 1220], 1310.5).next(), Next::Clock(Mhz(1310)), "swept anyway");
    assert_eq!(after([1400, 1250, 1100], 1390.0).next(), Next::Clock(Mhz(1250)), "a bin beside");
}

#[test]
fn a_clock_that_gpus_do_not_have_for_no_reason_is_skipped_at_once_and_named() {
    let elsewhere = LeftOut { other_clock: 4, ..LeftOut::default() };
    let mut record = record(None, 3);
    for clock in [1400, 1390] {
        assert_eq!(record.next(), Next::Clock(Mhz(clock)));
        record.take(&at_clock(1200.0, None, elsewhere)).unwrap();
    }
    assert!(!record.has_measured());
    let remark = through_json(&record).status(SweepState::Running).remark.unwrap();
    for words in ["1390 MHz is left out", "rank 0 runs at 1200 MHz", "no reason"] {
        assert!(remark.contains(words), "no {words:?} in {remark:?}");
    }
    let before = record.clone();
    let nothing = record.take(&at_clock(1200.0, None, elsewhere)).unwrap_err();
    assert!(nothing.contains("1380 MHz: the GPU of rank 0 runs at 1200 MHz"), "{nothing}");
    assert_eq!(record, before);
    record.take(&at_clock(1380.0, Some(9.0), LeftOut::default())).unwrap();
    assert_eq!(record.next(), Next::End(SweepEnd::LowestClock));
}

#[test]
fn a_trial_in_which_heat_left_everything_out_says_so() {
    let hot = LeftOut { throttled: 4, settling: 1, ..LeftOut::default() };
    let mut record = record(None, 3);
    let trial = at_clock(900.0, None, hot);
    (0..MOST_REPEATS).for_each(|_| record.take(&trial).unwrap());
    let error = record.take(&trial).unwrap_err();
    assert!(error.contains("heat") && error.contains("rank 0"), "{error}");
}

#[test]
fn a_clock_at_which_something_is_missing_is_measured_again_but_not_for_ever() {
    let ran = |load_j, forward_j| {
        trial(1.0, &[&[(Instruction::Load, 0.1, load_j), (Instruction::Forward, 0.5, forward_j)]])
    };
    let mut record = record(Some(0.5), 9);
    let mut take = |trial: &RecordedTrial| {
        record.take(trial).unwrap();
        record.status(SweepState::Running).measured
    };
    let measured =
        [(Some(1.0), Some(9.0)), (None, Some(9.0)), (None, Some(9.0)), (None, Some(9.0))]
            .map(|(load_j, forward_j)| take(&ran(load_j, forward_j)));
    assert_eq!(measured, [0, 0, 0, 1], "default clocks, then one that never has its load");
    // It was not measured at the first clock either.
    assert_eq!(take(&ran(None, Some(8.0))), 2);
    assert_eq!([take(&ran(None, None)), take(&ran(None, Some(7.0)))], [2, 3]);
    let whole = ran(Some(1.0), None);
    let steps = vec![TrialStep { time_s: 9.0, energy_j: None }];
    let slow = RecordedTrial { trial: TrialResult { steps, ..whole.trial }, ..whole };
    assert!(record.take(&slow).is_err(), "what is too slow is not tried again");
}

#[test]
fn what_is_too_short_for_the_counter_is_measured_for_more_steps_and_from_then_on() {
    let ran = |step_s, error: f64| {
        let mut trial = trial(step_s, &[&[(Instruction::Forward, 0.001, Some(1.0))]]);
        // Of four.
        trial.ranks[0].rows[0].energy_sd_j = Some(2.0 * error);
        trial
    };
    let mut record = record(None, 9);
    let mut take = |trial: RecordedTrial| {
        record.take(&trial).unwrap();
        (record.status(SweepState::Running).measured, record.length().steps)
    };
    assert_eq!(take(ran(0.1, 0.020)), (0, 96), "sixteen times as many, and some to spare");
    assert_eq!(take(ran(0.1, 0.005)), (1, 144));
    assert_eq!(take(ran(0.1, 0.001)), (2, 8), "less is enough");
    assert_eq!(take(ran(0.1, 0.0)), (3, 4), "but not less than asked for");
    assert_eq!(take(ran(5.0, 0.1)), (4, 4), "that would take too long");
    assert_eq!(take(ran(0.1, 0.1)), (4, 200));
    assert_eq!(take(ran(0.1, 0.1)), (5, 200), "as long as it may");
}

#[test]
fn a_profile_does_not_grow_without_end() {
    let mut record = record(None, 40);
    let rows = vec![(Instruction::Forward, 0.5, Some(1.0)); 10_000];
    let took: Vec<_> = (0..4).map(|_| record.take(&trial(1.0, &[&rows])).is_ok()).collect();
    assert_eq!(took, [true, true, true, false]);
}

#[test]
fn a_status_tells_how_far_it_is_and_how_long_it_takes_at_most() {
    let mut record = record(None, 3);
    assert_eq!(record.status(SweepState::Running).remaining_s, None);
    record.take(&measure(record.next(), 0)).unwrap();
    let status = record.status(SweepState::Running);
    assert_eq!((status.measured, status.clocks, status.mhz), (1, 3, Some(Mhz(1390))));
    let left_s = 5.0 * (1400.0 / 1390.0 + 1400.0 / 1380.0);
    assert!((status.remaining_s.unwrap() - left_s).abs() < 1e-9, "{status:?}");
    let ended = record.status(SweepState::Ended(SweepEnd::Stopped));
    assert_eq!((ended.mhz, ended.remaining_s), (None, None));
}

/// What four replicas of two stages take, of which each has a level of its own.
fn measure_replicas(run: &TrialRun) -> RecordedTrial {
    let levels = [(1.0, 1.0), (1.04, 0.97), (0.98, 1.05), (1.02, 1.01)];
    let clocks = match run {
        TrialRun::Uniform(mhz) => vec![*mhz],
        TrialRun::Replicas(clocks) => clocks.clone(),
        other => panic!("{other:?}"),
    };
    let each = levels.iter().zip(clocks.iter().cycle()).map(|((times, energies), mhz)| {
        let slower = 1400.0 / f64::from(mhz.0);
        (times * slower, energies * (0.5 + 0.5 / slower))
    });
    let slowest = clocks.iter().map(|mhz| 1400.0 / f64::from(mhz.0)).fold(0.0, f64::max);
    let mut trial = of_replicas(&each.collect::<Vec<_>>());
    trial.trial.steps = vec![TrialStep { time_s: slowest, energy_j: None }];
    trial
}

#[test]
fn four_replicas_measure_in_a_quarter_of_the_trials_what_their_mean_takes() {
    let mut record = record(None, 25).over(4);
    let mut runs = Vec::new();
    while let Some(run) = record.run() {
        record.take(&measure_replicas(&run)).unwrap();
        record = through_json(&record);
        runs.push(run);
    }
    assert_eq!((runs.len(), record.measured.len()), (1 + 24 / 4, 25), "{runs:?}");
    assert_eq!(runs[0], TrialRun::Uniform(Mhz(1400)));
    assert_ne!(runs[1], runs[2]);
    let profile = pfo_planner::Profile::from_csv(record.csv().as_bytes()).unwrap();
    for mhz in (0..25).map(|rung| 1400 - 10 * rung) {
        let slower = 1400.0 / f64::from(mhz);
        let row = profile.at(Stage(1), Instruction::Forward, Mhz(mhz)).unwrap();
        let (time_s, energy_j) = (2.0 * 1.01 * slower, 20.0 * 1.0075 * (0.5 + 0.5 / slower));
        assert!((row.time_s / time_s - 1.0).abs() < 1e-9, "{mhz}: {row:?}");
        assert!((row.energy_j / energy_j - 1.0).abs() < 1e-9, "{mhz}: {row:?}");
    }
}

#[test]
fn no_round_of_several_clocks_is_slower_than_allowed() {
    let mut record = record(Some(0.1), 60).over(4);
    record.take(&measure_replicas(&TrialRun::Uniform(Mhz(1400)))).unwrap();
    while let Some(run) = record.run() {
        let trial = measure_replicas(&run);
        let is_within = trial.trial.steps[0].time_s <= 1.1;
        assert!(is_within || matches!(run, TrialRun::Uniform(_)), "{run:?}");
        record.take(&trial).unwrap();
    }
    assert_eq!(record.next(), Next::End(SweepEnd::TooSlow));
    assert!(record.measured.iter().rev().skip(1).all(|clock| clock.step_s <= 1.1));
}

#[test]
fn replicas_that_wait_inside_of_instructions_measure_one_clock_at_a_time_from_then_on() {
    let mut record = record(None, 9).over(4);
    record.take(&measure_replicas(&record.run().unwrap())).unwrap();
    let run = record.run().unwrap();
    let mut trial = measure_replicas(&run);
    // The replica at the highest clock of the round.
    let TrialRun::Replicas(clocks) = &run else { panic!("{run:?}") };
    let first = clocks.iter().position(|mhz| *mhz == Mhz(1390)).unwrap();
    trial.ranks[2 * first].rows[0].time_mean_s *= 1.2;
    record.take(&trial).unwrap();
    record = through_json(&record);
    assert_eq!(record.run(), Some(TrialRun::Uniform(Mhz(1390))), "nothing of it is kept");
    let remark = record.status(SweepState::Running).remark.unwrap();
    assert!(remark.contains("one clock at a time"), "{remark}");
}

proptest! {
    #[test]
    fn a_sweep_falls_keeps_the_slowdown_and_is_the_same_through_any_number_of_restarts(
        valley_mhz in 800u32..1400,
        clocks in 1u32..50,
        max_slowdown in prop::option::of(0.0f64..1.0),
    ) {
        let (ran, end) = sweep(record(max_slowdown, clocks), valley_mhz, Clone::clone);
        prop_assert!(ran.iter().map(clock).rev().is_sorted());
        if let (Some(slowdown), Some((_, kept))) = (max_slowdown, ran.split_last()) {
            let slowest = kept.iter().skip(1).map(|next| 1400.0 / f64::from(clock(next)));
            prop_assert!(slowest.fold(0.0, f64::max) <= 1.0 + slowdown);
        }
        let again = sweep(record(max_slowdown, clocks), valley_mhz, through_json);
        prop_assert_eq!((ran, end), again);
    }
}
