//! A listener to the progress of a plan can end it: soon, at any point of the work.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use pfo_planner::{
    ClockPer, Delays, Due, Frontier, Instruction, Measurement, Mhz, Options, Pipeline,
    PowerByClock, Profile, Schedule, Settings, Spread, Stage, Watts,
};

const P2P_POWER: Watts = Watts(80.0);
const STAGES: u16 = 3;
const OPTIONS: Options = Options { plans: 12, spread: Spread::Useful };

type Listener<'a> = &'a (dyn Fn(f64) + Sync);

fn profile() -> Profile {
    let clocks = || (0_u32..5).map(|step| 1400 - 80 * step);
    let kinds = [(Instruction::Forward, 0.01), (Instruction::Backward, 0.02)];
    let rows = (0..STAGES).flat_map(|stage| {
        kinds.into_iter().flat_map(move |(instruction, time_s)| {
            clocks().map(move |mhz| {
                let slower = 1400.0 / f64::from(mhz);
                let time_s = (1.0 + 0.02 * f64::from(stage)) * time_s * slower;
                let energy_j = 400.0 * time_s * slower.powf(-2.6);
                (Stage(stage), instruction, Measurement { frequency: Mhz(mhz), time_s, energy_j })
            })
        })
    });
    Profile::from_measurements(rows).unwrap()
}

fn pipeline(switch_latency_s: f64) -> Pipeline {
    let delays = Delays { switch_latency_s, ..Delays::default() };
    let settings = Settings { delays, ..Settings::default() };
    Pipeline::with_settings(&profile(), Schedule::OneForwardOneBackward, 5, &settings).unwrap()
}

/// How often some work asks whether it shall go on.
fn calls(work: &dyn Fn(Listener<'_>)) -> usize {
    let calls = AtomicUsize::new(0);
    work(&|done| {
        assert!((0.0..=1.0).contains(&done), "{done}");
        calls.fetch_add(1, Ordering::Relaxed);
    });
    calls.into_inner()
}

/// How often it asks if it shall not from the given time on.
fn calls_until_ended(work: &dyn Fn(Listener<'_>), ended_at: usize) -> usize {
    let calls = AtomicUsize::new(0);
    let listener = |_| {
        if calls.fetch_add(1, Ordering::Relaxed) + 1 >= ended_at {
            resume_unwind(Box::new("ended"));
        }
    };
    let ended = catch_unwind(AssertUnwindSafe(|| work(&listener)));
    let why = ended.expect_err("it ends");
    assert_eq!(why.downcast_ref(), Some(&"ended"));
    calls.into_inner()
}

/// Checks that some work asks at least this often, and ends wherever it is ended, each thread at its
/// next question.
fn ends_soon(name: &str, at_least: usize, work: &dyn Fn(Listener<'_>)) {
    const PLACES: usize = 12;
    let all = calls(work);
    assert!(all >= at_least, "{name} asks {all} times only");
    let threads = available_parallelism().map_or(1, usize::from);
    for place in 0..PLACES {
        let ended_at = 1 + place * (all - 1) / PLACES;
        let until_ended = calls_until_ended(work, ended_at);
        assert!(until_ended < ended_at + threads, "{name}: {until_ended} for {ended_at} of {all}");
    }
}

#[test]
fn every_way_to_make_a_frontier_can_be_ended_anywhere() {
    let (prompt, late) = (pipeline(0.0), pipeline(0.015));
    // Each kind of each plan that time is redistributed in, and each plan that is replayed.
    let kinds = 2 * usize::from(STAGES);
    ends_soon("prompt", 10 * kinds, &|listener| {
        Frontier::optimize(&prompt, P2P_POWER, OPTIONS, listener).unwrap();
    });
    ends_soon("late", 10 * kinds, &|listener| {
        Frontier::optimize(&late, P2P_POWER, OPTIONS, listener).unwrap();
    });
    ends_soon("by kind", 5 * kinds, &|listener| {
        Frontier::with_clock_per(ClockPer::Kind, &prompt, P2P_POWER, OPTIONS, listener).unwrap();
    });
    let power: PowerByClock = "210:30,1400:80".parse().unwrap();
    ends_soon("waiting", 10 * kinds, &|listener| {
        let per = ClockPer::Instruction;
        Frontier::for_waiting(per, &prompt, &power, OPTIONS, listener).unwrap();
    });
}

#[test]
fn a_plan_for_a_deadline_and_the_bound_can_be_ended_anywhere() {
    for (name, pipeline) in [("prompt", pipeline(0.0)), ("late", pipeline(0.015))] {
        let frontier = Frontier::optimize(&pipeline, P2P_POWER, OPTIONS, &|_| {}).unwrap();
        let points: Vec<_> = frontier.points().collect();
        let between_s = (points[2].iteration_time_s + points[3].iteration_time_s) / 2.0;
        let due = Due::AtMost(between_s);
        // The plans that it is made from, and the kinds that time is redistributed between.
        let at_least = if name == "late" { 4 } else { 8 + 2 * usize::from(STAGES) };
        ends_soon(&format!("{name} plan"), at_least, &|listener| {
            frontier.plan_for_and_say(due, listener).unwrap();
        });
        ends_soon(&format!("{name} bound"), frontier.bound().pieces(), &|listener| {
            frontier.bound_and_say(listener);
        });
        let made = frontier.plan_for_and_say(due, &|_| {}).unwrap();
        assert_eq!(frontier.plan_for(due).unwrap(), made);
    }
}
