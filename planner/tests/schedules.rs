//! What must hold for every schedule: checked on small random profiles, however noisy.

use std::collections::HashSet;

use crate::noisy_profiles::profiles;
use pfo_planner::{
    Deadline, Delays, Frontier, Instruction, LowerBound, Options, Pipeline, Plan,
    PlannedInstruction, Profile, Schedule, Settings, Spread, Watts, replay,
};
use proptest::prelude::*;

const P2P_POWER: Watts = Watts(75.0);
/// Of sums of a few dozen energies.
const ROUNDING_J: f64 = 1e-6;

fn schedules() -> impl Strategy<Value = Schedule> {
    let named: Vec<_> = Schedule::ALL.into_iter().filter(|&s| s != Schedule::Custom).collect();
    prop::sample::select(named)
}

fn settings() -> impl Strategy<Value = Settings> {
    let fixed =
        prop::sample::subsequence(vec![Instruction::Load, Instruction::OptimizerStep], 0..=2);
    let transfer = prop_oneof![Just(0.0), 0.001_f64..0.05];
    let limits = prop_oneof![Just(vec![]), (0_u32..3).prop_map(|limit| vec![limit])];
    (limits, 2_u16..=3, any::<bool>(), transfer, fixed).prop_map(
        |(memory_limits, chunks, extra_warm_up, transfer_time_s, fixed)| Settings {
            memory_limits,
            chunks,
            microbatch_group: None,
            extra_warm_up,
            delays: Delays { transfer_time_s, ..Delays::default() },
            fixed,
        },
    )
}

/// A pipeline of `groups` times as many microbatches as interleaving requires. DualPipe requires two
/// groups, and pairs of stages.
fn pipeline(profile: &Profile, schedule: Schedule, groups: u32, settings: &Settings) -> Pipeline {
    let schedule = match schedule {
        Schedule::DualPipe if profile.num_stages() % 2 == 1 => Schedule::DualPipeV,
        schedule => schedule,
    };
    let is_dual = matches!(schedule, Schedule::DualPipe | Schedule::DualPipeV);
    let groups = groups + u32::from(is_dual);
    let microbatches = groups * u32::from(profile.num_stages());
    Pipeline::with_settings(profile, schedule, microbatches, settings).unwrap()
}

fn every_instruction_runs_once(plan: &Plan, profile: &Profile) {
    for stage in &plan.stages {
        let units: HashSet<_> = stage.instructions.iter().map(PlannedInstruction::unit).collect();
        assert_eq!(units.len(), stage.instructions.len());
        for planned in &stage.instructions {
            let row = profile.at(stage.stage, planned.instruction, planned.frequency_mhz);
            assert!(row.is_some());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_schedule_keeps_its_promises(
        profile in profiles(1..=4, 4), schedule in schedules(), groups in 1_u32..3,
        settings in settings(), factor in 1.0_f64..1.5,
    ) {
        let pipeline = pipeline(&profile, schedule, groups, &settings);
        let options = Options { plans: 12, spread: Spread::Even };
        let frontier = Frontier::optimize(&pipeline, P2P_POWER, options, &|_| {}).unwrap();
        let bound = LowerBound::new(&pipeline, P2P_POWER);
        for (place, point) in frontier.plans().enumerate() {
            let plan = frontier.plan(place).unwrap();
            every_instruction_runs_once(&plan, &profile);
            let least_j = bound.energy_j(point.iteration_time_s);
            prop_assert!(point.iteration_energy_j > least_j - ROUNDING_J, "{point:?} {least_j}");

            let read = Plan::from_json(plan.to_json().unwrap().as_bytes()).unwrap();
            let replayed = replay(&profile, &read, P2P_POWER).unwrap();
            prop_assert!((replayed.iteration_time_s - point.iteration_time_s).abs() < 1e-9);
            prop_assert!((replayed.iteration_energy_j - point.iteration_energy_j).abs() < 1e-9);
            prop_assert_eq!(read.num_instructions(), replayed.instructions);
        }
        let fastest_s = frontier.points().next().unwrap().iteration_time_s;
        prop_assert!((fastest_s - bound.fastest_s()).abs() < 1e-6);
        let place = frontier.pick(Deadline::Factor(factor)).unwrap();
        let picked = frontier.plans().nth(place).unwrap();
        prop_assert!(picked.iteration_time_s <= factor * fastest_s + 1e-9);

        let file = Frontier::from_bytes(&frontier.to_bytes().unwrap()).unwrap();
        prop_assert_eq!(file.plan(place).unwrap(), frontier.plan(place).unwrap());
    }
}
