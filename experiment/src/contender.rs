//! A contender for what the job runs: a plan, or power limits.

use pfo_planner::{Plan, Prediction};
use pfo_protocol::TrialRun;

use crate::clock_table;
use crate::error::TuneError;

/// What runs on the job beside default clocks.
pub(crate) struct Contender {
    /// What the report calls it.
    pub(crate) label: String,
    pub(crate) predicted: Option<Prediction>,
    pub(crate) run: TrialRun,
    /// None of power limits.
    pub(crate) plan: Option<Plan>,
}

impl Contender {
    pub(crate) fn plan(label: String, plan: &Plan) -> Result<Self, TuneError> {
        let run = trial_of(label.clone(), plan)?;
        Ok(Self { label, predicted: plan.predicted, run, plan: Some(plan.clone()) })
    }

    /// Steps until it runs as it will in the long run: pfod has to know how long instructions and waits
    /// take before it asks for clocks ahead, and sets those of waits.
    pub(crate) fn settling_steps(&self) -> u32 {
        const TIMES_ARE_KNOWN: u32 = 4;
        let changes = |plan: &Plan| !plan.waits.is_empty() || plan.most_clock_changes() > 0;
        if self.plan.as_ref().is_some_and(changes) { TIMES_ARE_KNOWN } else { 0 }
    }

    /// Power limits of each stage, in watts, that this policy has found.
    pub(crate) fn power_limits(policy: &str, limits_w: Vec<u32>) -> Self {
        let limits = in_words(&limits_w);
        Self {
            label: format!("{policy} ({limits})"),
            predicted: None,
            run: TrialRun::PowerLimits { label: policy.to_owned(), limits_w },
            plan: None,
        }
    }
}

/// A trial of a plan.
pub(crate) fn trial_of(label: String, plan: &Plan) -> Result<TrialRun, TuneError> {
    Ok(TrialRun::Plan { label, table: clock_table::of(plan)? })
}

/// One limit, if all are the same.
fn in_words(limits_w: &[u32]) -> String {
    let all_alike = limits_w.windows(2).all(|pair| pair[0] == pair[1]);
    let shown = if all_alike { limits_w.get(..1).unwrap_or_default() } else { limits_w };
    let shown: Vec<_> = shown.iter().map(u32::to_string).collect();
    format!("{} W", shown.join(", "))
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
