//! Policies: how other systems choose clocks, computed on the same profile for comparison.
//!
//! `pfod`'s policy, what it allows its users, is another thing and unknown here.
//!
//! Each policy is computed as its system computes it, with the replay in place of its measurements,
//! and judged by the same replay as our own plans.

mod envpipe;
mod grid;
mod lowtime;
mod offline_envpipe;
mod outcome;
mod reconfiguration;
mod rehearsal;
mod tuning;
mod unit_time;
mod zeus;

use std::fmt;

use pfo_vocabulary::Watts;

pub use envpipe::{EnvPipe, EnvPipeType, Reconfigure};
pub use lowtime::{Attribution, Filter, Lowtime};
pub use offline_envpipe::OfflineEnvPipe;
pub use outcome::{End, Outcome};
pub use reconfiguration::Reconfiguration;
pub use tuning::Tuning;
pub use unit_time::UnitTime;
pub use zeus::{Zeus, ZeusFound, ZeusSearch, ZeusSettings, ZeusWindow};

use crate::error::PlanError;
use crate::pipeline::Pipeline;
use crate::waits::per_stage::PerStage;
use rehearsal::Rehearsal;

/// A way in which another system chooses clocks; not what `pfod` allows its users.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// Every instruction at its highest measured clock.
    AllMax,
    /// EnvPipe as it works while training runs.
    EnvPipe(EnvPipe),
    /// EnvPipe as Perseus' evaluation computes it from a profile.
    OfflineEnvPipe(OfflineEnvPipe),
    /// One clock for all stages, by Zeus' cost.
    ZeusGlobal(Zeus),
    /// One clock for each stage, balanced against the heaviest, by Zeus' cost.
    ZeusPerStage(Zeus),
    /// lowtime, the planner of Perseus.
    Lowtime(Lowtime),
}

impl Policy {
    /// Every policy with the parameters that its system ships, and EnvPipe with each type and way
    /// to reconfigure (which does not change `baseline`).
    pub fn all() -> Vec<Self> {
        Self::tuned(&Tuning::default())
    }

    /// Every policy with these parameters.
    pub fn tuned(tuning: &Tuning) -> Vec<Self> {
        use {EnvPipeType as Type, Reconfigure as By};
        let envpipe =
            |kind, reconfigure| Self::EnvPipe(EnvPipe { kind, reconfigure, ..tuning.envpipe });
        let lowtime = |filter| Self::Lowtime(Lowtime { filter, ..tuning.lowtime });
        vec![
            Self::AllMax,
            envpipe(Type::Baseline, By::Default),
            envpipe(Type::Uniform, By::Default),
            envpipe(Type::Uniform, By::Greedy),
            envpipe(Type::Uniform, By::Balanced),
            envpipe(Type::Envelope, By::Default),
            envpipe(Type::Envelope, By::Greedy),
            envpipe(Type::Envelope, By::Balanced),
            Self::OfflineEnvPipe(tuning.offline_envpipe),
            Self::ZeusGlobal(tuning.zeus),
            Self::ZeusPerStage(tuning.zeus),
            lowtime(Filter::Raw),
            lowtime(Filter::Effective),
        ]
    }

    /// The outcome of this policy for a pipeline. Long searches call `progress` with the share of
    /// the work that is done (0 to 1).
    ///
    /// # Errors
    /// If no clock was measured for every instruction: all policies except lowtime set the same
    /// clock for several. If lowtime cannot fit its curve to the energies of an instruction.
    pub fn outcome(
        self,
        pipeline: &Pipeline,
        p2p_power: impl Into<PerStage<Watts>>,
        progress: &dyn Fn(f64),
    ) -> Result<Outcome, PlanError> {
        let p2p_power = &p2p_power.into();
        p2p_power.check(pipeline.profile().num_stages())?;
        match self {
            Self::AllMax => {
                let plan = Rehearsal::at_highest_clocks(pipeline).plan(p2p_power);
                Ok(Outcome::found(vec![plan], 0, 0, End::Settled))
            }
            Self::EnvPipe(envpipe) => envpipe.outcome(pipeline, p2p_power),
            Self::OfflineEnvPipe(envpipe) => envpipe.outcome(pipeline, p2p_power),
            Self::ZeusGlobal(zeus) => zeus.outcome(ZeusSearch::Global, pipeline, p2p_power),
            Self::ZeusPerStage(zeus) => zeus.outcome(ZeusSearch::PerStage, pipeline, p2p_power),
            Self::Lowtime(lowtime) => lowtime.outcome(pipeline, p2p_power, progress),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllMax => f.write_str("all-max"),
            Self::EnvPipe(envpipe) => write!(f, "envpipe-{envpipe}"),
            Self::OfflineEnvPipe(_) => f.write_str("envpipe-offline"),
            Self::ZeusGlobal(_) => f.write_str("zeus-global"),
            Self::ZeusPerStage(_) => f.write_str("zeus-per-stage"),
            Self::Lowtime(Lowtime { filter: Filter::Raw, .. }) => f.write_str("lowtime-perseus"),
            Self::Lowtime(Lowtime { filter: Filter::Effective, .. }) => f.write_str("lowtime-zeus"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::replay::replay;
    use crate::schedule::name::Schedule;
    use crate::schedule::settings::Settings;
    use crate::step::delays::Delays;
    use crate::test_profiles::any_profile;

    const POWER: Watts = Watts(80.0);

    proptest! {
        #[test]
        fn every_policy_ends_and_its_predictions_are_replays(
            profile in any_profile(4, 6),
            microbatches in 1_u32..6,
            is_gpipe in any::<bool>(),
            transfer_ms in 0_u8..3,
        ) {
            let schedule =
                if is_gpipe { Schedule::GPipe } else { Schedule::OneForwardOneBackward };
            let transfer_time_s = 1e-3 * f64::from(transfer_ms);
            let delays = Delays { transfer_time_s, ..Delays::default() };
            let settings = Settings { delays, ..Settings::default() };
            let pipeline =
                Pipeline::with_settings(&profile, schedule, microbatches, &settings).unwrap();
            for policy in Policy::all() {
                let outcome = match policy.outcome(&pipeline, POWER, &|_| {}) {
                    Err(PlanError::NoFit { .. }) if matches!(policy, Policy::Lowtime(_)) => continue,
                    outcome => outcome.unwrap(),
                };
                prop_assert!(outcome.chosen < outcome.plans.len());
                for plan in &outcome.plans {
                    let replayed = replay(&profile, plan, POWER).unwrap();
                    prop_assert_eq!(plan.predicted, Some(replayed.into()), "{}", policy);
                    prop_assert!(plan.to_json().is_ok());
                }
                prop_assert_ne!(outcome.end, End::Bounded);
            }
        }
    }

    #[test]
    fn every_policy_has_a_name_of_its_own() {
        let mut names: Vec<String> = Policy::all().iter().map(Policy::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Policy::all().len());
    }
}
