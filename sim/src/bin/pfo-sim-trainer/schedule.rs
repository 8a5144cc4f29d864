//! The order in which a stage runs the instructions of a step: 1F1B.
//!
//! A stage first runs as many forwards as there are stages from it to the end, itself included, and
//! from then on a backward and a forward in turn, as Narayanan et al. describe it (SOSP 2019).

use nvidia_ml::work::table::Kind;

/// The instructions of a step: kind and microbatch.
pub(crate) fn one_forward_one_backward(
    stage: usize,
    stages: usize,
    microbatches: u32,
) -> Vec<(Kind, u32)> {
    let warm_up = microbatches.min((stages - stage) as u32);
    let mut order: Vec<_> = (0..warm_up).map(|forward| (Kind::Forward, forward)).collect();
    for backward in 0..microbatches {
        order.push((Kind::Backward, backward));
        let forward = backward + warm_up;
        if forward < microbatches {
            order.push((Kind::Forward, forward));
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(stage: usize, stages: usize, microbatches: u32) -> String {
        one_forward_one_backward(stage, stages, microbatches)
            .into_iter()
            .map(|(kind, microbatch)| format!("{}{microbatch} ", &kind.name()[..1]))
            .collect()
    }

    #[test]
    fn the_last_stage_alternates_from_the_start_and_the_first_warms_up() {
        assert_eq!(order(2, 3, 4), "f0 b0 f1 b1 f2 b2 f3 b3 ");
        assert_eq!(order(0, 3, 4), "f0 f1 f2 b0 f3 b1 b2 b3 ");
    }

    #[test]
    fn with_fewer_microbatches_than_stages_all_forwards_come_first() {
        assert_eq!(order(0, 8, 2), "f0 f1 b0 b1 ");
    }

    #[test]
    fn every_microbatch_goes_forward_and_backward_once() {
        for (stage, stages, microbatches) in [(0, 1, 1), (0, 4, 9), (3, 4, 9), (5, 8, 3)] {
            let order = one_forward_one_backward(stage, stages, microbatches);
            for kind in Kind::ALL {
                let run: Vec<_> = order.iter().filter(|(k, _)| *k == kind).map(|i| i.1).collect();
                assert_eq!(run, (0..microbatches).collect::<Vec<_>>());
            }
        }
    }
}
