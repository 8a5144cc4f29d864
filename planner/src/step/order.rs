//! What stages run, and whether a list of instructions is an order that a stage can run, wherever
//! it comes from.

use pfo_vocabulary::{Chunk, Instruction, Stage, Unit};

use crate::step::dependencies::{Dependency, StageUnit};

/// What one stage runs, first to last.
pub type StageOrder = Vec<Unit>;

/// What each stage runs, and what waits for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Stage `s` is at index `s`.
    pub(crate) stages: Vec<StageOrder>,
    pub(crate) num_microbatches: u32,
    /// Of instructions that wait for something else than what follows from the rule.
    pub(crate) dependencies: Vec<Dependency>,
}

impl Order {
    /// Microbatches of a step.
    pub fn num_microbatches(&self) -> u32 {
        self.num_microbatches
    }

    /// Every instruction, stage by stage.
    pub(crate) fn units(&self) -> impl Iterator<Item = StageUnit> {
        (0..)
            .map(Stage)
            .zip(&self.stages)
            .flat_map(|(stage, order)| order.iter().map(move |&unit| StageUnit::new(stage, unit)))
    }
}

/// What is wrong with an order, and at which of its instructions, if at one.
pub(crate) struct Misordered {
    pub(crate) instruction: Option<usize>,
    pub(crate) problem: String,
}

/// Every microbatch of every chunk once forward and once backward, and nothing twice.
pub(crate) fn check_order(
    units: impl ExactSizeIterator<Item = Unit> + Clone,
    num_microbatches: u32,
) -> Result<(), Misordered> {
    let length = units.len();
    let mut chunks = 1;
    for (index, unit) in units.clone().enumerate() {
        let wrong = |problem| Misordered { instruction: Some(index), problem };
        let limit = Chunk::MAX_CHUNKS;
        if unit.chunk.0 >= limit {
            return Err(wrong(format!("{unit}, but a stage has at most {limit} chunks")));
        }
        if unit.microbatch.0 >= num_microbatches {
            return Err(wrong(format!("{unit}, but num_microbatches is {num_microbatches}")));
        }
        chunks = chunks.max(usize::from(unit.chunk.0) + 1);
    }
    let microbatches = num_microbatches as usize;
    // Also keeps a short file from having much memory taken for it.
    if chunks > 1 && length < 2 * chunks * microbatches {
        return Err(Misordered {
            instruction: None,
            problem: format!(
                "{length} instructions for {chunks} chunks of {microbatches} microbatches, must \
                 have a forward and a backward of each"
            ),
        });
    }

    // A bit for each instruction of each microbatch of each chunk.
    let mut seen = vec![0_u16; chunks * microbatches];
    for (index, unit) in units.enumerate() {
        let place = usize::from(unit.chunk.0) * microbatches + unit.microbatch.0 as usize;
        let bit = 1 << unit.instruction as u16;
        if seen[place] & bit != 0 {
            return Err(Misordered {
                instruction: Some(index),
                problem: format!("{unit} a second time"),
            });
        }
        seen[place] |= bit;
    }
    for (place, &seen) in seen.iter().enumerate() {
        let has = |instruction: &Instruction| seen & (1 << *instruction as u16) != 0;
        let count = |belongs: fn(Instruction) -> bool| {
            Instruction::ALL.iter().filter(|&i| belongs(*i) && has(i)).count()
        };
        let forwards = count(|instruction| instruction == Instruction::Forward);
        let backwards = count(Instruction::is_backward);
        if (forwards, backwards) != (1, 1) {
            let (chunk, microbatch) = (place / microbatches, place % microbatches);
            let of = if chunk > 0 { format!(" of chunk {chunk}") } else { String::new() };
            return Err(Misordered {
                instruction: None,
                problem: format!(
                    "microbatch {microbatch}{of} has {forwards} forward and {backwards} backward \
                     instructions, must have one of each ({length} instructions for \
                     {microbatches} microbatches)"
                ),
            });
        }
    }
    Ok(())
}
