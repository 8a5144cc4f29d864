//! Plans on GPUs whose driver blocks while it sets a clock: what is predicted is what happens.

use crate::event_by_event::run;
use pfo_planner::{
    ClockPer, Deadline, Delays, Due, Frontier, Instruction, Measurement, Mhz, Options, PerStage,
    Pipeline, Plan, PlannedInstruction, PlannedWait, Policy, PowerByClock, Profile, Replay,
    Schedule, Settings, Spread, Stage, StageUnit, Watts, at_highest_clocks, replay,
};
use proptest::prelude::*;

const P2P: Watts = Watts(80.0);

/// Seconds of a set call and of the whole latency: 8 and 23 ms, as the simulator's driver.
fn call() -> Delays {
    Delays { switch_latency_s: 0.023, set_call_s: 0.008, ..Delays::default() }
}

/// Stages of forwards and backwards that take these seconds at 1400 MHz.
fn profile(stages: &[[f64; 2]]) -> Profile {
    let instructions = [Instruction::Forward, Instruction::Backward];
    let mut rows = Vec::new();
    for (stage, times_s) in (0..).map(Stage).zip(stages) {
        for (instruction, shortest_s) in instructions.into_iter().zip(times_s) {
            for mhz in (700..=1400_u32).step_by(50) {
                let ratio = 1400.0 / f64::from(mhz);
                let time_s = shortest_s * (0.2 + 0.8 * ratio);
                let energy_j = (90.0 + 250.0 / ratio.powi(3)) * time_s;
                rows.push((
                    stage,
                    instruction,
                    Measurement { frequency: Mhz(mhz), time_s, energy_j },
                ));
            }
        }
    }
    Profile::from_measurements(rows).unwrap()
}

fn pipeline(profile: &Profile, microbatches: u32, delays: Delays) -> Pipeline {
    let settings = Settings { delays, ..Settings::default() };
    let schedule = Schedule::OneForwardOneBackward;
    Pipeline::with_settings(profile, schedule, microbatches, &settings).unwrap()
}

fn frontier(profile: &Profile, microbatches: u32, delays: Delays, plans: usize) -> Frontier {
    let options = Options { plans, spread: Spread::Useful };
    Frontier::optimize(&pipeline(profile, microbatches, delays), P2P, options, &|_| {}).unwrap()
}

/// Fails unless the replay of a plan is what happens, event by event.
fn assert_happens(profile: &Profile, plan: &Plan) -> Result<Replay, TestCaseError> {
    let power: PerStage<PowerByClock> = plan.waiting_power().unwrap_or_else(|| P2P.into());
    let replayed = replay(profile, plan, &power).unwrap();
    let step = run(profile, plan, &power);
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * b.abs().max(1e-3);
    prop_assert!(close(replayed.iteration_time_s, step.time_s), "{replayed:?}\n{step:?}");
    prop_assert!(close(replayed.iteration_energy_j, step.energy_j), "{replayed:?}\n{step:?}");
    prop_assert!(close(replayed.off_plan_share, step.off_plan_s / step.busy_s));
    prop_assert_eq!(replayed.clock_changes, step.calls);
    Ok(replayed)
}

/// Any of them may be none, and a call may block for longer than until the clock is in force.
fn delays() -> impl Strategy<Value = Delays> {
    let none_or = |most_s| prop_oneof![1 => Just(0.0), 3 => 0.0..most_s];
    let by_clock = prop::collection::vec((600_u32..1500, 0.0..0.08), 2..5);
    let delays = (none_or(0.08), none_or(0.08), none_or(0.02), prop::option::of(by_clock));
    delays.prop_map(|(switch_latency_s, set_call_s, held_up_s, by_clock)| {
        let by_clock = by_clock.unwrap_or_default().into_iter().map(|(mhz, s)| (Mhz(mhz), s));
        // Who wrote a file may have said less, or more, for all clocks than for each.
        let latency_by_clock = by_clock.collect();
        Delays { switch_latency_s, latency_by_clock, set_call_s, held_up_s, ..Delays::default() }
    })
}

proptest! {
    // Clocks at random are the worst that a driver is asked for: most of them are never set.
    #[test]
    fn a_replay_is_what_happens_event_by_event(
        stages in prop::collection::vec(prop::array::uniform2(0.002_f64..0.06), 1..=4),
        microbatches in 1_u32..6,
        is_gpipe in any::<bool>(),
        clocks in prop::collection::vec(0_u32..15, 1..60),
        delays in delays(),
    ) {
        let profile = profile(&stages);
        let settings = Settings { delays, ..Settings::default() };
        let schedule = if is_gpipe { Schedule::GPipe } else { Schedule::OneForwardOneBackward };
        let pipeline =
            Pipeline::with_settings(&profile, schedule, microbatches, &settings).unwrap();
        let mut plan = Policy::AllMax.outcome(&pipeline, P2P, &|_| {}).unwrap().plans.remove(0);
        let planned = plan.stages.iter_mut().flat_map(|stage| &mut stage.instructions);
        for (planned, clock) in planned.zip(clocks.iter().cycle()) {
            planned.frequency_mhz = Mhz(700 + 50 * clock);
        }
        assert_happens(&profile, &plan)?;
    }


    // Waits get clocks at random, too, wherever they are and however short.
    #[test]
    fn a_replay_with_clocks_for_waits_is_what_happens_event_by_event(
        stages in prop::collection::vec(prop::array::uniform2(0.01_f64..0.2), 2..=4),
        microbatches in 1_u32..6,
        clocks in prop::collection::vec((0_u32..15, prop::option::of(0_u32..15)), 1..60),
        latency_s in 0.0_f64..0.05,
        call_share in 0.0_f64..1.0,
        lowest_w in 20.0_f64..80.0,
    ) {
        let profile = profile(&stages);
        let set_call_s = latency_s * call_share;
        let delays = Delays { switch_latency_s: latency_s, set_call_s, ..Delays::default() };
        let pipeline = pipeline(&profile, microbatches, delays);
        let mut plan = Policy::AllMax.outcome(&pipeline, P2P, &|_| {}).unwrap().plans.remove(0);
        let mut random = clocks.iter().cycle();
        for stage in &mut plan.stages {
            for planned in &mut stage.instructions {
                let (clock, wait) = random.next().unwrap();
                planned.frequency_mhz = Mhz(700 + 50 * clock);
                let PlannedInstruction { instruction, microbatch, chunk, .. } = *planned;
                let before = StageUnit { stage: stage.stage, instruction, microbatch, chunk };
                let wait = wait.map(|clock| Mhz(210 + 50 * clock));
                plan.waits.extend(wait.map(|frequency_mhz| PlannedWait { before, frequency_mhz }));
            }
        }
        let power = |lowest_w| {
            PowerByClock::new([(Mhz(210), Watts(lowest_w)), (Mhz(1400), P2P)]).unwrap()
        };
        plan.p2p_blocking_power_by_mhz = Some(power(lowest_w).into());
        assert_happens(&profile, &plan)?;
        let each = (0..stages.len()).map(|stage| power(lowest_w + 9.0 * stage as f64));
        plan.p2p_blocking_power_by_mhz = Some(PerStage::new(each.collect()).unwrap());
        assert_happens(&profile, &plan)?;
    }

    #[test]
    fn clocks_for_waits_save_energy_and_cost_no_time(
        stages in prop::collection::vec(prop::array::uniform2(0.01_f64..0.2), 2..=4),
        microbatches in 1_u32..6,
        lowest_w in 20.0_f64..100.0,
    ) {
        let profile = profile(&stages);
        let pipeline = pipeline(&profile, microbatches, call());
        let plan = Policy::AllMax.outcome(&pipeline, P2P, &|_| {}).unwrap().plans.remove(0);
        let power = PowerByClock::new([(Mhz(210), Watts(lowest_w)), (Mhz(1400), P2P)]).unwrap();
        let without = replay(&profile, &plan, &power).unwrap();
        let plan = plan.with_waits(&profile, &power).unwrap();
        let replayed = assert_happens(&profile, &plan)?;
        prop_assert_eq!(plan.predicted, Some(replayed.into()));
        prop_assert_eq!(replayed.iteration_time_s, without.iteration_time_s);
        let saved_j = without.iteration_energy_j - replayed.iteration_energy_j;
        prop_assert!(saved_j >= -1e-9, "{} J", saved_j);
        prop_assert_eq!(saved_j > 1e-9, !plan.waits.is_empty());
        prop_assert!(lowest_w < P2P.0 || plan.waits.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn every_plan_of_a_frontier_does_what_it_predicts(
        stages in prop::collection::vec(prop::array::uniform2(0.002_f64..0.04), 2..=4),
        microbatches in 2_u32..5,
    ) {
        let profile = profile(&stages);
        let frontier = frontier(&profile, microbatches, call(), 20);
        for place in 0..frontier.plans().len() {
            let plan = frontier.plan(place).unwrap();
            let replayed = assert_happens(&profile, &plan)?;
            prop_assert_eq!(plan.predicted, Some(replayed.into()));
        }
    }
}

/// Four stages of instructions of 2 to 5 ms.
fn short() -> Profile {
    profile(&[[0.002, 0.004], [0.0022, 0.0044], [0.0019, 0.0038], [0.0025, 0.005]])
}

/// Seconds of a step, at the highest clocks and by a plan, on a driver that takes its time.
fn happening_s(profile: &Profile, plan: &Plan) -> [f64; 2] {
    let late = Plan { delays: call(), ..plan.clone() };
    [at_highest_clocks(profile, &late).unwrap(), late]
        .map(|plan| run(profile, &plan, &P2P.into()).time_s)
}

#[test]
fn plans_for_instructions_shorter_than_the_latency_keep_their_clocks() {
    let profile = short();
    let surprised = frontier(&profile, 12, Delays::default(), 20);
    let fastest = surprised.plan(surprised.pick(Deadline::Fastest).unwrap()).unwrap();
    let [highest_s, surprised_s] = happening_s(&profile, &fastest);
    assert!(surprised_s > 1.05 * highest_s, "{surprised_s} s is no surprise");

    let frontier = frontier(&profile, 12, call(), 80);
    for factor in [1.0, 1.02, 1.05, 1.1] {
        let plan = frontier.plan(frontier.pick(Deadline::Factor(factor)).unwrap()).unwrap();
        let [_, plan_s] = happening_s(&profile, &plan);
        assert!(plan_s <= factor * highest_s * (1.0 + 1e-9), "{factor}: {plan_s} s");
        let replayed = replay(&profile, &plan, P2P).unwrap();
        assert!(replayed.off_plan_share < 0.25, "{factor}: {replayed:?}");
        assert!(10 * replayed.clock_changes < replayed.instructions, "{factor}: {replayed:?}");
    }
    let highest = at_highest_clocks(&profile, &fastest).unwrap();
    let highest_j = replay(&profile, &highest, P2P).unwrap().iteration_energy_j;
    let place = frontier.pick(Deadline::Factor(1.05)).unwrap();
    let saved = 1.0 - frontier.plans().nth(place).unwrap().iteration_energy_j / highest_j;
    assert!(saved > 0.15, "only {saved} saved");
}

#[test]
fn a_change_that_saves_less_than_it_costs_is_not_made() {
    let profile = profile(&[[0.02, 0.04], [0.022, 0.044], [0.019, 0.038], [0.025, 0.05]]);
    let free = Delays { set_call_s: 0.0, ..call() };
    let [free, costly] = [free, call()].map(|delays| {
        let frontier = frontier(&profile, 8, delays, 20);
        let plan = frontier.plan(frontier.pick(Deadline::Fastest).unwrap()).unwrap();
        let late = Plan { delays: call(), ..plan };
        replay(&profile, &late, P2P).unwrap()
    });
    assert!(costly.clock_changes < free.clock_changes, "{free:?}\n{costly:?}");
    assert!(costly.iteration_energy_j < 1.005 * free.iteration_energy_j, "{free:?}\n{costly:?}");
}

#[test]
fn a_frontier_with_clocks_for_waits_is_what_happens_and_no_worse_than_clocks_added_afterwards() {
    let profile = profile(&[[0.05, 0.1], [0.06, 0.12], [0.055, 0.11], [0.07, 0.14]]);
    let pipeline = pipeline(&profile, 6, call());
    let power: PowerByClock = "210:30,1400:80".parse().unwrap();
    let options = Options { plans: 80, spread: Spread::Useful };
    let per = ClockPer::Instruction;
    let with = Frontier::for_waiting(per, &pipeline, &power, options, &|_| {}).unwrap();
    assert_eq!(with.p2p_power(), &P2P.into());
    assert_eq!(with.wait_power(), Some(&PerStage::from(power.clone())));
    for (place, point) in with.plans().enumerate() {
        let plan = with.plan(place).unwrap();
        let replayed = assert_happens(&profile, &plan).unwrap();
        assert_eq!(plan.predicted, Some(replayed.into()));
        assert_eq!(point.iteration_energy_j, replayed.iteration_energy_j);
        assert!(!plan.waits.is_empty());
    }
    let without = frontier(&profile, 6, call(), 40);
    for place in 0..without.plans().len() {
        let added = without.plan(place).unwrap().with_waits(&profile, &power).unwrap();
        let added = added.predicted.unwrap();
        let ours = with.pick(Deadline::Seconds(added.iteration_time_s)).unwrap();
        let ours = with.plan(ours).unwrap().predicted.unwrap();
        // The searches start from what their threads have found, in any order.
        let most_j = 1.01 * added.iteration_energy_j;
        assert!(ours.iteration_energy_j <= most_j, "{ours:?} {added:?}");
    }
}

#[test]
fn where_waiting_draws_the_same_at_every_clock_no_wait_has_one_of_its_own() {
    let profile = profile(&[[0.05, 0.1], [0.06, 0.12]]);
    let pipeline = pipeline(&profile, 3, call());
    let options = Options { plans: 10, spread: Spread::Useful };
    let per = ClockPer::Instruction;
    let flat = Frontier::for_waiting(per, &pipeline, P2P, options, &|_| {}).unwrap();
    assert_eq!(flat.wait_power(), None);
    for (place, point) in flat.plans().enumerate() {
        let plan = flat.plan(place).unwrap();
        assert!(plan.waits.is_empty());
        let replayed = assert_happens(&profile, &plan).unwrap();
        assert_eq!(point.iteration_energy_j, replayed.iteration_energy_j);
    }
    // The searches start from what their threads have found, in any order.
    let fastest_s = |frontier: &Frontier| frontier.points().next().unwrap().iteration_time_s;
    let without = frontier(&profile, 3, call(), 10);
    assert!((fastest_s(&flat) / fastest_s(&without) - 1.0).abs() < 0.01);
}

// Where calls take longer than instructions, hardly any plan is better than its neighbours.
#[test]
fn no_search_from_few_clocks_finds_a_plan_that_saves_much_more() {
    let profile = profile(&[[0.02, 0.04], [0.022, 0.044], [0.019, 0.038], [0.025, 0.05]]);
    let delays = Delays { set_call_s: 0.05, switch_latency_s: 0.057, ..Delays::default() };
    let pipeline = pipeline(&profile, 3, delays);
    let [of_instructions, of_kinds] = [ClockPer::Instruction, ClockPer::Kind].map(|per| {
        Frontier::with_clock_per(per, &pipeline, P2P, Options::default(), &|_| {}).unwrap()
    });
    for factor in [1.01, 1.02, 1.03, 1.05, 1.1] {
        let due = Due::AtMost(factor * of_instructions.seconds(Deadline::Fastest));
        let Ok(start) = of_kinds.plan_for(due) else { continue };
        let mut rounds = 0;
        let goes_on = |_: f64| {
            rounds += 1;
            rounds <= 20
        };
        let searched = of_kinds.polished(start, due, goes_on).unwrap();
        let made = of_instructions.plan_for(due).unwrap();
        let [made_j, searched_j] =
            [made, searched].map(|plan| plan.predicted.unwrap().iteration_energy_j);
        assert!(made_j < 1.005 * searched_j, "{factor}: {made_j} J, {searched_j} J");
    }
}
