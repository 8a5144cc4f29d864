//! Answers of what-ifs, held against planning anew.

use std::fs::File;

use crate::measured_data::data;
use pfo_planner::{
    Change, Condition, Deadline, Due, Frontier, Instruction, Options, Pipeline, Plan, Profile,
    Schedule, Stage, Watts, replay,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

const P2P_POWER: Watts = Watts(83.64);
const MICROBATCHES: u32 = 12;

/// How many random changes are held against planning anew; 10000 takes half an hour.
const CHANGES: &str = "PFO_CHANGES";

/// The most that an answer takes more than a plan that is made anew, as a share, and on average.
const WORSE: f64 = 1.5e-3;
const WORSE_ON_AVERAGE: f64 = 4e-5;

fn profile() -> Option<Profile> {
    let csv = data("profiles/gpt3-175b-a100.csv")?;
    Some(Profile::from_csv(File::open(csv).unwrap()).unwrap())
}

fn pipeline(profile: &Profile, microbatches: u32) -> Pipeline {
    Pipeline::new(profile, Schedule::OneForwardOneBackward, microbatches).unwrap()
}

/// One thing that is not as it was planned for.
fn changes(profile: &Profile) -> impl Strategy<Value = Change> {
    let stages = profile.num_stages();
    let kinds = [Instruction::Forward, Instruction::Backward];
    let clocks = profile.table(Stage(0), Instruction::Forward).to_vec();
    let profile = profile.clone();
    let slowed = (0..stages, 0.85_f64..1.25).prop_map(move |(stage, factor)| Change {
        conditions: kinds.map(|kind| ((Stage(stage), kind), Condition::Slowed(factor))).into(),
        ..Change::default()
    });
    let noisy = prop::collection::vec(0.97_f64..1.03, usize::from(stages) * 2);
    let noisy = noisy.prop_map(move |factors| {
        let of = |stage: Stage, kind: Instruction| {
            factors[stage.index() * 2 + usize::from(kind == Instruction::Backward)]
        };
        let rows = profile.rows().map(|(stage, kind, row)| {
            let time_s = row.time_s * of(stage, kind);
            (stage, kind, pfo_planner::Measurement { time_s, ..row })
        });
        Change { profile: Some(Profile::from_measurements(rows).unwrap()), ..Change::default() }
    });
    let watts = |most: f64| (0.0..most).prop_map(Watts);
    prop_oneof![
        Just(Change::default()),
        slowed,
        noisy,
        watts(120.0).prop_map(|of| Change { p2p_power: Some(of.into()), ..Change::default() }),
        watts(300.0).prop_map(|of| Change { site_power: Some(of), ..Change::default() }),
        (8_u32..20).prop_map(|count| Change { microbatches: Some(count), ..Change::default() }),
        (0..stages, clocks.len() / 2..clocks.len()).prop_map(move |(stage, row)| Change {
            held: [(Stage(stage), clocks[row].frequency)].into(),
            ..Change::default()
        }),
        (0.0_f64..0.2).prop_map(|rest_s| Change { rest_s, ..Change::default() }),
    ]
}

/// What planning anew makes of a change: the frontier, or nothing for a held stage, whose profile has
/// a single clock.
fn anew(profile: &Profile, change: &Change) -> Frontier {
    let profile = change.profile.as_ref().unwrap_or(profile).under(&change.conditions).unwrap();
    let rows = profile.rows().filter(|(stage, _, row)| {
        change.held.get(stage).is_none_or(|clock| row.frequency == *clock)
    });
    let profile = Profile::from_measurements(rows.collect::<Vec<_>>()).unwrap();
    let power = change.p2p_power.clone().unwrap_or(P2P_POWER.into());
    let pipeline = pipeline(&profile, change.microbatches.unwrap_or(MICROBATCHES));
    let made = Frontier::optimize(&pipeline, power, Options::default(), &|_| {}).unwrap();
    made.with_site_power(change.site_power.unwrap_or(Watts(0.0))).unwrap()
}

/// Seconds and joules of a plan as it is replayed, with its rest.
fn replayed(frontier: &Frontier, plan: &Plan, rest_s: f64) -> (f64, f64) {
    let (profile, power) = (frontier.pipeline().profile(), frontier.p2p_power());
    let run = replay(profile, plan, power.clone()).unwrap();
    let waiting_w = power.total_w(profile.num_stages());
    (run.iteration_time_s + rest_s, run.iteration_energy_j + waiting_w * rest_s)
}

#[test]
fn an_answer_is_in_time_is_what_its_replay_says_and_hardly_worse_than_planning_anew() {
    let Some(profile) = profile() else { return };
    let count: usize = std::env::var(CHANGES).map_or(40, |count| count.parse().unwrap());
    let options = Options::default();
    let frontier =
        Frontier::optimize(&pipeline(&profile, MICROBATCHES), P2P_POWER, options, &|_| {}).unwrap();
    let mut what_ifs = frontier.what_ifs().unwrap();
    let mut runner = TestRunner::deterministic();
    let asked = (changes(&profile), 0.0_f64..1.2);
    let mut worse = Vec::new();
    for _ in 0..count {
        let (change, share) = asked.new_tree(&mut runner).unwrap().current();
        let anew = anew(&profile, &change);
        let [fastest_s, cheapest_s] =
            [Deadline::Fastest, Deadline::MinEnergy].map(|end| anew.seconds(end));
        let due_s = fastest_s + share * (cheapest_s - fastest_s) + 1e-6;
        let made = anew.plan_for(Due::AtMost(due_s)).unwrap();
        let due = Due::AtMost(due_s + change.rest_s);
        let answer = what_ifs.answer(&change, due).unwrap();
        let (time_s, energy_j) = replayed(&anew, &answer.plan(), change.rest_s);
        assert!((time_s - answer.iteration_time_s).abs() < 1e-9, "{change:?}");
        assert!((energy_j - answer.iteration_energy_j).abs() < 1e-6 * energy_j, "{change:?}");
        assert!(time_s <= due_s + change.rest_s + 1e-9, "{change:?}: {time_s} of {due_s}");
        let site_w = anew.site_power().0 * f64::from(profile.num_stages());
        let (made_s, made_j) = replayed(&anew, &made, change.rest_s);
        let (own_j, made_j) = (energy_j + site_w * time_s, made_j + site_w * made_s);
        worse.push((own_j / made_j - 1.0, share, change));
    }
    worse.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mean = worse.iter().map(|worse| worse.0).sum::<f64>() / count as f64;
    let of = |share: f64| (share * (count - 1) as f64) as usize;
    eprintln!(
        "{count} changes: worse by {:.4} % on average, {:.4} % at 90 %, {:.4} % at most",
        100.0 * mean,
        100.0 * worse[of(0.9)].0,
        100.0 * worse[count - 1].0
    );
    for (more, share, change) in worse.iter().rev().take(8) {
        let profile = change.profile.is_some();
        let change = Change { profile: None, ..change.clone() };
        eprintln!("{:.4} % at {share:.2}: {change:?} {profile}", 100.0 * more);
    }
    assert!(mean < WORSE_ON_AVERAGE, "{mean}");
    let (most, _, change) = &worse[count - 1];
    assert!(*most < WORSE, "{most}: {change:?}");
}

#[test]
fn an_answer_for_a_far_other_power_is_as_good_as_planning_anew() {
    let Some(profile) = profile() else { return };
    let options = Options::default();
    let frontier =
        Frontier::optimize(&pipeline(&profile, MICROBATCHES), P2P_POWER, options, &|_| {}).unwrap();
    let mut what_ifs = frontier.what_ifs().unwrap();
    for watts in [0.0, 5.3, 18.9, 26.3, 150.0] {
        let power = Watts(watts);
        let change = Change { p2p_power: Some(power.into()), ..Change::default() };
        let anew = anew(&profile, &change);
        let ends_s = [Deadline::Fastest, Deadline::MinEnergy].map(|end| anew.seconds(end));
        for share in [0.3, 0.8, 1.1] {
            let due = Due::AtMost(ends_s[0] + share * (ends_s[1] - ends_s[0]));
            let answer = what_ifs.answer(&change, due).unwrap();
            let made_j = anew.plan_for(due).unwrap().predicted.unwrap().iteration_energy_j;
            let more = answer.iteration_energy_j / made_j - 1.0;
            assert!(more < 5e-4, "{watts} W at {share}: {more}");
        }
    }
}

#[test]
fn a_question_that_has_no_answer_is_refused_in_words() {
    let Some(profile) = profile() else { return };
    let options = Options { plans: 12, ..Options::default() };
    let frontier = Frontier::optimize(&pipeline(&profile, 6), P2P_POWER, options, &|_| {}).unwrap();
    let mut what_ifs = frontier.what_ifs().unwrap();
    let late = Due::AtMost(2.0 * frontier.seconds(Deadline::MinEnergy));
    let mut refused = |change: Change, due| {
        let answer = what_ifs.answer(&change, due);
        answer.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let of = Change::default;
    for (change, due, words) in [
        (of(), Due::AtMost(0.1), "no plan takes 0.1 s or less"),
        (Change { held: [(Stage(0), pfo_planner::Mhz(1))].into(), ..of() }, late, "1 MHz"),
        (Change { p2p_power: Some(Watts(f64::NAN).into()), ..of() }, late, "NaN"),
        (Change { site_power: Some(Watts(-1.0)), ..of() }, late, "-1 W"),
        (Change { rest_s: f64::INFINITY, ..of() }, late, "inf"),
        (Change { microbatches: Some(0), ..of() }, late, "microbatches"),
        (Change { microbatches: Some(1 << 20), ..of() }, late, "1048576"),
    ] {
        let message = refused(change, due);
        assert!(message.contains(words), "{words}: {message}");
    }
}
