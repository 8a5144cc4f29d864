//! ZB-H1, the zero-bubble schedule that needs no more memory than 1F1B (Qi, Wan, Huang and Lin,
//! "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.1 and figure 3).
//!
//! A backward is split: its `backward_input` is what the previous stage waits for, its
//! `backward_weight` can run at any time after. The order is 1F1B's with input gradients for
//! backwards, and stage `s` puts its weight gradients off by `s` microbatches: it starts with
//! `N - s` activations in flight, so with those of `s` put-off weight gradients every stage keeps
//! `N`, which is what 1F1B's first stage keeps. The weight gradients that are left fill the waits
//! at the end of the step.

use pfo_vocabulary::{Instruction, Stage, Unit};

use crate::schedule::one_forward_one_backward;
use crate::step::order::StageOrder;

pub(super) fn order(stage: Stage, num_stages: u16, num_microbatches: u32) -> StageOrder {
    let put_off = u32::from(stage.0);
    let mut order = StageOrder::new();
    let mut weights = 0..num_microbatches;
    for unit in one_forward_one_backward::order(stage, num_stages, num_microbatches) {
        if unit.instruction == Instruction::Forward {
            order.push(unit);
            continue;
        }
        order.push(Unit::new(Instruction::BackwardInput, unit.microbatch.0));
        // Ahead of the next forward, which takes the memory that this frees.
        if unit.microbatch.0 >= put_off {
            order.extend(weights.next().map(|m| Unit::new(Instruction::BackwardWeight, m)));
        }
    }
    order.extend(weights.map(|m| Unit::new(Instruction::BackwardWeight, m)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::written::written;
    use crate::step::delays::Delays;
    use crate::step::network::Network;

    fn stages(num_stages: u16, num_microbatches: u32) -> Vec<StageOrder> {
        (0..num_stages).map(|s| order(Stage(s), num_stages, num_microbatches)).collect()
    }

    #[test]
    fn later_stages_put_their_weight_gradients_off_for_longer() {
        let written: Vec<String> = stages(3, 4).iter().map(|order| written(order)).collect();
        assert_eq!(
            written,
            [
                "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3",
                "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
                "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3",
            ]
        );
    }

    #[test]
    fn no_stage_keeps_more_activations_than_the_first_one_of_1f1b() {
        for (num_stages, num_microbatches) in [(4, 8), (8, 32), (5, 3), (1, 4)] {
            for order in stages(num_stages, num_microbatches) {
                let mut kept = 0_u16;
                for unit in order {
                    match unit.instruction {
                        Instruction::Forward => kept += 1,
                        Instruction::BackwardWeight => kept -= 1,
                        _ => {}
                    }
                    assert!(kept <= num_stages);
                }
                assert_eq!(kept, 0);
            }
        }
    }

    #[test]
    fn with_equal_times_a_third_of_the_waiting_of_1f1b_is_left() {
        // The paper's (N - 1)(T_F + T_B - T_W) instead of (N - 1)(T_F + T_B + T_W).
        let network = Network::new(&stages(4, 8), Delays::default()).unwrap();
        assert_eq!(network.makespan(|_| 1.0), 8.0 * 3.0 + 3.0);
    }
}
