//! ZB-V, the zero-bubble schedule over two model chunks of each stage (Qi, Wan, Huang and Lin,
//! "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6), in PyTorch's order.
//!
//! The last layers are on the first stage, so that gradients begin there and flow down the stages.
//! If forward, `backward_input` and `backward_weight` take equally long, a stage that has begun
//! never waits. It keeps at most `2 N` activations of chunks that are half as large as a stage:
//! what the first stage of 1F1B keeps.
//!
//! The order is that of at least `2 N - 1` microbatches, without those beyond `M`.

use pfo_vocabulary::Stage;

use crate::schedule::v_order::{DOWN, UP, VOrder};
use crate::step::order::StageOrder;

pub(super) fn order(stage: Stage, num_stages: u16, num_microbatches: u32) -> StageOrder {
    let (s, n) = (u32::from(stage.0), u32::from(num_stages));
    let filling = num_microbatches.max(2 * n - 1);
    let mut v = VOrder::default();
    for _ in 0..2 * (n - s) - 1 {
        v.forward(DOWN);
    }
    for _ in 0..s {
        v.forward(UP);
        v.forward(DOWN);
    }
    for _ in s..n {
        v.forward(UP);
        v.input_and_weight(UP);
    }
    while v.forwards(UP) < filling {
        if v.forwards(DOWN) < filling {
            v.forward(DOWN);
        }
        v.input_and_weight(DOWN);
        v.forward(UP);
        v.input_and_weight(UP);
    }
    for _ in 0..s {
        v.input(DOWN);
        v.input(UP);
    }
    for _ in s..n {
        v.input(DOWN);
        v.weight_of(DOWN);
    }
    v.weights_of(UP);
    v.weights_of(DOWN);
    v.order.retain(|unit| unit.microbatch.0 < num_microbatches);
    v.order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::written::{most_kept, written};
    use crate::step::delays::Delays;
    use crate::step::network::Network;
    use crate::step::order::Order;
    use crate::step::placement::Placement;

    fn stages(num_stages: u16, num_microbatches: u32) -> Vec<StageOrder> {
        (0..num_stages).map(|s| order(Stage(s), num_stages, num_microbatches)).collect()
    }

    fn network(num_stages: u16, num_microbatches: u32) -> Network {
        let orders = stages(num_stages, num_microbatches);
        let order = Order::plain(orders, num_microbatches, Placement::V);
        Network::of(&order, Delays::default()).unwrap()
    }

    #[test]
    fn two_stages_run_pytorchs_order() {
        let written: Vec<String> = stages(2, 3).iter().map(|order| written(order)).collect();
        assert_eq!(
            written,
            [
                "F0 F1 F2 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 B0 W0 F2.1 B2.1 W2.1 B1 W1 B2 W2",
                "F0 F0.1 F1 F1.1 B0.1 W0.1 F2 B0 W0 F2.1 B1.1 W1.1 B1 B2.1 B2 W1 W2.1 W2",
            ]
        );
    }

    #[test]
    fn with_equal_times_no_stage_waits_between_its_first_and_last_instruction() {
        for (n, m) in [(1, 1), (2, 3), (2, 4), (4, 7), (4, 8), (8, 24), (5, 33)] {
            let network = network(n, m);
            let mut end_s = vec![0.0; network.len() + 1];
            for index in 0..network.len() {
                end_s[index] = network.start_s(index, &end_s) + 1.0;
            }
            for (stage, run) in (0_u32..).zip(&network.stages) {
                let last = *run.last().unwrap() as usize;
                assert_eq!(end_s[last], f64::from(stage + 6 * m), "{n} {m}, stage {stage}");
            }
        }
    }

    #[test]
    fn no_pipeline_deadlocks_and_none_keeps_more_than_twice_as_many_chunks_as_stages() {
        for n in 1..=9 {
            for m in 1..=3 * u32::from(n) {
                assert!(network(n, m).makespan(|_| 1.0) >= f64::from(6 * m), "{n} {m}");
                for order in stages(n, m) {
                    assert_eq!(order.len(), 6 * m as usize);
                    assert!(most_kept(&order) <= 2 * i64::from(n), "{n} {m}");
                }
            }
        }
    }
}
