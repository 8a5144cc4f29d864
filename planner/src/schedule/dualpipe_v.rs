//! DualPipeV: DualPipe (DeepSeek-AI, "DeepSeek-V3 Technical Report", section 3.2.1) over two
//! model chunks of each stage, which lie in a V, in PyTorch's order.
//!
//! In the middle of a step, a stage overlaps the forward of one chunk with the backward of the
//! other. Where the profile has rows of such instructions of two, each is planned as one, with one
//! clock. Otherwise the two are planned one after the other, forward first, as PyTorch runs them
//! unless it knows how to overlap them. Towards both ends of the step, backwards are split, and
//! weight gradients fill the waits.

use pfo_vocabulary::{Chunk, Stage};

use crate::error::PlanError;
use crate::schedule::v_order::{DOWN, UP, VOrder};
use crate::step::order::Order;
use crate::step::overlap::overlaps_on;
use crate::step::placement::Placement;

/// # Errors
/// If there are fewer than two microbatches for each stage.
pub(super) fn order(
    num_stages: u16,
    num_microbatches: u32,
    are_overlapped: bool,
) -> Result<Order, PlanError> {
    if num_microbatches < 2 * u32::from(num_stages) {
        return Err(PlanError::BadArgument {
            name: "the number of microbatches",
            value: num_microbatches.to_string(),
            expected: "at least twice the number of stages with schedule dualpipe-v",
        });
    }
    let mut whole = Order::plain(Vec::new(), num_microbatches, Placement::V);
    for stage in (0..num_stages).map(Stage) {
        let v = of_stage(stage, num_stages, num_microbatches, are_overlapped);
        let overlapped = v.overlapped.into_iter().map(|(unit, forward)| (unit, Some(forward)));
        whole.overlaps.extend(overlaps_on(stage, overlapped));
        whole.stages.push(v.order);
    }
    Ok(whole)
}

/// The order of a stage for at least two microbatches for each.
pub(super) fn of_stage(
    stage: Stage,
    num_stages: u16,
    num_microbatches: u32,
    are_overlapped: bool,
) -> VOrder {
    let (s, n) = (u32::from(stage.0), u32::from(num_stages));
    let below = n - s - 1;
    let mut v = VOrder::new(are_overlapped);
    for _ in 0..2 * below {
        v.forward(DOWN);
    }
    for _ in 0..=s {
        v.forward(DOWN);
        v.forward(UP);
    }
    for _ in 0..below {
        v.input_and_weight(UP);
        v.forward(UP);
    }
    for round in 0..num_microbatches - n - below {
        // The last stage's first pair is not overlapped, which makes the others wait less.
        if below == 0 && round == 0 {
            v.forward(DOWN);
            v.backward(UP);
        } else {
            v.overlap(DOWN, UP);
        }
        v.overlap(UP, DOWN);
    }
    for _ in 0..below {
        v.backward(UP);
        v.overlap(UP, DOWN);
    }
    // From the middle of these on, backwards are split; on even stages from a backward of DOWN on.
    let whole = s + 1;
    for place in 0..2 * (s + 1) {
        let chunk: Chunk = if place.is_multiple_of(2) { UP } else { DOWN };
        if place < whole { v.backward(chunk) } else { v.input(chunk) }
    }
    for _ in 0..below {
        v.weight();
        v.input(DOWN);
    }
    for _ in 0..=s {
        v.weight();
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::written::{makespan, most_kept, written_stages};

    fn one_by_one(num_stages: u16, num_microbatches: u32) -> Order {
        order(num_stages, num_microbatches, false).unwrap()
    }

    #[test]
    fn two_stages_run_pytorchs_order() {
        assert_eq!(
            written_stages(&one_by_one(2, 4)),
            [
                "F0 F1 F2 F0.1 B0.1 W0.1 F1.1 F3 B1.1 F2.1 B0 B2.1 F3.1 B1 B3.1 B2 W2 B3 W3",
                "F0 F0.1 F1 F1.1 F2 B0.1 F2.1 B0 F3 B1.1 F3.1 B1 B2.1 B2 B3.1 B3 W3.1 W3",
            ]
        );
        assert_eq!(
            written_stages(&order(2, 4, true).unwrap()),
            [
                "F0 F1 F2 F0.1 B0.1 W0.1 F1.1 F3&B1.1 F2.1&B0 B2.1 F3.1&B1 B3.1 B2 W2 B3 W3",
                "F0 F0.1 F1 F1.1 F2 B0.1 F2.1&B0 F3&B1.1 F3.1&B1 B2.1 B2 B3.1 B3 W3.1 W3",
            ]
        );
    }

    #[test]
    fn with_equal_times_a_step_is_longer_than_its_work_by_one_forward_for_each_stage_but_one() {
        for (n, m) in [(1, 2), (2, 4), (4, 8), (4, 20), (8, 16), (5, 33)] {
            let expected = f64::from(6 * m) + f64::from(n - 1);
            assert_eq!(makespan(&one_by_one(n, m), 3.0), expected, "{n} {m}");
        }
    }

    #[test]
    fn no_pipeline_deadlocks_and_none_keeps_more_than_one_chunk_beyond_two_for_each_stage() {
        for n in 1..=9 {
            for m in 2 * u32::from(n)..5 * u32::from(n) {
                let one_by_one = one_by_one(n, m);
                assert!(makespan(&one_by_one, 3.0) >= f64::from(6 * m), "{n} {m}");
                for stage in &one_by_one.stages {
                    assert!(most_kept(stage) <= 2 * i64::from(n) + 1, "{n} {m}");
                }
                let overlapped = order(n, m, true).unwrap();
                // Two in one wait for the later input of both.
                assert!(makespan(&overlapped, 3.0) >= makespan(&one_by_one, 3.0), "{n} {m}");
                assert!(makespan(&overlapped, 2.0) < makespan(&one_by_one, 3.0), "{n} {m}");
            }
        }
    }

    #[test]
    fn too_few_microbatches_are_refused_with_their_number() {
        let message = order(4, 7, false).unwrap_err().to_string();
        assert!(message.contains("is 7") && message.contains("twice"), "{message}");
    }
}
