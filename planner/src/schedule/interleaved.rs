//! Interleaved 1F1B with virtual stages (Narayanan et al., SC 2021), in Megatron-LM's order.
//!
//! Each stage holds several chunks of the model, chunk `c` of stage `s` being the virtual stage
//! `c N + s`. Microbatches go through in groups of `N`: all of a group on chunk 0, then all of it
//! on chunk 1 and so on, backwards from the last chunk to the first. Stage `s` runs
//! `2 (N - s - 1) + (V - 1) N` forwards ahead, then a forward and a backward in turn.

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Stage, Unit};

use crate::error::PlanError;
use crate::step::order::StageOrder;

/// # Errors
/// If `chunks` is not between 2 and 64, or the microbatches do not form whole groups.
pub(super) fn orders(
    num_stages: u16,
    num_microbatches: u32,
    chunks: u16,
) -> Result<Vec<StageOrder>, PlanError> {
    if !(2..=Chunk::MAX_CHUNKS).contains(&chunks) {
        return Err(PlanError::BadArgument {
            name: "the number of chunks",
            value: chunks.to_string(),
            expected: "between 2 and 64",
        });
    }
    if !num_microbatches.is_multiple_of(u32::from(num_stages)) {
        return Err(PlanError::BadArgument {
            name: "the number of microbatches",
            value: num_microbatches.to_string(),
            expected: "a multiple of the number of stages with schedule interleaved-1f1b",
        });
    }
    Ok((0..num_stages)
        .map(|stage| order(Stage(stage), num_stages, num_microbatches, chunks))
        .collect())
}

fn order(stage: Stage, num_stages: u16, num_microbatches: u32, chunks: u16) -> StageOrder {
    let (n, v) = (u32::from(num_stages), u32::from(chunks));
    let total = num_microbatches * v;
    let warm_up = (2 * (n - 1 - u32::from(stage.0)) + (v - 1) * n).min(total);
    let unit = |instruction, place: u32| {
        let chunk = place % (n * v) / n;
        let chunk = if instruction == Instruction::Forward { chunk } else { v - 1 - chunk };
        let microbatch = Microbatch(place / (n * v) * n + place % n);
        // Below `chunks`, which is a u16.
        Unit { instruction, microbatch, chunk: Chunk(chunk as u16) }
    };
    let mut order: StageOrder = (0..warm_up).map(|p| unit(Instruction::Forward, p)).collect();
    let mut ahead = warm_up..total;
    for place in 0..total {
        order.extend(ahead.next().map(|ahead| unit(Instruction::Forward, ahead)));
        order.push(unit(Instruction::Backward, place));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::written::written;
    use crate::step::delays::Delays;
    use crate::step::network::Network;

    #[test]
    fn two_stages_of_two_chunks_run_megatrons_order() {
        let orders: Vec<String> =
            orders(2, 4, 2).unwrap().iter().map(|order| written(order)).collect();
        assert_eq!(
            orders,
            [
                "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3",
                "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3",
            ]
        );
    }

    #[test]
    fn with_equal_times_the_wait_is_shorter_by_the_number_of_chunks() {
        // (N - 1)(T_F + T_B) / V of waiting beside the work; here of 2 s and 4 s for all chunks.
        for (n, m, v) in [(4_u16, 8, 2_u16), (4, 12, 3), (2, 4, 2)] {
            let network = Network::new(&orders(n, m, v).unwrap(), Delays::default()).unwrap();
            let chunk = |index: usize| match network.operations[index].instruction {
                Instruction::Forward => 2.0 / f64::from(v),
                _ => 4.0 / f64::from(v),
            };
            let expected = 6.0 * f64::from(m) + 6.0 * f64::from(n - 1) / f64::from(v);
            assert!((network.makespan(chunk) - expected).abs() < 1e-9, "{n} {m} {v}");
        }
    }

    #[test]
    fn a_group_that_is_not_whole_and_a_single_chunk_are_refused_with_their_number() {
        assert!(orders(4, 6, 2).unwrap_err().to_string().contains("6, must be a multiple"));
        assert!(orders(4, 8, 1).unwrap_err().to_string().contains("chunks is 1"));
        assert!(orders(4, 8, 65).unwrap_err().to_string().contains("chunks is 65"));
    }
}
