//! Breadth-first pipeline parallelism (Lamy-Poirier, 2023) as the `ScheduleLoopedBFS` of torch runs
//! it: every microbatch on chunk 0, then every one on chunk 1 and so on, and all the way back in reverse.

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Unit};

use crate::error::PlanError;
use crate::schedule::interleaved::check_chunks;
use crate::step::order::StageOrder;

/// # Errors
/// If `chunks` is not between 1 and 64.
pub(super) fn order(num_microbatches: u32, chunks: u16) -> Result<StageOrder, PlanError> {
    check_chunks(chunks, 1)?;
    let all = (0..chunks).map(Chunk).flat_map(|chunk| {
        let microbatches = (0..num_microbatches).map(Microbatch);
        microbatches.map(move |microbatch| Unit {
            instruction: Instruction::Forward,
            chunk,
            microbatch,
        })
    });
    let forwards: StageOrder = all.collect();
    let backwards = forwards.iter().rev();
    let backwards = backwards.map(|unit| Unit { instruction: Instruction::Backward, ..*unit });
    let order = forwards.iter().copied().chain(backwards).collect();
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::written::written;

    #[test]
    fn the_way_back_is_the_way_there_in_reverse() {
        let expected = "F0 F1 F0.1 F1.1 B1.1 B0.1 B1 B0";
        assert_eq!(written(&order(2, 2).unwrap()), expected);
        assert!(order(2, 0).is_err() && order(2, 65).is_err());
    }
}
