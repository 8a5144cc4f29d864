//! Which instructions a stage runs in a step, and in what order.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{PlanError, excerpt};
use crate::instruction::Instruction;
use crate::units::{Microbatch, Stage};

/// A pipeline schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Schedule {
    /// One forward, one backward (PipeDream-Flush, Megatron-LM's non-interleaved schedule):
    /// stage `s` of `N` runs `min(M, N - s)` forwards, then backwards and forwards in turn.
    OneForwardOneBackward,
}

impl Schedule {
    /// Every schedule that this version knows.
    pub const ALL: [Self; 1] = [Self::OneForwardOneBackward];

    /// The name used on the command line and in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneForwardOneBackward => "1f1b",
        }
    }

    /// What `stage` runs in one step, first to last.
    pub fn order(
        self,
        stage: Stage,
        num_stages: u16,
        num_microbatches: u32,
    ) -> Vec<(Instruction, Microbatch)> {
        match self {
            Self::OneForwardOneBackward => {
                let warm_up = u32::from(num_stages.saturating_sub(stage.0)).min(num_microbatches);
                let forwards = 0..num_microbatches;
                let mut ahead = forwards.clone().skip(warm_up as usize);
                let mut order: Vec<_> = forwards
                    .take(warm_up as usize)
                    .map(|m| (Instruction::Forward, Microbatch(m)))
                    .collect();
                for m in 0..num_microbatches {
                    order.push((Instruction::Backward, Microbatch(m)));
                    order.extend(ahead.next().map(|m| (Instruction::Forward, Microbatch(m))));
                }
                order
            }
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

    fn written(num_stages: u16, num_microbatches: u32) -> Vec<String> {
        let order = |stage| {
            Schedule::OneForwardOneBackward.order(Stage(stage), num_stages, num_microbatches)
        };
        let short = |(instruction, m)| match instruction {
            Instruction::Forward => format!("F{m}"),
            _ => format!("B{m}"),
        };
        (0..num_stages)
            .map(|stage| order(stage).into_iter().map(short).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn four_stages_with_eight_microbatches_run_the_order_of_the_reference() {
        assert_eq!(
            written(4, 8),
            [
                "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
                "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
                "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
                "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
            ]
        );
    }

    #[test]
    fn with_fewer_microbatches_than_stages_every_forward_comes_first_on_early_stages() {
        assert_eq!(written(3, 2), ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]);
        assert_eq!(written(1, 1), ["F0 B0"]);
    }

    #[test]
    fn an_unknown_schedule_is_refused_with_those_that_exist() {
        let message = "2f2b".parse::<Schedule>().unwrap_err().to_string();
        assert!(message.contains("2f2b") && message.contains("1f1b"), "{message}");
    }
}
