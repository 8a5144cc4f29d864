//! A rank with a plan, for tests.

use pfo_protocol::{Chunk, Event, Instruction, Mark, Mhz, Microbatch, PlannedUnit, Unit};

use super::cursor::Cursor;
use super::mismatch::Mismatch;
use super::wish::Wish;
use crate::job::StageClocks;

pub(super) const F0: Unit =
    Unit { instruction: Instruction::Forward, chunk: Chunk(0), microbatch: Microbatch(0) };
pub(super) const B0: Unit =
    Unit { instruction: Instruction::Backward, chunk: Chunk(0), microbatch: Microbatch(0) };
pub(super) const B1: Unit =
    Unit { instruction: Instruction::Backward, chunk: Chunk(0), microbatch: Microbatch(1) };

pub(super) struct Driven {
    pub cursor: Cursor,
    pub sequence: u64,
}

impl Driven {
    pub(super) fn with_plan() -> Self {
        let mut cursor = Cursor::default();
        let planned = [(F0, 900), (B0, 1200)];
        let planned = planned.map(|(unit, mhz)| PlannedUnit {
            unit,
            mhz: Mhz(mhz),
            wait_mhz: Some(Mhz(mhz / 3)),
        });
        cursor.follow(Some(StageClocks::Planned(planned.into_iter().collect())));
        Self { cursor, sequence: 0 }
    }

    pub(super) fn send(&mut self, mark: Mark) -> (Option<Mismatch>, Wish) {
        let event = Event { sequence: self.sequence, client_ns: self.sequence * 10, mark };
        self.sequence += 1;
        (self.cursor.event(&event).mismatch, self.cursor.wish())
    }
}
