//! Interleaved 1F1B with virtual stages (Narayanan et al., SC 2021), as Megatron-LM and PyTorch run it.
//!
//! Each stage holds several chunks of the model, chunk `c` of stage `s` being the virtual stage
//! `c N + s`. Microbatches go through in groups of `G`: all of a group on chunk 0, then all of it
//! on chunk 1 and so on, backwards from the last chunk to the first. Stage `s` runs
//! `2 (N - s - 1) + (V - 1) G` forwards ahead, then a forward and a backward in turn.
//!
//! `G` is `N` unless the microbatches do not form groups of `N`. PyTorch makes fewer and larger groups
//! of equal size then, Megatron takes any size from `N` and lets the last group be smaller.

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Unit};

use crate::error::PlanError;
use crate::schedule::settings::Settings;
use crate::step::order::StageOrder;

/// # Errors
/// If the number of chunks is not between 2 and 64, or the microbatches do not form groups.
pub(super) fn orders(
    num_stages: u16,
    num_microbatches: u32,
    settings: &Settings,
) -> Result<Vec<StageOrder>, PlanError> {
    check_chunks(settings.chunks, 2)?;
    let (n, m) = (u32::from(num_stages), num_microbatches);
    let group = match settings.microbatch_group {
        Some(group) => given_group(group, n, m)?,
        None => equal_group(n, m)?,
    };
    let table = table(m, settings.chunks, group);
    let more = u32::from(settings.extra_warm_up);
    let order = |stage| {
        let ahead = 2 * (n - 1 - stage) + (u32::from(settings.chunks) - 1) * group + more;
        order(&table, settings.chunks, ahead as usize)
    };
    Ok((0..n).map(order).collect())
}

/// # Errors
/// If a stage cannot have as few or as many chunks.
pub(super) fn check_chunks(chunks: u16, least: u16) -> Result<(), PlanError> {
    if (least..=Chunk::MAX_CHUNKS).contains(&chunks) {
        return Ok(());
    }
    Err(PlanError::BadArgument {
        name: "the number of chunks",
        value: chunks.to_string(),
        expected: if least > 1 { "between 2 and 64" } else { "between 1 and 64" },
    })
}

/// The size of PyTorch's rounds.
///
/// # Errors
/// If the microbatches do not form rounds of equal size.
pub(super) fn equal_group(num_stages: u32, num_microbatches: u32) -> Result<u32, PlanError> {
    let rounds = (num_microbatches / num_stages).max(1);
    if num_microbatches.is_multiple_of(rounds) {
        return Ok(num_microbatches / rounds);
    }
    Err(PlanError::BadArgument {
        name: "the number of microbatches",
        value: num_microbatches.to_string(),
        expected: "a multiple of the number of stages, or of the number of rounds that PyTorch \
                   makes of it (microbatches / stages, rounded down); set the microbatch group \
                   that Megatron runs, or pass an order as a file",
    })
}

/// Megatron's group.
///
/// # Errors
/// If Megatron refuses it.
fn given_group(group: u32, num_stages: u32, num_microbatches: u32) -> Result<u32, PlanError> {
    let last = num_microbatches % group.max(1);
    if (num_stages..=num_microbatches).contains(&group) && (last == 0 || last >= num_stages) {
        return Ok(group);
    }
    Err(PlanError::BadArgument {
        name: "the microbatch group",
        value: group.to_string(),
        expected: "between the number of stages and that of microbatches, and the last group at \
                   least as large as the number of stages",
    })
}

/// The forwards of a stage, first to last. The backwards run through the same with the chunks reversed.
fn table(num_microbatches: u32, chunks: u16, group: u32) -> Vec<(Microbatch, Chunk)> {
    let mut table = Vec::with_capacity(num_microbatches as usize * usize::from(chunks));
    for first in (0..num_microbatches).step_by(group as usize) {
        let end = (first + group).min(num_microbatches);
        for chunk in (0..chunks).map(Chunk) {
            table.extend((first..end).map(|microbatch| (Microbatch(microbatch), chunk)));
        }
    }
    table
}

fn order(table: &[(Microbatch, Chunk)], chunks: u16, ahead: usize) -> StageOrder {
    let forward = |&(microbatch, chunk): &(Microbatch, Chunk)| Unit {
        instruction: Instruction::Forward,
        microbatch,
        chunk,
    };
    let backward = |&(microbatch, chunk): &(Microbatch, Chunk)| Unit {
        instruction: Instruction::Backward,
        microbatch,
        chunk: Chunk(chunks - 1 - chunk.0),
    };
    let (warm_up, rest) = table.split_at(ahead.min(table.len()));
    let mut order: StageOrder = warm_up.iter().map(forward).collect();
    let mut rest = rest.iter();
    for place in table {
        order.extend(rest.next().map(forward));
        order.push(backward(place));
    }
    order
}

/// Interleaved zero bubble as PyTorch runs it: the same with split backwards, fewer forwards ahead, and
/// weight gradients that stage `s` puts off by `s` of its backwards.
///
/// # Errors
/// If the number of chunks is not between 1 and 64, or the microbatches do not form groups.
pub(super) fn zero_bubble(
    num_stages: u16,
    num_microbatches: u32,
    settings: &Settings,
) -> Result<Vec<StageOrder>, PlanError> {
    check_chunks(settings.chunks, 1)?;
    let n = u32::from(num_stages);
    let group = equal_group(n, num_microbatches)?;
    let table = table(num_microbatches, settings.chunks, group);
    let order = |stage: u32| {
        let ahead = (n - 1 - stage) + (u32::from(settings.chunks) - 1) * group;
        split(order(&table, settings.chunks, ahead as usize), stage as usize)
    };
    Ok((0..n).map(order).collect())
}

/// An order with each backward in two, the second of which comes so many backwards later.
fn split(order: StageOrder, put_off: usize) -> StageOrder {
    let is_backward = |unit: &&Unit| unit.instruction == Instruction::Backward;
    let weight = |unit: &Unit| Unit { instruction: Instruction::BackwardWeight, ..*unit };
    let backwards: StageOrder = order.iter().filter(is_backward).copied().collect();
    let mut weights = backwards.iter().map(weight);
    let mut split = StageOrder::with_capacity(order.len() + backwards.len());
    let mut done = 0;
    for unit in order {
        if unit.instruction == Instruction::Forward {
            split.push(unit);
            continue;
        }
        split.push(Unit { instruction: Instruction::BackwardInput, ..unit });
        split.extend((done >= put_off).then(|| weights.next()).flatten());
        done += 1;
    }
    split.extend(weights);
    split
}

#[cfg(test)]
mod tests {
    use pfo_vocabulary::Stage;

    use super::*;
    use crate::schedule::written::written;
    use crate::step::delays::Delays;
    use crate::step::network::Network;

    fn settings(chunks: u16) -> Settings {
        Settings { chunks, ..Settings::default() }
    }

    fn orders(n: u16, m: u32, chunks: u16) -> Result<Vec<StageOrder>, PlanError> {
        super::orders(n, m, &settings(chunks))
    }

    fn of(orders: Result<Vec<StageOrder>, PlanError>, stage: usize) -> String {
        written(&orders.unwrap()[stage])
    }

    #[test]
    fn microbatches_that_are_no_multiple_form_fewer_and_larger_groups() {
        let last = "F0 F1 F2 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 B0 B1 B2";
        assert_eq!(of(orders(2, 3, 2), 1), last);
        assert_eq!(of(orders(4, 3, 2), 3), last);
        let by_five = Settings { microbatch_group: Some(5), ..settings(2) };
        assert_eq!(orders(4, 10, 2).unwrap(), super::orders(4, 10, &by_five).unwrap());
    }

    #[test]
    fn a_group_may_be_larger_than_the_number_of_stages_and_the_last_one_smaller() {
        let of_group = |group| {
            let settings = Settings { microbatch_group: Some(group), ..settings(2) };
            super::orders(2, 5, &settings)
        };
        assert_eq!(of(of_group(3), 1).split(" B").next().unwrap(), "F0 F1 F2 F0.1");
        assert!(of(of_group(3), 1).contains("F3 B0 F4 B1 F3.1 B2 F4.1"), "{}", of(of_group(3), 1));
        for group in [0, 1, 4, 6] {
            let message = of_group(group).unwrap_err().to_string();
            assert!(message.contains(&format!("microbatch group is {group}")), "{message}");
        }
    }

    #[test]
    fn an_extra_warm_up_is_one_forward_on_every_stage() {
        let more = super::orders(2, 4, &Settings { extra_warm_up: true, ..settings(2) }).unwrap();
        for (more, plain) in more.iter().zip(orders(2, 4, 2).unwrap()) {
            let ahead = |order: &StageOrder| {
                order.iter().take_while(|unit| unit.instruction == Instruction::Forward).count()
            };
            assert_eq!(ahead(more), ahead(&plain) + 1);
        }
    }

    #[test]
    fn zero_bubble_of_one_chunk_is_zb_h1() {
        for (n, m) in [(1, 1), (2, 4), (3, 6), (4, 3), (4, 12)] {
            let split = zero_bubble(n, m, &settings(1)).unwrap();
            for (stage, order) in (0..).map(Stage).zip(&split) {
                assert_eq!(written(order), written(&crate::schedule::zb_h1::order(stage, n, m)));
            }
        }
    }

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
        assert!(orders(4, 9, 2).unwrap_err().to_string().contains("9, must be a multiple"));
        assert!(orders(4, 8, 1).unwrap_err().to_string().contains("chunks is 1"));
        assert!(orders(4, 8, 65).unwrap_err().to_string().contains("chunks is 65"));
    }
}
