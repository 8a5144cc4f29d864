//! The orders in which stages run instructions, one file for each schedule.
//!
//! A plan lists its instructions, so following or replaying it does not require its schedule.

mod dualpipe;
mod dualpipe_v;
mod early_recomputation;
mod envpipe;
mod gpipe;
mod interleaved;
mod looped_bfs;
pub(crate) mod name;
pub(crate) mod one_forward_one_backward;
pub(crate) mod settings;
mod v_order;
#[cfg(test)]
pub(crate) mod written;
mod zb_h1;
mod zb_v;

use std::collections::HashMap;

use pfo_vocabulary::{Instruction, Stage};

use crate::error::PlanError;
use crate::profile::Profile;
use crate::schedule::settings::Settings;
use crate::step::dependencies::StageUnit;
use crate::step::order::{Order, StageOrder};
use crate::step::overlap::OverlappedForward;
use crate::step::placement::Placement;
use name::Schedule;

impl Schedule {
    /// What each stage of a profile runs in a step, and in which order.
    ///
    /// # Errors
    /// If the schedule does not exist for this number of stages or microbatches or these settings,
    /// if the profile lacks an instruction that the order depends on, or for [`Schedule::Custom`].
    pub fn order(
        self,
        profile: &Profile,
        num_microbatches: u32,
        settings: &Settings,
    ) -> Result<Order, PlanError> {
        let (n, m) = (profile.num_stages(), num_microbatches);
        let of_each = |order: fn(Stage, u16, u32) -> StageOrder| {
            (0..n).map(|stage| order(Stage(stage), n, m)).collect()
        };
        let has_both = || {
            let of = |stage| !profile.table(Stage(stage), Instruction::ForwardBackward).is_empty();
            (0..n).any(of)
        };
        let stages = match self {
            Self::OneForwardOneBackward => of_each(one_forward_one_backward::order),
            Self::GPipe => of_each(|_, _, m| gpipe::order(m)),
            Self::EarlyRecomputation => of_each(early_recomputation::order),
            Self::ZbH1 => of_each(zb_h1::order),
            Self::ZbV => of_each(zb_v::order),
            Self::DualPipeV => return dualpipe_v::order(n, m, has_both()),
            Self::DualPipe => return dualpipe::order(n, m, has_both()),
            Self::EnvPipe => envpipe::orders(profile, m, &settings.memory_limits)?,
            Self::Interleaved => interleaved::orders(n, m, settings)?,
            Self::InterleavedZeroBubble => interleaved::zero_bubble(n, m, settings)?,
            Self::LoopedBfs => vec![looped_bfs::order(m, settings.chunks)?; usize::from(n)],
            Self::Custom => {
                return Err(PlanError::BadArgument {
                    name: "the schedule",
                    value: self.name().to_owned(),
                    expected: "one with an order of its own; pass a custom order as a file",
                });
            }
        };
        Ok(Order::plain(stages, m, self.placement()))
    }

    /// How the model chunks of this schedule lie; a custom order says it itself.
    pub fn placement(self) -> Placement {
        match self {
            Self::ZbV | Self::DualPipeV => Placement::V,
            Self::DualPipe => Placement::TwoWay,
            _ => Placement::Loop,
        }
    }

    /// The forwards that its instructions of two run beside their backward; empty for a schedule
    /// without such instructions.
    pub fn overlapped(
        self,
        num_stages: u16,
        num_microbatches: u32,
    ) -> HashMap<StageUnit, OverlappedForward> {
        let order = match self {
            Self::DualPipeV => dualpipe_v::order(num_stages, num_microbatches, true),
            Self::DualPipe => dualpipe::order(num_stages, num_microbatches, true),
            _ => return HashMap::new(),
        };
        order.map(|order| order.overlaps).unwrap_or_default()
    }

    /// The number of instructions that the first stage runs in a step of `num_microbatches` with
    /// default settings; 0 for [`Schedule::Custom`].
    pub fn first_stage_length(self, num_stages: u16, num_microbatches: u32) -> usize {
        let m = num_microbatches as usize;
        match self {
            Self::OneForwardOneBackward | Self::GPipe | Self::EnvPipe => 2 * m,
            Self::EarlyRecomputation => 2 * m + m.min(usize::from(num_stages.saturating_sub(1))),
            Self::ZbH1 => 3 * m,
            Self::ZbV => 6 * m,
            // Of both chunks; so many backwards are split.
            Self::DualPipeV => 4 * m + (2 * usize::from(num_stages)).saturating_sub(1),
            Self::DualPipe => 2 * m + usize::from(num_stages).saturating_sub(1),
            Self::Interleaved | Self::LoopedBfs => 2 * m * usize::from(Settings::default().chunks),
            Self::InterleavedZeroBubble => 3 * m * usize::from(Settings::default().chunks),
            Self::Custom => 0,
        }
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
    fn a_name_in_other_letters_is_refused_with_the_right_one() {
        for (name, meant) in [("1F1B", "1f1b"), ("ZB_V", "zb-v"), ("GPipe", "gpipe")] {
            let message = name.parse::<Schedule>().unwrap_err().to_string();
            assert!(message.contains(&format!("did you mean \"{meant}\"?")), "{message}");
        }
        assert!(!"2f2b".parse::<Schedule>().unwrap_err().to_string().contains("mean"));
    }

    #[test]
    fn a_first_stage_is_as_long_as_its_order() {
        for schedule in Schedule::ALL {
            for m in [4, 6, 8] {
                let Ok(order) = schedule.order(&unequal(), m, &Settings::default()) else {
                    assert_eq!(schedule, Schedule::Custom);
                    continue;
                };
                assert_eq!(order.stages[0].len(), schedule.first_stage_length(2, m), "{schedule}");
            }
        }
    }
}
