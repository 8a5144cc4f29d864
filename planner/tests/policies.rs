//! What other systems would run: for every schedule, and on profiles that were measured on real
//! GPUs.

use std::fs::{self, File};
use std::path::PathBuf;

use crate::measured_data::data;
use crate::noisy_profiles::profiles;
use crate::yardstick::judged_by_python;
use pfo_planner::{
    Deadline, Delays, Due, End, Frontier, Generation, Instruction, Lowtime, LowtimePlan, Options,
    Pipeline, PlanError, Policy, Prediction, Profile, Schedule, Settings, Spread, Timeline,
    UnitTime, Watts, replay,
};
use proptest::prelude::*;

const A100_POWER: Watts = Watts(83.64);

fn schedules() -> impl Strategy<Value = Schedule> {
    let named: Vec<_> = Schedule::ALL.into_iter().filter(|&s| s != Schedule::Custom).collect();
    prop::sample::select(named)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_policy_settles_for_every_schedule_and_predicts_its_replay(
        profile in profiles(1..=3, 4),
        schedule in schedules(),
        microbatches in 1_u32..4,
        transfer_time_s in prop_oneof![Just(0.0), 0.001_f64..0.02],
    ) {
        // Megatron's order takes whole rounds of the pipeline.
        // DualPipe needs two for each stage, and pairs of stages.
        let schedule = match schedule {
            Schedule::DualPipe if profile.num_stages() % 2 == 1 => Schedule::DualPipeV,
            schedule => schedule,
        };
        let is_dual = matches!(schedule, Schedule::DualPipe | Schedule::DualPipeV);
        let rounds = microbatches + u32::from(is_dual);
        let microbatches = rounds * u32::from(profile.num_stages());
        let fixed = vec![Instruction::Load, Instruction::OptimizerStep];
        let delays = Delays { transfer_time_s, ..Delays::default() };
        let settings = Settings { delays, fixed, ..Settings::default() };
        let pipeline = Pipeline::with_settings(&profile, schedule, microbatches, &settings);
        // Which pipelines a schedule exists for is not a policy's business.
        let pipeline = pipeline.unwrap();
        for policy in Policy::all() {
            let outcome = match policy.outcome(&pipeline, Watts(75.0), &|_| {}) {
                Err(PlanError::NoFit { .. }) if matches!(policy, Policy::Lowtime(_)) => continue,
                outcome => outcome.unwrap(),
            };
            prop_assert_ne!(outcome.end, End::Bounded);
            for plan in &outcome.plans {
                let replayed = replay(&profile, plan, Watts(75.0)).unwrap();
                let predicted = plan.predicted.unwrap();
                prop_assert!(
                    (predicted.iteration_time_s - replayed.iteration_time_s).abs() < 1e-9,
                    "{policy}"
                );
                prop_assert!(
                    (predicted.iteration_energy_j - replayed.iteration_energy_j).abs() < 1e-6,
                    "{policy}"
                );
                let timeline = Timeline::new(&profile, plan).unwrap();
                prop_assert!((timeline.iteration_time_s - replayed.iteration_time_s).abs() < 1e-9);
                for stage in &timeline.stages {
                    let mut now_s = 0.0;
                    for span in stage {
                        prop_assert!((now_s + span.waited_s - span.start_s).abs() < 1e-9);
                        now_s = span.end_s;
                    }
                }
            }
        }
    }
}

fn a100() -> Option<(PathBuf, Pipeline)> {
    let csv = data("profiles/gpt3-175b-a100.csv")?;
    let profile = Profile::from_csv(File::open(&csv).unwrap()).unwrap();
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 12).unwrap();
    Some((csv, pipeline))
}

#[test]
fn the_python_yardstick_agrees_with_what_policies_are_said_to_take() {
    let Some((csv, pipeline)) = a100() else { return };
    let directory = tempfile::tempdir().unwrap();
    for policy in Policy::all() {
        let outcome = policy.outcome(&pipeline, A100_POWER, &|_| {}).unwrap();
        let plan = &outcome.plans[outcome.chosen];
        let path = directory.path().join("plan.json");
        fs::write(&path, plan.to_json().unwrap()).unwrap();
        let Some((time_s, energy_j)) = judged_by_python(&csv, &path) else { return };
        let predicted = plan.predicted.unwrap();
        assert!((time_s - predicted.iteration_time_s).abs() < 1e-9, "{policy}");
        assert!((energy_j - predicted.iteration_energy_j).abs() < 1e-9 * energy_j, "{policy}");
    }
}

#[test]
fn ours_take_less_energy_than_every_policy_in_its_own_time() {
    let Some((_, pipeline)) = a100() else { return };
    let options = Options { plans: 400, spread: Spread::Useful };
    let frontier = Frontier::optimize(&pipeline, A100_POWER, options, &|_| {}).unwrap();
    for policy in Policy::all() {
        for plan in policy.outcome(&pipeline, A100_POWER, &|_| {}).unwrap().plans {
            let theirs = plan.predicted.unwrap();
            // A hair more: sums of the same times in another order.
            let deadline = Deadline::Seconds(theirs.iteration_time_s * (1.0 + 1e-12));
            let ours = frontier.plan(frontier.pick(deadline).unwrap()).unwrap();
            let ours_j = ours.predicted.unwrap().iteration_energy_j;
            assert!(ours_j < theirs.iteration_energy_j, "{policy}: {ours_j} J, {theirs:?}");
        }
    }
}

#[test]
fn whoever_waits_takes_less_energy_with_ours_than_with_any_plan_of_another() {
    let Some((_, pipeline)) = a100() else { return };
    let frontier = Frontier::optimize(&pipeline, A100_POWER, Options::default(), &|_| {}).unwrap();
    let outcome = |policy: Policy| policy.outcome(&pipeline, A100_POWER, &|_| {});
    let theirs: Vec<Prediction> = Policy::all()
        .into_iter()
        .flat_map(|policy| outcome(policy).unwrap().plans)
        .map(|plan| plan.predicted.unwrap())
        .collect();
    let fastest_s = frontier.seconds(Deadline::Fastest);
    for percent in (0..=60).step_by(3) {
        let until_s = fastest_s * (1.0 + f64::from(percent) / 100.0);
        let until_j = |plan: &Prediction| {
            plan.iteration_energy_j + 8.0 * A100_POWER.0 * (until_s - plan.iteration_time_s)
        };
        let ours = frontier.plan_for(Due::Waiting(until_s)).unwrap().predicted.unwrap();
        let in_time = theirs.iter().filter(|plan| plan.iteration_time_s <= until_s);
        let theirs_j = in_time.map(until_j).fold(f64::INFINITY, f64::min);
        assert!(until_j(&ours) < theirs_j, "{until_s} s: {} J, {theirs_j} J", until_j(&ours));
    }
}

#[test]
fn a_frontier_goes_through_plan_files_of_either_generation_and_comes_back_as_it_was() {
    let Some((csv, pipeline)) = a100() else { return };
    let options = Options { plans: 60, spread: Spread::Useful };
    let frontier = Frontier::optimize(&pipeline, A100_POWER, options, &|_| {}).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for generation in [Generation::Clocks, Generation::Named] {
        let plans = (0..frontier.plans().len()).map(|place| {
            let text = frontier.plan(place).unwrap().to_lowtime(generation);
            LowtimePlan::from_bytes(text.as_bytes()).unwrap().plan(&pipeline).unwrap()
        });
        let read = Frontier::of_plans(&pipeline, A100_POWER, None, plans).unwrap();
        assert!(read.plans().eq(frontier.plans()));
        let path = directory.path().join("plan.json");
        let last = read.plan(read.plans().len() - 1).unwrap();
        fs::write(&path, last.to_json().unwrap()).unwrap();
        let Some((time_s, energy_j)) = judged_by_python(&csv, &path) else { return };
        let point = frontier.plans().last().unwrap();
        assert!((time_s - point.iteration_time_s).abs() < 1e-9);
        assert!((energy_j - point.iteration_energy_j).abs() < 1e-9 * energy_j);
    }
}

/// What lowtime claims of a profile, and what it is said here to claim; slowest first.
fn lowtimes_claims(
    gpu: &str,
    p2p_power: Watts,
    unit_s: f64,
    microbatches: u32,
) -> Option<[Vec<Prediction>; 2]> {
    let csv = data(&format!("profiles/gpt3-175b-{gpu}.csv"))?;
    let theirs = data(&format!("frontiers/lowtime-gpt3-175b-{gpu}-8x{microbatches}.csv"))?;
    let profile = Profile::from_csv(File::open(csv).unwrap()).unwrap();
    let schedule = Schedule::OneForwardOneBackward;
    let pipeline = Pipeline::new(&profile, schedule, microbatches).unwrap();
    let unit_time = UnitTime::from_seconds(unit_s).unwrap();
    let lowtime = Policy::Lowtime(Lowtime { unit_time, ..Lowtime::default() });
    let ours = lowtime.outcome(&pipeline, p2p_power, &|_| {}).unwrap().claims;
    let claim = |line: &str| {
        let (time, energy) = line.split_once(',').unwrap();
        let (iteration_time_s, iteration_energy_j) =
            (time.parse().unwrap(), energy.parse().unwrap());
        Prediction { iteration_time_s, iteration_energy_j }
    };
    let theirs = fs::read_to_string(theirs).unwrap();
    Some([theirs.lines().skip(1).map(claim).collect(), ours])
}

#[test]
fn what_lowtime_claims_is_claimed_here_too() {
    for (gpu, p2p_power, unit_s, microbatches) in [
        ("a100", A100_POWER, 0.001, 12),
        ("a100", A100_POWER, 0.001, 24),
        ("a100", A100_POWER, 0.001, 48),
        ("a40", Watts(70.38), 0.0001, 12),
    ] {
        let claims = lowtimes_claims(gpu, p2p_power, unit_s, microbatches);
        let Some([theirs, ours]) = claims else { return };
        assert_eq!(ours.len(), theirs.len(), "{gpu} 8x{microbatches}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let early_s = ours.iteration_time_s - theirs.iteration_time_s;
            assert!(early_s.abs() < 1e-9, "{gpu} {theirs:?}: {early_s} s");
            let excess = ours.iteration_energy_j / theirs.iteration_energy_j - 1.0;
            assert!(excess.abs() < 1e-6, "{gpu} {theirs:?}: {excess}");
        }
    }
}
