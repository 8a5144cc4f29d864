//! The order of a stage with two model chunks, built up one instruction at a time. Each chunk runs
//! its microbatches in turn.

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Unit};

use crate::step::order::StageOrder;
use crate::step::overlap::OverlappedForward;

/// The chunk that leads from the first stage to the last.
pub(super) const DOWN: Chunk = Chunk(0);
/// The chunk that leads back to the first stage.
pub(super) const UP: Chunk = Chunk(1);

#[derive(Default)]
pub(super) struct VOrder {
    pub(super) order: StageOrder,
    /// How many there are so far, by chunk.
    forwards: [u32; 2],
    backwards: [u32; 2],
    /// Weight gradients whose input gradients are in the order, oldest first.
    put_off: Vec<Unit>,
    /// Whether a forward and a backward can be one instruction.
    are_overlapped: bool,
    /// The instructions of two, each with its forward.
    pub(super) overlapped: Vec<(Unit, OverlappedForward)>,
}

impl VOrder {
    /// An empty order of instructions of two, or of those one after the other.
    pub(super) fn new(are_overlapped: bool) -> Self {
        Self { are_overlapped, ..Self::default() }
    }

    pub(super) fn forwards(&self, chunk: Chunk) -> u32 {
        self.forwards[usize::from(chunk.0)]
    }

    pub(super) fn forward(&mut self, chunk: Chunk) {
        let microbatch = next(&mut self.forwards, chunk);
        self.order.push(Unit { instruction: Instruction::Forward, microbatch, chunk });
    }

    /// A backward of inputs and weights in one.
    pub(super) fn backward(&mut self, chunk: Chunk) {
        let microbatch = next(&mut self.backwards, chunk);
        self.order.push(Unit { instruction: Instruction::Backward, microbatch, chunk });
    }

    /// A forward of one chunk beside a whole backward of another.
    pub(super) fn overlap(&mut self, ahead: Chunk, back: Chunk) {
        if !self.are_overlapped {
            self.forward(ahead);
            self.backward(back);
            return;
        }
        let forward =
            OverlappedForward { microbatch: next(&mut self.forwards, ahead), chunk: ahead };
        let microbatch = next(&mut self.backwards, back);
        let unit = Unit { instruction: Instruction::ForwardBackward, microbatch, chunk: back };
        self.order.push(unit);
        self.overlapped.push((unit, forward));
    }

    /// The input gradient; the weight gradient is put off.
    pub(super) fn input(&mut self, chunk: Chunk) {
        let microbatch = next(&mut self.backwards, chunk);
        self.order.push(Unit { instruction: Instruction::BackwardInput, microbatch, chunk });
        self.put_off.push(Unit { instruction: Instruction::BackwardWeight, microbatch, chunk });
    }

    /// The input gradient, then the weight gradient.
    pub(super) fn input_and_weight(&mut self, chunk: Chunk) {
        self.input(chunk);
        self.order.extend(self.put_off.pop());
    }

    /// The oldest weight gradient that was put off, if there is one.
    pub(super) fn weight(&mut self) {
        if !self.put_off.is_empty() {
            self.order.push(self.put_off.remove(0));
        }
    }

    /// The oldest weight gradient of a chunk that was put off, if there is one.
    pub(super) fn weight_of(&mut self, chunk: Chunk) {
        if let Some(oldest) = self.put_off.iter().position(|unit| unit.chunk == chunk) {
            self.order.push(self.put_off.remove(oldest));
        }
    }

    /// Every weight gradient of a chunk that is still put off.
    pub(super) fn weights_of(&mut self, chunk: Chunk) {
        self.order.extend(self.put_off.extract_if(.., |unit| unit.chunk == chunk));
    }
}

fn next(counts: &mut [u32; 2], chunk: Chunk) -> Microbatch {
    let count = &mut counts[usize::from(chunk.0)];
    *count += 1;
    Microbatch(*count - 1)
}
