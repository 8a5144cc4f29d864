//! Operations: the nodes of a step's graph.

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Stage, Unit};

use crate::profile::parts::Part;
use crate::step::dependencies::StageUnit;
use crate::step::overlap::OverlappedForward;

/// The kinds of operations. Only instructions are run by a stage and have a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Instruction,
    /// The transfer of a product to another stage.
    Transfer,
    /// A meeting point where one operation waits for several or several for one; takes no time.
    Junction,
}

/// One instruction of a step, or a transfer or junction between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) role: Role,
    /// For transfers and junctions, the stage of the instruction that waits.
    pub(crate) stage: Stage,
    pub(crate) instruction: Instruction,
    pub(crate) chunk: Chunk,
    pub(crate) microbatch: Microbatch,
    /// The forward that an instruction of two runs beside its backward.
    pub(crate) forward: Option<OverlappedForward>,
}

impl Operation {
    /// An instruction of a stage.
    pub(crate) fn run(stage: Stage, unit: Unit, forward: Option<OverlappedForward>) -> Self {
        let Unit { instruction, microbatch, chunk } = unit;
        Self { role: Role::Instruction, stage, instruction, chunk, microbatch, forward }
    }

    /// Whether a stage runs it.
    pub(crate) fn is_run(&self) -> bool {
        self.role == Role::Instruction
    }

    pub(crate) fn part(&self) -> Part {
        Part::of(self.chunk, self.microbatch)
    }

    pub(crate) fn unit(&self) -> Unit {
        Unit { instruction: self.instruction, microbatch: self.microbatch, chunk: self.chunk }
    }

    pub(crate) fn stage_unit(&self) -> StageUnit {
        StageUnit::new(self.stage, self.unit())
    }
}
