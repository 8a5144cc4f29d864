//! A plan or a frontier in a few words.

use pfo_protocol::{FrontierStatus, PlanStatus};

use super::quantity::{joules, seconds};

/// Its number and label, such as `2 1.02x.json`, and its power limits. The label is a user's text.
pub(crate) fn name(plan: &PlanStatus) -> String {
    let PlanStatus { number, label, .. } = plan;
    match power_limits(&plan.power_limits_w) {
        Some(limits) => format!("{number} {label} ({limits})"),
        None => format!("{number} {label}"),
    }
}

/// Power limits of stages, such as `200, 250 W`, or once if all have the same.
pub(crate) fn power_limits(limits_w: &[u32]) -> Option<String> {
    let first = limits_w.first()?;
    if limits_w.iter().all(|limit| limit == first) {
        return Some(format!("{first} W"));
    }
    let limits: Vec<_> = limits_w.iter().map(u32::to_string).collect();
    Some(format!("{} W", limits.join(", ")))
}

/// What it predicts of a step, as far as it does.
pub(crate) fn prediction(plan: &PlanStatus) -> Option<String> {
    match (plan.predicted_time_s, plan.predicted_energy_j) {
        (None, None) => None,
        (Some(time), None) => Some(seconds(time)),
        (None, Some(energy)) => Some(joules(energy)),
        (Some(time), Some(energy)) => Some(format!("{}, {}", seconds(time), joules(energy))),
    }
}

/// Both, for a sentence.
pub(crate) fn described(plan: &PlanStatus) -> String {
    let name = name(plan);
    match prediction(plan) {
        Some(prediction) => format!("plan {name} (predicted {prediction} a step)"),
        None => format!("plan {name}"),
    }
}

/// A frontier, for a sentence. The label is a user's text.
pub(crate) fn described_frontier(frontier: &FrontierStatus) -> String {
    let FrontierStatus { label, plans, fastest_s, slowest_s, .. } = frontier;
    let (fastest, slowest) = (seconds(*fastest_s), seconds(*slowest_s));
    format!("frontier {label} ({plans} plans, predicted {fastest} to {slowest} a step)")
}
