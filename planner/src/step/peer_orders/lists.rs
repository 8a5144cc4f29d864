//! Orders as Python prints lists: those of Megatron-Core and of DeepSpeed.
//!
//! Megatron-Core's is the `_order` that it makes for CUDA graphs: for each stage its chunks counted from
//! 1, `c` for a forward and `-c` for a backward, each time of the next microbatch.
//! DeepSpeed's is `[[list(step) for step in schedule.steps()] …]` over its `TrainSchedule`s: for each
//! stage its steps, for each step its instructions, `ForwardPass(buffer_id=0)` among them. The buffer is
//! not the microbatch: microbatches are counted.
//!
//! There is one list of all stages, or one list after the other, each for a stage.

use std::collections::HashMap;

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Unit};

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::limits;
use crate::step::order::Order;
use crate::step::order_file::{Entry, checked, refused};
use crate::step::placement::Placement;

/// Lists within lists: stages, steps, instructions.
const DEEPEST: usize = 3;

/// A word of a text with the numbers of the lists that it is in, outermost first.
struct Word<'a> {
    text: &'a str,
    /// The list at the outermost depth, and the one within it.
    outer: usize,
    inner: usize,
    depth: usize,
}

pub(super) fn order(text: &str) -> Result<Order, PlanError> {
    let words = words(text)?;
    let Some(first) = words.first() else {
        return Err(refused("the file", "its lists are empty".to_owned()));
    };
    let is_deepspeed = first.text.contains('(');
    // Stages are the outermost lists, or those within a single one.
    let depth = words.iter().map(|word| word.depth).max().unwrap_or(0);
    let whole = if is_deepspeed { 3 } else { 2 };
    let mut stages: Vec<Vec<&Word>> = Vec::new();
    let mut last = None;
    for word in &words {
        let stage = if depth == whole { (word.outer, word.inner) } else { (word.outer, 0) };
        if last.replace(stage) != Some(stage) {
            stages.push(Vec::new());
        }
        stages.last_mut().into_iter().for_each(|stage| stage.push(word));
    }
    let entries = stages.iter().enumerate().map(|(stage, words)| {
        let mut counts = HashMap::new();
        let mut entries = Vec::new();
        for (place, word) in words.iter().enumerate() {
            let read = if is_deepspeed { deepspeed(word.text) } else { megatron(word.text) };
            let read = read.map_err(|problem| {
                refused(&format!("stage {stage}, instruction {}", place + 1), problem)
            })?;
            entries.extend(read.map(|(instruction, chunk)| {
                let count: &mut u32 = counts.entry((instruction, chunk)).or_default();
                let microbatch = Microbatch(*count);
                *count += 1;
                Entry::of(Unit { instruction, microbatch, chunk: Chunk(chunk) }, None)
            }));
        }
        Ok(entries)
    });
    let stages: Vec<Vec<Entry>> = entries.collect::<Result<_, PlanError>>()?;
    checked(&stages, Placement::Loop, None)
}

fn words(text: &str) -> Result<Vec<Word<'_>>, PlanError> {
    let wrong = |problem: &str| refused("the file", problem.to_owned());
    let (mut words, mut depth, mut outer, mut inner) = (Vec::new(), 0_usize, 0, 0);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let taken = match character {
            '[' => {
                depth += 1;
                match depth {
                    1 => (outer, inner) = (outer + 1, 0),
                    2 => inner += 1,
                    _ => {}
                }
                1
            }
            ']' => {
                depth = depth.checked_sub(1).ok_or_else(|| wrong("a list ends twice"))?;
                1
            }
            ',' => 1,
            character if character.is_whitespace() => character.len_utf8(),
            _ => {
                let length = length_of_word(rest);
                words.push(Word { text: rest[..length].trim_end(), outer, inner, depth });
                length
            }
        };
        if depth > DEEPEST || words.last().is_some_and(|word| word.depth == 0) {
            return Err(wrong("it must have a list for each stage, and no words around it"));
        }
        if words.len() > limits::OPERATIONS {
            return Err(wrong("a step has at most 1048576 instructions"));
        }
        rest = &rest[taken..];
    }
    if depth > 0 { Err(wrong("a list does not end")) } else { Ok(words) }
}

/// The bytes of a word, with what it has in parentheses.
fn length_of_word(text: &str) -> usize {
    let mut is_inside = false;
    let end = text.char_indices().find(|&(_, character)| match character {
        '(' | ')' => {
            is_inside = character == '(';
            false
        }
        ',' | '[' | ']' => !is_inside,
        character => !is_inside && character.is_whitespace(),
    });
    end.map_or(text.len(), |(end, _)| end)
}

fn megatron(word: &str) -> Result<Option<(Instruction, u16)>, String> {
    let chunk: i32 = word.parse().map_err(|_| {
        format!(
            "\"{}\" is no chunk; one is a number from 1, or from -1 down for a backward",
            excerpt(word)
        )
    })?;
    let kind = if chunk > 0 { Instruction::Forward } else { Instruction::Backward };
    let most = u32::from(Chunk::MAX_CHUNKS);
    match chunk.unsigned_abs() {
        number if (1..=most).contains(&number) => Ok(Some((kind, number as u16 - 1))),
        number => Err(format!("chunk {number}; chunks are counted from 1 to {most}")),
    }
}

/// What DeepSpeed's engine runs between forwards and backwards, and pfo does not plan.
const NOT_PLANNED: [&str; 8] = [
    "LoadMicroBatch",
    "SendActivation",
    "RecvActivation",
    "SendGrad",
    "RecvGrad",
    "ReduceGrads",
    "ReduceTiedGrads",
    "OptimizerStep",
];

fn deepspeed(word: &str) -> Result<Option<(Instruction, u16)>, String> {
    let name = word.split('(').next().unwrap_or(word);
    match name {
        "ForwardPass" => Ok(Some((Instruction::Forward, 0))),
        "BackwardPass" => Ok(Some((Instruction::Backward, 0))),
        name if NOT_PLANNED.contains(&name) => Ok(None),
        _ => Err(format!("\"{}\" is no instruction of DeepSpeed's TrainSchedule", excerpt(word))),
    }
}

#[cfg(test)]
mod tests {
    use crate::schedule::written::written_stages;
    use crate::step::order::Order;

    fn read(text: &str) -> Vec<String> {
        let order = Order::from_file(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        written_stages(&order)
    }

    #[test]
    fn megatrons_chunks_are_counted_from_one_and_microbatches_by_their_turn() {
        let text = "[[1, 1, 2, 2, -2, -2, -1, -1], [1, 1, 2, -2, 2, -2, -1, -1]]";
        let expected = ["F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1", "F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1"];
        assert_eq!(read(text), expected);
        let lines = "[1, 1, 2, 2, -2, -2, -1, -1]\n[1, 1, 2, -2, 2, -2, -1, -1]\n";
        assert_eq!(read(lines), expected);
    }

    #[test]
    fn deepspeeds_steps_are_read_as_one_list_or_a_line_for_each_stage() {
        let first = "[[LoadMicroBatch(buffer_id=0), ForwardPass(buffer_id=0)], \
                     [SendActivation(buffer_id=0)], [RecvGrad(buffer_id=0), \
                     BackwardPass(buffer_id=0)], [ReduceTiedGrads(), ReduceGrads(), OptimizerStep()]]";
        let last = "[[RecvActivation(buffer_id=1), ForwardPass(buffer_id=1)], \
                    [BackwardPass(buffer_id=1)]]";
        assert_eq!(read(&format!("[{first}, {last}]")), ["F0 B0", "F0 B0"]);
        assert_eq!(read(&format!("{first}\n{last}\n")), ["F0 B0", "F0 B0"]);
        assert_eq!(read(first), ["F0 B0"]);
    }

    #[test]
    fn what_is_no_such_list_is_refused_with_its_place() {
        for (text, words) in [
            ("[[1, 0, -1]]", "stage 0, instruction 2"),
            ("[[1, -1], [1, 65]]", "stage 1, instruction 2"),
            ("[[1, x]]", "\"x\" is no chunk"),
            ("[[1, -1]", "does not end"),
            ("[[1, -1]]]", "ends twice"),
            ("[1, -1] and [1, -1]", "no words around it"),
            ("[[[[1]]]]", "a list for each stage"),
            ("[]", "empty"),
            ("[[ForwardPass(0), Sleep(1)]]", "no instruction of DeepSpeed"),
            ("[[1, 1, -1]]", "stage 0"),
        ] {
            let message = Order::from_file(text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
