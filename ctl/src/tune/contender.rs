//! A contender for what the job runs: a plan, or power limits.

use pfo_planner::{Plan, Prediction};
use pfo_protocol::TrialRun;

use crate::failure::Failure;
use crate::planning::plan_file::LabelledPlan;
use crate::status::plan_text::power_limits;

/// What runs on the job beside default clocks.
pub(super) struct Contender {
    /// What the report calls it.
    pub(super) label: String,
    pub(super) predicted: Option<Prediction>,
    pub(super) run: TrialRun,
    /// None of power limits.
    pub(super) plan: Option<Plan>,
}

impl Contender {
    pub(super) fn plan(label: String, plan: &Plan) -> Result<Self, Failure> {
        let run = LabelledPlan::new(label.clone(), plan)?.trial();
        Ok(Self { label, predicted: plan.predicted, run, plan: Some(plan.clone()) })
    }

    /// Steps until it runs as it will in the long run: pfod has to know how long waits take before
    /// it sets their clocks.
    pub(super) fn settling_steps(&self) -> u32 {
        const WAITS_ARE_KNOWN: u32 = 4;
        let TrialRun::Plan { table, .. } = &self.run else { return 0 };
        let has_waits = table.stages().iter().flatten().any(|unit| unit.wait_mhz.is_some());
        if has_waits { WAITS_ARE_KNOWN } else { 0 }
    }

    /// Power limits of each stage, in watts, that this policy has found.
    pub(super) fn power_limits(policy: &str, limits_w: Vec<u32>) -> Self {
        let limits = power_limits(&limits_w).unwrap_or_default();
        Self {
            label: format!("{policy} ({limits})"),
            predicted: None,
            run: TrialRun::PowerLimits { label: policy.to_owned(), limits_w },
            plan: None,
        }
    }
}
