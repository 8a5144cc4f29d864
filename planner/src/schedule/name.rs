//! Schedules by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::excerpt::excerpt;

/// A pipeline schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Schedule {
    /// One forward, one backward (PipeDream-Flush, Megatron-LM's non-interleaved schedule):
    /// stage `s` of `N` runs `min(M, N - s)` forwards, then backwards and forwards in turn.
    OneForwardOneBackward,
    /// Every forward, then every backward.
    GPipe,
    /// Merak's 1F1B, which recomputes activations while the gradient is still on its way.
    EarlyRecomputation,
    /// EnvPipe's 1F1B, with more forwards ahead of the first backward.
    EnvPipe,
    /// Zero bubble with separate input and weight gradients, in the memory of 1F1B.
    ZbH1,
    /// Zero bubble over two model chunks of each stage, which lie in a V: chunk 0 leads from the first
    /// stage to the last, chunk 1 back.
    ZbV,
    /// DualPipe over the same two chunks. Forwards and backwards that it overlaps are one instruction
    /// where the profile has rows of `forward_backward`, and else planned one after the other.
    DualPipeV,
    /// DualPipe over two copies of the model, from both ends; half of the microbatches go each way.
    DualPipe,
    /// 1F1B over several model chunks of each stage, in the order of Megatron-LM and PyTorch.
    Interleaved,
    /// The same with separate input and weight gradients, in PyTorch's order.
    InterleavedZeroBubble,
    /// Every forward of a model chunk, then those of the next; backwards in reverse.
    LoopedBfs,
    /// An order from a file: see [`crate::Order`].
    Custom,
}

impl Schedule {
    /// Every schedule that this version knows.
    pub const ALL: [Self; 12] = [
        Self::OneForwardOneBackward,
        Self::GPipe,
        Self::EarlyRecomputation,
        Self::EnvPipe,
        Self::ZbH1,
        Self::ZbV,
        Self::DualPipeV,
        Self::DualPipe,
        Self::Interleaved,
        Self::InterleavedZeroBubble,
        Self::LoopedBfs,
        Self::Custom,
    ];

    /// The name on the command line and in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneForwardOneBackward => "1f1b",
            Self::GPipe => "gpipe",
            Self::EarlyRecomputation => "early-recomputation-1f1b",
            Self::EnvPipe => "envpipe",
            Self::ZbH1 => "zb-h1",
            Self::ZbV => "zb-v",
            Self::DualPipeV => "dualpipe-v",
            Self::DualPipe => "dualpipe",
            Self::Interleaved => "interleaved-1f1b",
            Self::InterleavedZeroBubble => "interleaved-zero-bubble",
            Self::LoopedBfs => "looped-bfs",
            Self::Custom => "custom",
        }
    }
}

/// A schedule name that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown schedule \"{name}\"{} (known: {})", suggested(*meant), names())]
pub struct UnknownSchedule {
    name: String,
    /// The one that is written in other letters.
    meant: Option<&'static str>,
}

fn suggested(meant: Option<&'static str>) -> String {
    meant.map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"))
}

fn names() -> String {
    Schedule::ALL.map(Schedule::name).join(", ")
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Schedule {
    type Err = UnknownSchedule;

    fn from_str(name: &str) -> Result<Self, UnknownSchedule> {
        let known = |name: &str| Self::ALL.into_iter().find(|schedule| schedule.name() == name);
        known(name).ok_or_else(|| UnknownSchedule {
            name: excerpt(name),
            meant: known(&name.to_lowercase().replace(['_', ' '], "-")).map(Self::name),
        })
    }
}

impl From<Schedule> for &'static str {
    fn from(schedule: Schedule) -> Self {
        schedule.name()
    }
}

impl TryFrom<String> for Schedule {
    type Error = UnknownSchedule;

    fn try_from(name: String) -> Result<Self, UnknownSchedule> {
        name.parse()
    }
}
