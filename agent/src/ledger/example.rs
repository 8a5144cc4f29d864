//! A job that runs a plan, for tests.

use pfo_protocol::{JobView, PlanStatus, RankWindow};

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
