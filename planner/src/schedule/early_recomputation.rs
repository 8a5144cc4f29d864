//! Early-recomputation 1F1B, the schedule of Merak (Lai et al., TPDS 2023): at the end of the step,
//! activations are recomputed while the gradient is still on its way.
//!
//! The order is that of 1F1B. Where a stage would wait for a gradient because it has no forward
//! left to run, it repeats the microbatch's forward first (`recomputation`) and then needs a plain
//! `backward`. Everywhere else there is nothing to gain, and the backward recomputes inside
//! (`forward_backward`); so does that of the last stage, which never waits.

use pfo_vocabulary::{Instruction, Stage, Unit};

use crate::schedule::one_forward_one_backward;
use crate::step::order::StageOrder;

pub(super) fn order(stage: Stage, num_stages: u16, num_microbatches: u32) -> StageOrder {
    let mut order = StageOrder::new();
    for unit in one_forward_one_backward::order(stage, num_stages, num_microbatches) {
        let m = unit.microbatch.0;
        // The forward in the slot before this backward: Merak's slots are those of 1F1B.
        let forward_before = m + u32::from(num_stages - 1 - stage.0);
        if unit.instruction == Instruction::Forward {
            order.push(unit);
        } else if forward_before < num_microbatches {
            order.push(Unit::new(Instruction::ForwardBackward, m));
        } else {
            order.push(Unit::new(Instruction::Recomputation, m));
            order.push(Unit::new(Instruction::Backward, m));
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::written::written;

    fn stages(num_stages: u16, num_microbatches: u32) -> Vec<String> {
        (0..num_stages).map(|s| written(&order(Stage(s), num_stages, num_microbatches))).collect()
    }

    #[test]
    fn four_stages_with_eight_microbatches_run_the_order_of_the_reference() {
        assert_eq!(
            stages(4, 8),
            [
                "F0 F1 F2 F3 FB0 F4 FB1 F5 FB2 F6 FB3 F7 FB4 R5 B5 R6 B6 R7 B7",
                "F0 F1 F2 FB0 F3 FB1 F4 FB2 F5 FB3 F6 FB4 F7 FB5 R6 B6 R7 B7",
                "F0 F1 FB0 F2 FB1 F3 FB2 F4 FB3 F5 FB4 F6 FB5 F7 FB6 R7 B7",
                "F0 FB0 F1 FB1 F2 FB2 F3 FB3 F4 FB4 F5 FB5 F6 FB6 F7 FB7",
            ]
        );
    }

    #[test]
    fn a_stage_repeats_as_many_forwards_as_there_are_stages_behind_it() {
        for stage in 0..4 {
            let order = order(Stage(stage), 4, 8);
            let is_forward = |unit: &&Unit| {
                matches!(unit.instruction, Instruction::Forward | Instruction::Recomputation)
            };
            assert_eq!(order.iter().filter(is_forward).count(), 8 + usize::from(4 - stage - 1));
        }
    }

    #[test]
    fn with_fewer_microbatches_than_stages_nearly_all_of_them_are_recomputed_early() {
        assert_eq!(stages(3, 2), ["F0 F1 R0 B0 R1 B1", "F0 F1 FB0 R1 B1", "F0 FB0 F1 FB1"]);
    }
}
