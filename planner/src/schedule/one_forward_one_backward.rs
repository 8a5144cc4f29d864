//! One forward, one backward: PipeDream-Flush (Narayanan et al., ICML 2021), Megatron-LM's
//! schedule without interleaving.
//!
//! Stage `s` of `N` runs `N - s` forwards, until the first gradient comes back, then a backward and
//! a forward in turn. It therefore keeps at most `N - s` activations.

use pfo_vocabulary::{Instruction, Stage, Unit};

use crate::step::order::StageOrder;

pub(crate) fn order(stage: Stage, num_stages: u16, num_microbatches: u32) -> StageOrder {
    after_warm_up(u32::from(num_stages.saturating_sub(stage.0)), num_microbatches)
}

/// `warm_up` forwards, or all if there are fewer, then a backward and a forward in turn, then the
/// remaining backwards.
pub(super) fn after_warm_up(warm_up: u32, num_microbatches: u32) -> StageOrder {
    let warm_up = warm_up.min(num_microbatches);
    let forward = |m| Unit::new(Instruction::Forward, m);
    let mut order: StageOrder = (0..warm_up).map(forward).collect();
    let mut ahead = warm_up..num_microbatches;
    for m in 0..num_microbatches {
        order.push(Unit::new(Instruction::Backward, m));
        order.extend(ahead.next().map(forward));
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
                "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
                "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
                "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
                "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
            ]
        );
    }

    #[test]
    fn with_fewer_microbatches_than_stages_every_forward_comes_first_on_early_stages() {
        assert_eq!(stages(3, 2), ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]);
        assert_eq!(stages(1, 1), ["F0 B0"]);
    }

    #[test]
    fn a_step_has_as_many_instructions_as_in_meraks_published_schedules() {
        // Its lists also have loads on the first and the last stage, sends and receives (the one
        // and the other with the same neighbour are one where nothing runs in between), two
        // reductions and the optimizer's step.
        let published = [134, 136, 134, 132];
        for (stage, published) in (0..).map(Stage).zip(published) {
            let order = order(stage, 4, 32);
            let (is_first, is_last) = (stage.0 == 0, stage.0 == 3);
            let loads = if is_first || is_last { 32 } else { 0 };
            let merged = |before: Instruction| {
                let pairs = order.windows(2);
                pairs.filter(|p| p[0].instruction == before && p[1].instruction != before).count()
            };
            // An activation goes on and a gradient comes back; a gradient goes on, an activation
            // comes.
            let next = if is_last { 0 } else { 2 * 32 - merged(Instruction::Forward) };
            let previous = if is_first { 0 } else { 2 * 32 - merged(Instruction::Backward) };
            assert_eq!(order.len() + loads + next + previous + 3, published, "stage {stage}");
        }
    }
}
