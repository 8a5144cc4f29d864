//! The arguments of a replay, beside the plan and the profile.

use clap::Args;
use pfo_planner::{Combine, LatencyByClock, Noise, Plan, Schedule};

use super::measured::Measured;
use crate::failure::Failure;

/// What neither a plan nor a profile contains.
#[derive(Args)]
#[group(requires = "profile")]
pub(crate) struct ReplayArguments {
    /// Schedule of a plan file that does not contain it
    #[arg(long, value_name = "NAME", default_value_t = Schedule::OneForwardOneBackward)]
    schedule: Schedule,

    /// How to combine rows of several ranks of a stage, as for `plan optimize`
    #[arg(long, value_name = "HOW", default_value_t = Combine::Mean)]
    combine: Combine,

    /// Time until a clock is in force, in milliseconds, as for `plan optimize` [default: the one in
    /// the plan]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    switch_latency_ms: Option<f64>,

    /// For how long the call that sets a clock blocks, in milliseconds, as for `plan optimize`
    /// [default: the one in the plan]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    set_call_ms: Option<f64>,

    /// For how long a change of clocks holds up transfers, in milliseconds, as for `plan optimize`
    /// [default: the one in the plan]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    held_up_ms: Option<f64>,
}

impl ReplayArguments {
    /// A profile by its name, and a plan that was read already.
    pub(crate) fn read(
        &self,
        profile_name: &str,
        plan_name: &str,
        plan: &[u8],
    ) -> Result<(Measured, Plan), Failure> {
        let measured = Measured::read(profile_name, self.combine, Noise::Off)?;
        let mut plan = Plan::from_bytes(plan, &measured.profile, self.schedule)
            .map_err(Failure::bad_file(plan_name))?;
        if let Some(latency_ms) = self.switch_latency_ms {
            plan.delays.switch_latency_s = latency_ms / 1e3;
            plan.delays.latency_by_clock = LatencyByClock::default();
        }
        if let Some(call_ms) = self.set_call_ms {
            plan.delays.set_call_s = call_ms / 1e3;
        }
        if let Some(held_up_ms) = self.held_up_ms {
            plan.delays.held_up_s = held_up_ms / 1e3;
        }
        Ok((measured, plan))
    }
}
