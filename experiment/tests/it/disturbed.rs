//! Tunes of jobs that are disturbed, of which no profile is known: what they find, held against the truth.

use pfo_experiment::{Interval, Origin, Terms, TuneError, Verdict};

use crate::world::{Disturbance, World};

const MAX_SLOWDOWN: f64 = 0.01;

fn terms() -> Terms {
    Terms { max_slowdown: MAX_SLOWDOWN, guard: false, ..Terms::default() }
}

fn world(disturbance: Disturbance, seed: u64) -> World {
    World::new((2, 2, 3.0), disturbance, seed)
}

fn all() -> [Disturbance; 6] {
    let quiet = Disturbance::default();
    [
        quiet,
        Disturbance { noise: 0.01, ..quiet },
        Disturbance { wandering: (0.9, 0.01), ..quiet },
        Disturbance { neighbour: (0.05, 15.0, 30.0), ..quiet },
        Disturbance { checkpoint: (50, 1.0), ..quiet },
        Disturbance { refresh_s: 0.5, kind_error: 0.05, ..quiet },
    ]
}

/// Asserts that in 95 of 100 seeds, the stated saving and the stated slowdown hold the truth.
fn hold(disturbance: Disturbance) {
    let mut missed = Vec::new();
    for seed in 0..100 {
        let mut world = world(disturbance, seed);
        let report = world.tuned(terms()).unwrap().report;
        let Some((saving, slowdown)) = world.kept() else { continue };
        assert!(saving > 0.0, "seed {seed} keeps what saves nothing");
        let kept = report.tried.iter().find(|tried| tried.verdict == Verdict::Kept).unwrap();
        let holds =
            |interval: Interval, truth: f64| (interval.low..=interval.high).contains(&truth);
        if !holds(kept.compared.saving, saving) || !holds(kept.compared.slowdown, slowdown) {
            missed.push(seed);
        }
    }
    assert!(missed.len() <= 5, "{missed:?}");
}

#[test]
fn stated_intervals_hold_the_truth_on_a_quiet_machine() {
    hold(all()[0]);
}

#[test]
fn stated_intervals_hold_the_truth_under_noise() {
    hold(all()[1]);
}

#[test]
fn stated_intervals_hold_the_truth_of_steps_that_are_like_those_before() {
    hold(all()[2]);
}

#[test]
fn stated_intervals_hold_the_truth_beside_a_neighbour() {
    hold(all()[3]);
}

#[test]
fn stated_intervals_hold_the_truth_among_checkpoints() {
    hold(all()[4]);
}

#[test]
fn stated_intervals_hold_the_truth_with_slow_counters() {
    hold(all()[5]);
}

#[test]
fn a_plan_that_saves_runs_within_20_steps_and_no_step_is_a_tenth_longer() {
    for disturbance in all() {
        for seed in 0..3 {
            let mut world = world(disturbance, seed);
            let report = world.tuned(terms()).unwrap().report;
            assert!(world.first_plan.is_some_and(|step| step <= 20), "{:?}", world.first_plan);
            assert!(world.longest <= 1.1, "{}", world.longest);
            let origin = report.planned_with.unwrap().profile_origin;
            assert!(matches!(origin, Origin::Learned { .. }), "{origin:?}");
        }
    }
}

#[test]
fn a_job_that_becomes_slower_in_the_middle_is_tuned_all_the_same() {
    for from in [3, 8, 16, 24, 32] {
        let disturbance = Disturbance { jump: (from, 0.2), ..Disturbance::default() };
        let mut world = world(disturbance, from);
        let report = world.tuned(terms()).unwrap().report;
        let (saving, slowdown) = world.kept().unwrap();
        assert!(saving > 0.03 && slowdown <= MAX_SLOWDOWN, "{report:?}");
    }
}

#[test]
fn the_same_answers_make_the_same_tune() {
    let tuned = || {
        let mut world = world(all()[1], 7);
        let tuned = world.tuned(terms()).unwrap();
        (serde_json::to_string(&tuned.report).unwrap(), tuned.plan, world.steps)
    };
    assert_eq!(tuned(), tuned());
}

#[test]
fn a_stored_profile_is_used_and_nothing_is_learned() {
    let mut world = world(Disturbance::default(), 1);
    world.is_known = true;
    let report = world.tuned(terms()).unwrap().report;
    assert_eq!(report.planned_with.unwrap().profile_origin, Origin::Stored);
}

#[test]
fn a_sweep_that_was_asked_for_is_made() {
    let mut world = world(Disturbance::default(), 1);
    let terms = Terms { sweep_steps: 2, ..terms() };
    let report = world.tuned(terms).unwrap().report;
    assert_eq!(report.planned_with.unwrap().profile_origin, Origin::Stored);
}

#[test]
fn a_job_that_ends_in_the_middle_ends_its_tune() {
    for ends_at in [0, 4, 8, 16, 24] {
        let mut world = world(Disturbance::default(), 1);
        world.ends_at = ends_at;
        let error = world.tuned(terms()).unwrap_err();
        assert_eq!(error.to_string(), "job j has ended");
    }
}

#[test]
fn energies_that_are_no_number_are_no_energies() {
    for energy_j in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let mut world = world(Disturbance::default(), 1);
        world.energy = Some(energy_j);
        let error = world.tuned(terms()).unwrap_err();
        assert!(matches!(error, TuneError::NoEnergy { .. }), "{error}");
    }
}
