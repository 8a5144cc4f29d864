//! A job that runs a plan, for tests.

use pfo_protocol::{JobView, PlanStatus, RankWindow, TrialResult, TrialStep};

use crate::straggler::tests::job;

/// A job of two ranks that has run steps of a second, and of ten joules on each rank, under a swap.
pub(super) fn example(label: &str, swap: u64, session: u64, steps: u64) -> JobView {
    let plan = PlanStatus {
        number: 1,
        label: label.into(),
        predicted_time_s: None,
        predicted_energy_j: None,
        suspended: None,
        power_limits_w: Vec::new(),
    };
    let mut example = JobView { plan: Some(plan), swap, measured_by: None, ..job(2) };
    for (number, rank) in (0..).zip(&mut example.ranks) {
        rank.session.0 = session + number;
        rank.swap = swap;
        let energy_j = Some(10.0 * steps as f64);
        rank.window = Some(RankWindow { steps, time_s: steps as f64, energy_j });
    }
    example
}

/// A trial of a plan, or of default clocks. A step is its seconds and its joules.
pub(super) fn trial(
    plan: Option<&str>,
    steps: impl IntoIterator<Item = (f64, Option<f64>)>,
) -> TrialResult {
    let plan = plan.and_then(|label| example(label, 1, 1, 1).plan);
    let steps = steps.into_iter().map(|(time_s, energy_j)| TrialStep { time_s, energy_j });
    TrialResult { plan, first_step: 1, steps: steps.collect(), ranks: Vec::new() }
}
