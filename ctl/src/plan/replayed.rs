//! The arguments that say how a plan is replayed over a profile, beside the two themselves.

use clap::Args;
use pfo_planner::{Combine, Plan, PlanError, Profile, Schedule};

use super::{Failure, file, format};

/// What neither a plan nor a profile says.
#[derive(Args)]
#[group(requires = "profile")]
pub(super) struct ReplayArguments {
    /// The schedule of a plan file that does not say it
    #[arg(long, value_name = "NAME", default_value_t = Schedule::OneForwardOneBackward)]
    schedule: Schedule,

    /// How rows of several ranks of a stage are combined, as for `plan optimize`
    #[arg(long, value_name = "HOW", default_value_t = Combine::Mean)]
    combine: Combine,

    /// What a change of clock takes, in milliseconds, as for `plan optimize` [default: what the plan
    /// says]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    switch_latency_ms: Option<f64>,
}

impl ReplayArguments {
    /// A profile by its name, and a plan that was read already.
    pub(super) fn read(
        &self,
        profile_name: &str,
        plan_name: &str,
        plan: &[u8],
    ) -> Result<(Profile, Plan), Failure> {
        let bad = |name: &str| {
            let name = file::shown(name).to_owned();
            |source: PlanError| Failure::BadFile { name, source }
        };
        let csv = file::read(profile_name)?;
        let profile =
            Profile::from_csv_combined(csv.as_slice(), self.combine).map_err(bad(profile_name))?;
        let mut plan = format::read(plan, &profile, self.schedule).map_err(bad(plan_name))?;
        if let Some(latency_ms) = self.switch_latency_ms {
            plan.delays.switch_latency_s = latency_ms / 1e3;
        }
        Ok((profile, plan))
    }
}
