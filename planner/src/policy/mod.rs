//! What other systems would run on the same profile, to compare with.
//!
//! Each policy is computed as its system computes it, with the replay in place of its measurements,
//! and judged by the same replay as our own plans.

mod envpipe;
mod grid;
mod offline_envpipe;
mod rehearsal;
mod zeus;

use std::fmt;

pub use envpipe::{EnvPipe, EnvPipeType, Reconfigure};
pub use offline_envpipe::OfflineEnvPipe;
pub use zeus::Zeus;

use crate::error::PlanError;
use crate::pipeline::Pipeline;
use crate::plan::Plan;
use crate::units::Watts;
use rehearsal::Rehearsal;

/// A way to choose clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// Every instruction at the highest clock that was measured of it.
    AllMax,
    /// EnvPipe, as it works while training runs.
    EnvPipe(EnvPipe),
    /// EnvPipe, as Perseus' evaluation computed it from a profile.
    OfflineEnvPipe(OfflineEnvPipe),
    /// One clock for all stages, by Zeus' cost.
    ZeusGlobal(Zeus),
    /// One clock for each stage, balanced against the heaviest, by Zeus' cost.
    ZeusPerStage(Zeus),
}

/// What a policy comes to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The plans that it considers, each with its replay as prediction; never empty.
    pub plans: Vec<Plan>,
    /// The one that it would run, by its place among them.
    pub chosen: usize,
    /// Training steps, or rounds of an off-line search, until it settles.
    pub rounds: u32,
    /// Why it stopped.
    pub end: End,
}

/// Why a policy stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It reached what it looks for.
    Settled,
    /// It did not reach that, but had nothing left to change. Perseus' EnvPipe would go on for ever.
    Saturated,
    /// It was stopped after as many rounds as are allowed.
    Bounded,
}

impl Policy {
    /// Every policy, each EnvPipe type with each way to reconfigure (that changes nothing of
    /// `baseline`).
    pub fn all() -> Vec<Self> {
        use {EnvPipeType as Type, Reconfigure as By};
        let envpipe =
            |kind, reconfigure| Self::EnvPipe(EnvPipe { kind, reconfigure, ..EnvPipe::default() });
        vec![
            Self::AllMax,
            envpipe(Type::Baseline, By::Default),
            envpipe(Type::Uniform, By::Default),
            envpipe(Type::Uniform, By::Greedy),
            envpipe(Type::Uniform, By::Balanced),
            envpipe(Type::Envelope, By::Default),
            envpipe(Type::Envelope, By::Greedy),
            envpipe(Type::Envelope, By::Balanced),
            Self::OfflineEnvPipe(OfflineEnvPipe::default()),
            Self::ZeusGlobal(Zeus::default()),
            Self::ZeusPerStage(Zeus::default()),
        ]
    }

    /// What this policy does with a pipeline.
    ///
    /// # Errors
    /// If no clock was measured of every instruction: these policies set the same clock for
    /// several.
    pub fn outcome(self, pipeline: &Pipeline, p2p_power: Watts) -> Result<Outcome, PlanError> {
        match self {
            Self::AllMax => {
                let plan = Rehearsal::at_highest_clocks(pipeline).plan(p2p_power);
                Ok(Outcome { plans: vec![plan], chosen: 0, rounds: 0, end: End::Settled })
            }
            Self::EnvPipe(envpipe) => envpipe.outcome(pipeline, p2p_power),
            Self::OfflineEnvPipe(envpipe) => envpipe.outcome(pipeline, p2p_power),
            Self::ZeusGlobal(zeus) => zeus.global(pipeline, p2p_power),
            Self::ZeusPerStage(zeus) => zeus.per_stage(pipeline, p2p_power),
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
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::delays::Delays;
    use crate::replay::replay;
    use crate::schedule::Schedule;
    use crate::settings::Settings;
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
                let outcome = policy.outcome(&pipeline, POWER).unwrap();
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
