//! Instructions of two: a forward and a backward of different microbatches that overlap on a GPU,
//! as in DualPipe. Both have one clock, begin together, and hand on what they make when both are
//! done.
//!
//! Such an instruction is a `forward_backward` that says whose forward it runs; its own microbatch
//! and chunk are those of the backward. One that does not say it is Merak's, which recomputes its
//! own forward.

use std::collections::HashMap;

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Stage, Unit};
use serde::{Deserialize, Serialize};

use crate::step::dependencies::StageUnit;

/// The forward that a `forward_backward` runs beside its backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlappedForward {
    /// Its microbatch.
    pub microbatch: Microbatch,
    /// Its model chunk; left out in files if it is 0.
    #[serde(default, skip_serializing_if = "Chunk::is_first")]
    pub chunk: Chunk,
}

impl OverlappedForward {
    /// The forward as an instruction of its own.
    pub(crate) fn unit(self) -> Unit {
        let Self { microbatch, chunk } = self;
        Unit { instruction: Instruction::Forward, microbatch, chunk }
    }
}

/// The forwards of all instructions of two of a step.
pub(crate) type Overlaps = HashMap<StageUnit, OverlappedForward>;

/// Those among the instructions of a stage.
pub(crate) fn overlaps_on(
    stage: Stage,
    units: impl Iterator<Item = (Unit, Option<OverlappedForward>)>,
) -> impl Iterator<Item = (StageUnit, OverlappedForward)> {
    units.filter_map(move |(unit, forward)| Some((StageUnit::new(stage, unit), forward?)))
}
