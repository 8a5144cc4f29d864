//! Which instructions a stage runs in a step, and in what order.
//!
//! One file for each schedule; this one names them. A plan lists its instructions, so nobody needs
//! to know a schedule to follow or replay one.

mod early_recomputation;
mod envpipe;
mod gpipe;
mod interleaved;
pub(crate) mod one_forward_one_backward;
#[cfg(test)]
pub(crate) mod written;
mod zb_h1;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{PlanError, excerpt};
use crate::profile::Profile;
use crate::settings::Settings;
use pfo_vocabulary::Stage;
use pfo_vocabulary::Unit;

/// What one stage runs, first to last.
pub type StageOrder = Vec<Unit>;

/// A pipeline schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Schedule {
    /// One forward, one backward (PipeDream-Flush, Megatron-LM's non-interleaved schedule):
    /// stage `s` of `N` runs `min(M, N - s)` forwards, then backwards and forwards in turn.
    OneForwardOneBackward,
    /// Every forward, then every backward.
    GPipe,
    /// Merak's 1F1B that recomputes activations while the gradient is still travelling.
    EarlyRecomputation,
    /// EnvPipe's 1F1B with more forwards ahead of the first backward.
    EnvPipe,
    /// Zero bubble, with input and weight gradients apart, in the memory of 1F1B.
    ZbH1,
    /// 1F1B over several model chunks of each stage, in Megatron-LM's order.
    Interleaved,
    /// Whatever a file says: see [`crate::Order`].
    Custom,
}

impl Schedule {
    /// Every schedule that this version knows.
    pub const ALL: [Self; 7] = [
        Self::OneForwardOneBackward,
        Self::GPipe,
        Self::EarlyRecomputation,
        Self::EnvPipe,
        Self::ZbH1,
        Self::Interleaved,
        Self::Custom,
    ];

    /// The name used on the command line and in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneForwardOneBackward => "1f1b",
            Self::GPipe => "gpipe",
            Self::EarlyRecomputation => "early-recomputation-1f1b",
            Self::EnvPipe => "envpipe",
            Self::ZbH1 => "zb-h1",
            Self::Interleaved => "interleaved-1f1b",
            Self::Custom => "custom",
        }
    }

    /// What each stage of a profile runs in one step.
    ///
    /// # Errors
    /// If the schedule does not exist for so many microbatches or with these settings, the profile
    /// lacks what it is derived from, or it is [`Schedule::Custom`].
    pub fn orders(
        self,
        profile: &Profile,
        num_microbatches: u32,
        settings: &Settings,
    ) -> Result<Vec<StageOrder>, PlanError> {
        let (n, m) = (profile.num_stages(), num_microbatches);
        let of_each = |order: fn(Stage, u16, u32) -> StageOrder| {
            (0..n).map(|stage| order(Stage(stage), n, m)).collect()
        };
        Ok(match self {
            Self::OneForwardOneBackward => of_each(one_forward_one_backward::order),
            Self::GPipe => of_each(|_, _, m| gpipe::order(m)),
            Self::EarlyRecomputation => of_each(early_recomputation::order),
            Self::ZbH1 => of_each(zb_h1::order),
            Self::EnvPipe => envpipe::orders(profile, m, &settings.memory_limits)?,
            Self::Interleaved => interleaved::orders(n, m, settings.chunks)?,
            Self::Custom => {
                return Err(PlanError::BadArgument {
                    name: "the schedule",
                    value: self.name().to_owned(),
                    expected: "one with an order of its own; give a custom order as a file",
                });
            }
        })
    }

    /// How many instructions the first stage runs in a step of `num_microbatches` with default
    /// settings; 0 if only a file knows.
    pub fn first_stage_length(self, num_stages: u16, num_microbatches: u32) -> usize {
        let m = num_microbatches as usize;
        match self {
            Self::OneForwardOneBackward | Self::GPipe | Self::EnvPipe => 2 * m,
            Self::EarlyRecomputation => 2 * m + m.min(usize::from(num_stages.saturating_sub(1))),
            Self::ZbH1 => 3 * m,
            Self::Interleaved => 2 * m * usize::from(Settings::default().chunks),
            Self::Custom => 0,
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Schedule {
    type Err = PlanError;

    fn from_str(name: &str) -> Result<Self, PlanError> {
        Self::ALL
            .into_iter()
            .find(|schedule| schedule.name() == name)
            .ok_or_else(|| PlanError::UnknownSchedule(excerpt(name)))
    }
}

impl From<Schedule> for &'static str {
    fn from(schedule: Schedule) -> Self {
        schedule.name()
    }
}

impl TryFrom<String> for Schedule {
    type Error = PlanError;

    fn try_from(name: String) -> Result<Self, PlanError> {
        name.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_profiles::unequal;

    #[test]
    fn every_name_is_read_back_as_the_same_schedule() {
        for schedule in Schedule::ALL {
            assert_eq!(schedule.name().parse::<Schedule>().unwrap(), schedule);
        }
    }

    #[test]
    fn an_unknown_schedule_is_refused_with_those_that_exist() {
        let message = "2f2b".parse::<Schedule>().unwrap_err().to_string();
        assert!(message.contains("2f2b") && message.contains("1f1b"), "{message}");
        assert!(message.contains("zb-h1"), "{message}");
    }

    #[test]
    fn a_first_stage_is_as_long_as_its_order() {
        for schedule in Schedule::ALL {
            for m in [2, 4, 6] {
                let Ok(orders) = schedule.orders(&unequal(), m, &Settings::default()) else {
                    assert_eq!(schedule, Schedule::Custom);
                    continue;
                };
                assert_eq!(orders[0].len(), schedule.first_stage_length(2, m), "{schedule}");
            }
        }
    }
}
