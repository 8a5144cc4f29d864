//! Pipelines whose stages run on GPUs of several models, which draw differently while they wait.

use std::fs;

use crate::yardstick::judged_by_python;
use pfo_planner::{
    ClockPer, Deadline, Delays, Due, Frontier, Instruction, LowerBound, Measurement, Mhz, Options,
    PerStage, Pipeline, Plan, Policy, PowerByClock, Profile, Schedule, Settings, Spread, Stage,
    Watts, replay,
};
use proptest::prelude::*;
use tempfile::TempDir;

const MICROBATCHES: u32 = 6;
/// What the GPUs of four stages draw while they wait: two models.
const POWERS: [f64; 4] = [140.0, 140.0, 20.0, 20.0];

fn powers(each_w: &[f64]) -> PerStage<Watts> {
    PerStage::new(each_w.iter().copied().map(Watts).collect()).unwrap()
}

/// Stages whose instructions take these seconds at the highest clock, and about 400 W.
fn profile(highest_s: &[f64]) -> Profile {
    let clocks = || (0_u32..9).map(|step| 1400 - 75 * step);
    let kinds = [(Instruction::Forward, 1.0), (Instruction::Backward, 2.0)];
    let rows = (0..).map(Stage).zip(highest_s).flat_map(|(stage, &highest_s)| {
        kinds.into_iter().flat_map(move |(instruction, times)| {
            clocks().map(move |mhz| {
                let slower = (1400.0 / f64::from(mhz)).powf(0.8);
                let time_s = times * highest_s * slower;
                let energy_j = 400.0 * time_s * slower.powf(-2.4);
                (stage, instruction, Measurement { frequency: Mhz(mhz), time_s, energy_j })
            })
        })
    });
    Profile::from_measurements(rows).unwrap()
}

fn four_stages() -> Profile {
    profile(&[0.050, 0.047, 0.055, 0.044])
}

fn pipeline(profile: &Profile) -> Pipeline {
    Pipeline::new(profile, Schedule::OneForwardOneBackward, MICROBATCHES).unwrap()
}

/// What takes as much at the mean of the powers as this profile at those of its stages: each row
/// takes what waiting would draw more on average than on its stage.
fn at_the_mean(profile: &Profile, powers: &PerStage<Watts>) -> Profile {
    let rows = profile.rows().map(|(stage, instruction, row)| {
        let more_w = powers.mean().0 - powers.of(stage).0;
        let energy_j = row.energy_j + more_w * row.time_s;
        (stage, instruction, Measurement { energy_j, ..row })
    });
    Profile::from_measurements(rows).unwrap()
}

fn frontier(profile: &Profile, powers: impl Into<PerStage<Watts>>) -> Frontier {
    let options = Options { plans: 60, spread: Spread::Useful };
    Frontier::optimize(&pipeline(profile), powers, options, &|_| {}).unwrap()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn replay_and_bound_are_those_of_the_mean_with_energies_that_make_up_for_it(
        stages in prop::collection::vec(0.02_f64..0.1, 2..=4),
        each_w in prop::collection::vec(0.0_f64..150.0, 4),
    ) {
        let (profile, powers) = (profile(&stages), powers(&each_w[..stages.len()]));
        let equal = at_the_mean(&profile, &powers);
        let bound = LowerBound::new(&pipeline(&profile), &powers);
        let mean_bound = LowerBound::new(&pipeline(&equal), powers.mean());
        let made = frontier(&profile, &powers);
        for (place, point) in made.plans().enumerate() {
            let plan = made.plan(place).unwrap();
            let replayed = replay(&profile, &plan, &powers).unwrap();
            prop_assert_eq!(plan.predicted, Some(replayed.into()));
            let of_mean = replay(&equal, &plan, powers.mean()).unwrap();
            prop_assert!(close(replayed.iteration_energy_j, of_mean.iteration_energy_j));
            let time_s = point.iteration_time_s;
            prop_assert!((bound.energy_j(time_s) / mean_bound.energy_j(time_s) - 1.0).abs() < 1e-6);
            prop_assert!(replayed.iteration_energy_j >= bound.energy_j(time_s) * (1.0 - 1e-9));
            prop_assert!(replayed.iteration_energy_j <= bound.energy_j(time_s) * 1.05);
        }
    }
}

#[test]
fn a_plan_for_the_mean_of_all_stages_is_no_better_than_one_for_each_and_mostly_worse() {
    let (profile, powers) = (four_stages(), powers(&POWERS));
    let (own, mean) = (frontier(&profile, &powers), frontier(&profile, powers.mean()));
    let fastest_s = own.seconds(Deadline::Fastest);
    let (mut worse, mut all_own_j, mut all_mean_j) = (0, 0.0, 0.0);
    for percent in [1, 2, 4, 6, 8, 10, 14, 18] {
        let due = Due::Waiting(fastest_s * (1.0 + f64::from(percent) / 100.0));
        let until_j = |frontier: &Frontier| {
            let replayed = replay(&profile, &frontier.plan_for(due).unwrap(), &powers).unwrap();
            let wait_s = due.seconds() - replayed.iteration_time_s;
            replayed.iteration_energy_j + powers.total_w(4) * wait_s
        };
        let [own_j, mean_j] = [&own, &mean].map(until_j);
        assert!(own_j <= mean_j * 1.0005, "{percent} %: {own_j} J, {mean_j} J with the mean");
        worse += u32::from(own_j < mean_j);
        (all_own_j, all_mean_j) = (all_own_j + own_j, all_mean_j + mean_j);
        let least_j = own.bound().energy_j(due.seconds());
        assert!(own_j <= 1.01 * least_j, "{percent} %: {own_j} J, at least {least_j} J");
    }
    assert!(worse >= 6 && all_own_j < 0.9998 * all_mean_j, "{worse}: {all_own_j} {all_mean_j}");
}

#[test]
fn a_plan_for_each_stage_and_its_powers_are_read_back() {
    let (profile, powers) = (four_stages(), powers(&POWERS));
    let made = frontier(&profile, &powers);
    let plan = made.plan(3).unwrap();
    let json = plan.to_json().unwrap();
    assert!(json.contains(r#""p2p_blocking_power_w": 80.0"#), "the mean");
    assert!(json.contains(r#""p2p_blocking_power_by_stage_w": [140.0,140.0,20.0,20.0]"#));
    assert_eq!(Plan::from_json(json.as_bytes()).unwrap(), plan);
    let fewer = json.replace("[140.0,140.0,20.0,20.0]", "[140.0,20.0]");
    let message = Plan::from_json(fewer.as_bytes()).unwrap_err().to_string();
    assert!(message.contains("by_stage_w") && message.contains("one for each stage"), "{message}");
    let read = Frontier::from_bytes(&made.to_bytes().unwrap()).unwrap();
    assert_eq!(read.p2p_power(), &powers);
    assert_eq!(read.plan(3).unwrap(), plan);
    let due = Due::Waiting(1.05 * made.seconds(Deadline::Fastest));
    assert_eq!(read.plan_for(due).unwrap(), made.plan_for(due).unwrap());
}

#[test]
fn powers_for_another_number_of_stages_are_refused() {
    let (profile, powers) = (four_stages(), powers(&POWERS[..3]));
    let pipeline = pipeline(&profile);
    let plan = Policy::AllMax.outcome(&pipeline, Watts(80.0), &|_| {}).unwrap().plans.remove(0);
    let refusals = [
        Frontier::optimize(&pipeline, &powers, Options::default(), &|_| {}).err(),
        Policy::AllMax.outcome(&pipeline, &powers, &|_| {}).err(),
        replay(&profile, &plan, &powers).err(),
        Frontier::of_plans(&pipeline, &powers, None, [plan]).err(),
    ];
    for refusal in refusals {
        let message = refusal.expect("it is refused").to_string();
        assert!(message.contains('3') && message.contains("one for each stage"), "{message}");
    }
}

#[test]
fn each_stages_waits_have_the_clock_at_which_its_gpu_draws_least() {
    let profile = four_stages();
    let power: PerStage<PowerByClock> =
        "210:60,1400:140;210:60,1400:140;450:15,1400:40;450:15,1400:40".parse().unwrap();
    let delays = Delays { switch_latency_s: 0.01, set_call_s: 0.002, ..Delays::default() };
    let settings = Settings { delays, ..Settings::default() };
    let schedule = Schedule::OneForwardOneBackward;
    let pipeline = Pipeline::with_settings(&profile, schedule, MICROBATCHES, &settings).unwrap();
    let options = Options { plans: 12, spread: Spread::Useful };
    let per = ClockPer::Instruction;
    let made = Frontier::for_waiting(per, &pipeline, &power, options, &|_| {}).unwrap();
    let read = Frontier::from_bytes(&made.to_bytes().unwrap()).unwrap();
    assert_eq!(read.wait_power(), Some(&power));
    let plan = read.plan(0).unwrap();
    assert_eq!(Plan::from_json(plan.to_json().unwrap().as_bytes()).unwrap(), plan);
    let clocks = |first: bool| {
        let waits = plan.waits.iter().filter(move |wait| (wait.before.stage.0 < 2) == first);
        waits.map(|wait| wait.frequency_mhz).collect::<Vec<Mhz>>()
    };
    assert!(!clocks(true).is_empty() && clocks(true).iter().all(|&clock| clock == Mhz(210)));
    assert!(!clocks(false).is_empty() && clocks(false).iter().all(|&clock| clock == Mhz(450)));
}

// It knows one power of all stages. That of the mean is right over the profile that makes up for it.
#[test]
fn the_python_yardstick_agrees_over_the_profile_that_makes_up_for_the_mean() {
    let (profile, powers) = (four_stages(), powers(&POWERS));
    let directory = TempDir::new().unwrap();
    let [csv, file] = ["equal.csv", "plan.json"].map(|name| directory.path().join(name));
    let mut text = "stage,instruction,frequency,time,energy\n".to_owned();
    for (stage, instruction, row) in at_the_mean(&profile, &powers).rows() {
        let Measurement { frequency, time_s, energy_j } = row;
        text += &format!("{stage},{instruction},{},{time_s},{energy_j}\n", frequency.0);
    }
    fs::write(&csv, text).unwrap();
    let made = frontier(&profile, &powers);
    for place in [0, 7, 20, made.plans().len() - 1] {
        let plan = made.plan(place).unwrap();
        fs::write(&file, plan.to_json().unwrap()).unwrap();
        let Some((time_s, energy_j)) = judged_by_python(&csv, &file) else { return };
        let predicted = plan.predicted.unwrap();
        assert!(close(predicted.iteration_time_s, time_s));
        assert!(close(predicted.iteration_energy_j, energy_j), "{predicted:?}, {energy_j} J");
    }
}
