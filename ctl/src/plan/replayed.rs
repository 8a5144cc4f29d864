//! The arguments that say how a plan is replayed over a profile, beside the two themselves.

use clap::Args;
use pfo_planner::{Combine, Noise, Plan, Schedule};

use super::measured::Measured;
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
    ) -> Result<(Measured, Plan), Failure> {
        let measured = Measured::read(profile_name, self.combine, Noise::Off)?;
        let mut plan = format::read(plan, &measured.profile, self.schedule).map_err(|source| {
            Failure::BadFile { name: file::shown(plan_name).to_owned(), source }
        })?;
        if let Some(latency_ms) = self.switch_latency_ms {
            plan.delays.switch_latency_s = latency_ms / 1e3;
        }
        Ok((measured, plan))
    }
}
