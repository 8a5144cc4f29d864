//! The order in which stages run instructions, and the checks of an order from any source.

use pfo_vocabulary::{Chunk, Instruction, Stage, Unit};

use crate::step::dependencies::{Dependency, StageUnit};

/// The instructions of one stage, first to last.
pub type StageOrder = Vec<Unit>;

/// The order of a whole step: what each stage runs, and what waits for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// By stage.
    pub(crate) stages: Vec<StageOrder>,
    pub(crate) num_microbatches: u32,
    /// Of the instructions that do not wait by the rule.
    pub(crate) dependencies: Vec<Dependency>,
}

impl Order {
    /// The number of microbatches of a step.
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

/// What is wrong with an order, and the index of the wrong instruction if there is one.
pub(crate) struct Misordered {
    pub(crate) instruction: Option<usize>,
    pub(crate) problem: String,
}

/// Checks that every microbatch runs once forward and once backward on every chunk, and that no
/// instruction is listed twice.
pub(crate) fn check_order(
    units: impl ExactSizeIterator<Item = Unit> + Clone,
    num_microbatches: u32,
) -> Result<(), Misordered> {
    let chunks = count_chunks(units.clone(), num_microbatches)?;
    let (length, microbatches) = (units.len(), num_microbatches as usize);

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

/// The number of chunks of a stage, none of whose units is out of range.
fn count_chunks(
    units: impl ExactSizeIterator<Item = Unit>,
    num_microbatches: u32,
) -> Result<usize, Misordered> {
    let length = units.len();
    let mut chunks = 1;
    for (index, unit) in units.enumerate() {
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
    // Also bounds the memory that a short file can make this take.
    if chunks > 1 && length < 2 * chunks * microbatches {
        return Err(Misordered {
            instruction: None,
            problem: format!(
                "{length} instructions for {chunks} chunks of {microbatches} microbatches, must \
                 have a forward and a backward of each"
            ),
        });
    }
    Ok(chunks)
}
