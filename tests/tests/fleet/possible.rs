//! What a training of the simulator's built-in instructions could save, by the tables of the simulator.

use pfo_planner::{LowerBound, Pipeline, Policy, Profile, Schedule, Watts};
use pfo_tests::kept_plan;
use serde_json::Value;

use super::staged::MICROBATCHES;

pub(crate) const P2P_POWER: Watts = Watts(70.38);

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The most that the plan that was kept could save, as a share of the energy, in the time that it is
/// predicted to take. The energy at default clocks is that of all nodes and replicas.
pub(crate) fn possible_saving(profile: &str, replicas: usize, report: &Value) -> f64 {
    let profile = Profile::from_csv(profile.as_bytes()).unwrap();
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, MICROBATCHES).unwrap();
    let all_max = Policy::AllMax.outcome(&pipeline, P2P_POWER, &|_| {}).unwrap();
    let all_max = all_max.plans[0].predicted.unwrap();
    let default_j = number(&report["default_clocks"]["iteration_energy_j"]);
    let all_max_j = replicas as f64 * all_max.iteration_energy_j;
    assert!((default_j / all_max_j - 1.0).abs() < 0.15, "{report}");
    let predicted_s = number(&kept_plan(report)["predicted_time_s"]);
    let least_j = LowerBound::new(&pipeline, P2P_POWER).energy_j(predicted_s);
    1.0 - least_j / all_max.iteration_energy_j
}
