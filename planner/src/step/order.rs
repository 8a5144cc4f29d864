//! The order in which stages run instructions, and the checks of an order from any source.

use pfo_vocabulary::{Chunk, Instruction, Stage, Unit};

use crate::profile::Profile;
use crate::step::dependencies::{Dependency, StageUnit};
use crate::step::overlap::{OverlappedForward, Overlaps};
use crate::step::placement::Placement;

/// The instructions of one stage, first to last.
pub type StageOrder = Vec<Unit>;

/// The order of a whole step: what each stage runs, and what waits for what.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// By stage.
    pub(crate) stages: Vec<StageOrder>,
    pub(crate) num_microbatches: u32,
    pub(crate) placement: Placement,
    /// Of the instructions that run a forward beside their backward.
    pub(crate) overlaps: Overlaps,
    /// Of the instructions that do not wait by the rule.
    pub(crate) dependencies: Vec<Dependency>,
    /// From the end of an instruction until what it made has reached another stage, in seconds, if
    /// that comes with the order.
    pub(crate) transfer_time_s: Option<f64>,
}

impl Order {
    /// An order without instructions of two, whose instructions wait by the rule.
    pub(crate) fn plain(
        stages: Vec<StageOrder>,
        num_microbatches: u32,
        placement: Placement,
    ) -> Self {
        Self {
            stages,
            num_microbatches,
            placement,
            overlaps: Overlaps::new(),
            dependencies: Vec::new(),
            transfer_time_s: None,
        }
    }

    /// The instructions of each stage, by stage.
    pub fn stages(&self) -> &[StageOrder] {
        &self.stages
    }

    /// The forward that an instruction of a stage runs beside its backward, if it is one of two.
    pub fn overlapped(&self, stage: Stage, unit: Unit) -> Option<OverlappedForward> {
        self.overlaps.get(&StageUnit::new(stage, unit)).copied()
    }

    /// The order with this time of a transfer between two stages, in seconds, in place of that of its
    /// file.
    #[must_use]
    pub fn with_transfer_time(self, transfer_time_s: f64) -> Self {
        Self { transfer_time_s: Some(transfer_time_s), ..self }
    }

    /// The number of microbatches of a step.
    pub fn num_microbatches(&self) -> u32 {
        self.num_microbatches
    }

    /// The order in which instructions of two that a profile lacks are two, forward first. An order that
    /// says itself what waits for what names them, and remains.
    pub(crate) fn with_pairs_as_measured(&self, profile: &Profile) -> Self {
        let mut order = self.clone();
        if !self.dependencies.is_empty() {
            return order;
        }
        for (stage, units) in (0..).map(Stage).zip(&mut order.stages) {
            if !profile.table(stage, Instruction::ForwardBackward).is_empty() {
                continue;
            }
            let apart = units.iter().flat_map(|&unit| {
                match order.overlaps.remove(&StageUnit::new(stage, unit)) {
                    Some(forward) => {
                        let backward = Unit { instruction: Instruction::Backward, ..unit };
                        vec![forward.unit(), backward]
                    }
                    None => vec![unit],
                }
            });
            *units = apart.collect();
        }
        order
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

/// Checks that every microbatch runs once forward and once backward on every chunk, or on one of
/// them where each is a copy of the model, and that no instruction is listed twice. One `forward_backward`
/// without a forward beside it is both.
pub(crate) fn check_order(
    units: impl ExactSizeIterator<Item = (Unit, Option<OverlappedForward>)> + Clone,
    num_microbatches: u32,
    placement: Placement,
) -> Result<(), Misordered> {
    let (length, microbatches) = (units.len(), num_microbatches as usize);
    let run = units.clone().enumerate().flat_map(|(index, (unit, forward))| {
        let forward = forward.map(OverlappedForward::unit);
        [Some(unit), forward].into_iter().flatten().map(move |unit| (index, unit))
    });
    let chunks = count_chunks(run.clone(), num_microbatches)?;
    if let Some((index, problem)) = units.enumerate().find_map(wrong_pair) {
        return Err(Misordered { instruction: Some(index), problem });
    }
    let passes = run.clone().filter(|(_, unit)| is_pass(unit.instruction)).count();
    let parts = if placement.is_one_model() { chunks } else { 1 };
    // Also bounds the memory that a short file can make this take.
    if chunks > 1 && passes < 2 * parts * microbatches {
        return Err(Misordered {
            instruction: None,
            problem: format!(
                "{passes} forwards and backwards for {chunks} chunks of {microbatches} microbatches, \
                 must have a forward and a backward of each"
            ),
        });
    }

    let seen = seen(run, chunks, microbatches)?;
    let runs = |place: usize| count(seen[place], is_pass) > 0;
    let runs_somewhere: Vec<bool> = (0..microbatches)
        .map(|microbatch| (microbatch..seen.len()).step_by(microbatches).any(runs))
        .collect();
    for (place, &seen) in seen.iter().enumerate() {
        let (chunk, microbatch) = (place / microbatches, place % microbatches);
        if !placement.is_one_model() && !runs(place) && runs_somewhere[microbatch] {
            continue;
        }
        let forwards = count(seen, |instruction| instruction == Instruction::Forward);
        let backwards = count(seen, Instruction::is_backward);
        let is_whole = seen & (1 << Instruction::ForwardBackward as u16) != 0 && forwards == 0;
        if (forwards + usize::from(is_whole), backwards) != (1, 1) {
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

/// For each microbatch of each chunk a bit for each of its instructions.
fn seen(
    run: impl Iterator<Item = (usize, Unit)>,
    chunks: usize,
    microbatches: usize,
) -> Result<Vec<u16>, Misordered> {
    let mut seen = vec![0_u16; chunks * microbatches];
    for (index, unit) in run {
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
    Ok(seen)
}

fn count(seen: u16, belongs: fn(Instruction) -> bool) -> usize {
    let has = |instruction: &Instruction| seen & (1 << *instruction as u16) != 0;
    Instruction::ALL.iter().filter(|&i| belongs(*i) && has(i)).count()
}

pub(super) fn is_pass(instruction: Instruction) -> bool {
    instruction == Instruction::Forward || instruction.is_backward()
}

/// What is wrong with an instruction that says whose forward it runs.
fn wrong_pair(
    (index, (unit, forward)): (usize, (Unit, Option<OverlappedForward>)),
) -> Option<(usize, String)> {
    let forward = forward?.unit();
    if unit.instruction != Instruction::ForwardBackward {
        return Some((index, format!("{unit} has a forward; only a forward_backward runs one")));
    }
    let of_both = |unit: Unit| (unit.chunk, unit.microbatch);
    (of_both(unit) == of_both(forward)).then(|| {
        (index, format!("{unit} overlaps its own forward, which must be done before; leave it out"))
    })
}

/// The number of chunks of a stage, none of whose units is out of range.
fn count_chunks(
    units: impl Iterator<Item = (usize, Unit)>,
    num_microbatches: u32,
) -> Result<usize, Misordered> {
    let mut chunks = 1;
    for (index, unit) in units {
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
    Ok(chunks)
}
