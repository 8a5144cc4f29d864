//! DualPipe (DeepSeek-AI, "DeepSeek-V3 Technical Report", section 3.2.1), in the order that its
//! authors published.
//!
//! Every stage holds two parts of the model: chunk 0 is its place on the way from the first stage to
//! the last, chunk 1 that on the way back, in a second copy of the model. The first half of the
//! microbatches goes in at the first stage, on chunk 0, and the second half at the last stage, on
//! chunk 1. What a stage and its mirror image run is DualPipeV of half as many stages, for as many
//! microbatches as go each way; stages of the second half run it with the chunks exchanged.

use pfo_vocabulary::{Chunk, Microbatch, Stage, Unit};

use crate::error::PlanError;
use crate::schedule::dualpipe_v::of_stage;
use crate::step::order::Order;
use crate::step::overlap::{OverlappedForward, overlaps_on};
use crate::step::placement::Placement;

/// # Errors
/// If the stages or the microbatches are no pairs, or there are fewer than two microbatches for each
/// stage.
pub(super) fn order(
    num_stages: u16,
    num_microbatches: u32,
    are_overlapped: bool,
) -> Result<Order, PlanError> {
    if !num_stages.is_multiple_of(2) {
        return Err(PlanError::BadArgument {
            name: "the number of stages",
            value: num_stages.to_string(),
            expected: "even with schedule dualpipe; dualpipe-v runs any number",
        });
    }
    if !num_microbatches.is_multiple_of(2) || num_microbatches < 2 * u32::from(num_stages) {
        return Err(PlanError::BadArgument {
            name: "the number of microbatches",
            value: num_microbatches.to_string(),
            expected: "even, and at least twice the number of stages, with schedule dualpipe",
        });
    }
    let each_way = num_microbatches / 2;
    let mut whole = Order::plain(Vec::new(), num_microbatches, Placement::TwoWay);
    for stage in (0..num_stages).map(Stage) {
        let mirrored = Stage(num_stages - 1 - stage.0);
        let v = of_stage(stage.min(mirrored), num_stages / 2, each_way, are_overlapped);
        let placed = |chunk: Chunk, microbatch: Microbatch| {
            let chunk = if stage < mirrored { chunk } else { Chunk(1 - chunk.0) };
            (chunk, Microbatch(microbatch.0 + u32::from(chunk.0) * each_way))
        };
        let unit = |unit: Unit| {
            let (chunk, microbatch) = placed(unit.chunk, unit.microbatch);
            Unit { chunk, microbatch, ..unit }
        };
        let overlapped = v.overlapped.into_iter().map(|(of, forward)| {
            let (chunk, microbatch) = placed(forward.chunk, forward.microbatch);
            (unit(of), Some(OverlappedForward { microbatch, chunk }))
        });
        whole.overlaps.extend(overlaps_on(stage, overlapped));
        whole.stages.push(v.order.into_iter().map(unit).collect());
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use pfo_vocabulary::Instruction;

    use super::*;
    use crate::schedule::written::{makespan, written_stages};

    #[test]
    fn four_stages_run_the_published_order_from_both_ends() {
        let order = order(4, 8, true).unwrap();
        let written = written_stages(&order);
        // The figure of the report, for twice as many: the first stage begins with microbatches of its
        // own end, and its mirror image with those of the other.
        assert_eq!(
            written[0],
            "F0 F1 F2 F4.1 B4.1 W4.1 F5.1 F3&B5.1 F6.1&B0 B6.1 F7.1&B1 B7.1 B2 W2 B3 W3"
        );
        assert_eq!(
            written[3],
            "F4.1 F5.1 F6.1 F0 B0 W0 F1 F7.1&B1 F2&B4.1 B2 F3&B5.1 B3 B6.1 W6.1 B7.1 W7.1"
        );
        assert_eq!(written[1].split(' ').next(), Some("F0"));
        assert_eq!(written[2].split(' ').next(), Some("F4.1"));
    }

    #[test]
    fn it_waits_as_long_as_the_report_says() {
        // (PP/2 - 1) (F&B + B - 3 W), for forwards and halves of a backward of 1. Where overlapping
        // gains time, stages in the middle are less busy than the first, and it waits less.
        for (n, m) in [(2, 4), (4, 8), (8, 20), (8, 32), (16, 48)] {
            for both in [2.0, 2.5, 3.0] {
                let order = order(n, m, true).unwrap();
                let work = |stage: &Vec<Unit>| -> f64 {
                    let time = |unit: &Unit| match unit.instruction {
                        Instruction::Backward => 2.0,
                        Instruction::ForwardBackward => both,
                        _ => 1.0,
                    };
                    stage.iter().map(time).sum()
                };
                let waits = makespan(&order, both) - work(&order.stages[0]);
                let reported = f64::from(n / 2 - 1) * (both + 2.0 - 3.0);
                assert!(waits == reported || both < 3.0 && waits < reported, "{n} {m} {both}");
            }
        }
    }

    #[test]
    fn no_pipeline_deadlocks() {
        for n in (2..=12).step_by(2) {
            for m in (2 * u32::from(n)..5 * u32::from(n)).step_by(2) {
                for are_overlapped in [false, true] {
                    let order = order(n, m, are_overlapped).unwrap();
                    assert!(makespan(&order, 3.0) >= f64::from(3 * m), "{n} {m}");
                }
            }
        }
    }

    #[test]
    fn odd_numbers_and_too_few_microbatches_are_refused() {
        for (n, m, expected) in [(3, 12, "is 3"), (4, 9, "is 9"), (4, 6, "is 6")] {
            let message = order(n, m, false).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("dualpipe"), "{message}");
        }
    }
}
