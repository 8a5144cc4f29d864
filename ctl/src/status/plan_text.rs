//! A plan or a frontier in a few words.

use pfo_protocol::{FrontierStatus, PlanStatus};

use super::quantity::{joules, seconds};

/// Its number and label, such as `2 1.02x.json`. The label is what somebody typed.
pub(crate) fn name(plan: &PlanStatus) -> String {
    format!("{} {}", plan.number, plan.label)
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

/// A frontier, for a sentence. The label is what somebody typed.
pub(crate) fn described_frontier(frontier: &FrontierStatus) -> String {
    let FrontierStatus { label, plans, fastest_s, slowest_s, .. } = frontier;
    let (fastest, slowest) = (seconds(*fastest_s), seconds(*slowest_s));
    format!("frontier {label} ({plans} plans, predicted {fastest} to {slowest} a step)")
}
