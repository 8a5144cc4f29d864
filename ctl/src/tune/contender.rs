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

    /// Steps until it runs as it will in the long run: pfod has to know how long instructions and waits
    /// take before it asks for clocks ahead, and sets those of waits.
    pub(super) fn settling_steps(&self) -> u32 {
        const TIMES_ARE_KNOWN: u32 = 4;
        let changes = |plan: &Plan| !plan.waits.is_empty() || plan.most_clock_changes() > 0;
        if self.plan.as_ref().is_some_and(changes) { TIMES_ARE_KNOWN } else { 0 }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::changes::tests::plan_of;

    #[test]
    fn a_plan_that_changes_clocks_settles_until_they_are_asked_for_ahead() {
        let settling_steps = |clocks: [u32; 4]| {
            Contender::plan("p".to_owned(), &plan_of(clocks)).unwrap().settling_steps()
        };
        assert_eq!(settling_steps([900; 4]), 0);
        assert_eq!(settling_steps([1400, 1400, 900, 900]), 4);
        assert_eq!(Contender::power_limits("zeus", vec![300]).settling_steps(), 0);
    }
}
