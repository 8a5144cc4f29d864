//! A step that questions are about, with what all answers about it share.

use std::collections::HashMap;

use pfo_vocabulary::{Chunk, Instruction, Stage};

use crate::choices::tradeoff::{Kind, Tradeoff, Tradeoffs};
use crate::error::PlanError;
use crate::frontier::Frontier;
use crate::limits::SHORT_STEP;
use crate::pipeline::Pipeline;
use crate::relaxation::Relaxation;
use crate::relaxation::events::Events;
use crate::schedule::settings::Settings;

/// Iteration times at which prices are kept.
const PRICED: usize = 96;

/// An operation that no plan has a row for.
const NO_ROW: u32 = u32::MAX;

pub(super) struct Step {
    pub(super) pipeline: Pipeline,
    /// The kinds of operations, and the number of that of each operation.
    pub(super) kinds: Vec<Kind>,
    pub(super) of: Vec<u16>,
    /// For each operation the place of its row in the frontier's plans.
    rows_at: Vec<u32>,
    pub(super) priced: Option<Priced>,
}

/// What a second costs on each arc of a short step, at iteration times all along its frontier.
pub(super) struct Priced {
    pub(super) events: Events,
    /// From slow to fast.
    price_w: Vec<Vec<f64>>,
}

impl Priced {
    fn new(pipeline: &Pipeline, tradeoffs: &Tradeoffs) -> Self {
        let events = Events::new(pipeline.network());
        let mut relaxation = Relaxation::new(&events, tradeoffs);
        let (slowest_s, range_s) =
            (relaxation.slowest_s(), relaxation.slowest_s() - relaxation.fastest_s());
        let mut price_w = vec![vec![0.0; events.arcs.len()]];
        let at_s = |place: usize| slowest_s - range_s * place as f64 / (PRICED - 1) as f64;
        while let Some(piece) = relaxation.advance() {
            while price_w.len() < PRICED && piece.fast_s <= at_s(price_w.len()) {
                price_w.push((0..events.arcs.len()).map(|arc| relaxation.flow_w(arc)).collect());
            }
        }
        Self { events, price_w }
    }

    /// The prices at a share of the range of times, 0 at its fast end.
    pub(super) fn at(&self, share: f64) -> &[f64] {
        let place = ((1.0 - share) * (PRICED - 1) as f64).round();
        // Rounding may keep the walk from the very last time.
        &self.price_w[(place.max(0.0) as usize).min(self.price_w.len() - 1)]
    }
}

impl Step {
    /// The step that a frontier was made for.
    pub(super) fn of(frontier: &Frontier) -> Self {
        let pipeline = frontier.pipeline().clone();
        let network = pipeline.network();
        let mut rows_at = vec![NO_ROW; network.len()];
        for (place, &operation) in (0..).zip(network.stages.iter().flatten()) {
            rows_at[operation as usize] = place;
        }
        Self::new(pipeline, rows_at, frontier)
    }

    /// The step of another number of microbatches. Its instructions begin with the clocks of those that
    /// are as far from an end of the step.
    ///
    /// # Errors
    /// If the order has no name, or does not exist for so many.
    pub(super) fn with_microbatches(frontier: &Frontier, count: u32) -> Result<Self, PlanError> {
        let own = frontier.pipeline();
        let chunks = own.order().units().map(|unit| unit.chunk.0 + 1).max().unwrap_or(1);
        let (delays, fixed) = (own.delays(), own.order().fixed());
        let settings = Settings { chunks, delays, fixed, ..Settings::default() };
        let of = |count| Pipeline::with_settings(own.profile(), own.schedule(), count, &settings);
        if !of(own.num_microbatches()).is_ok_and(|same| same.order() == own.order()) {
            return Err(PlanError::BadArgument {
                name: "the number of microbatches",
                value: count.to_string(),
                expected: "that of the frontier, whose order has no rule for another; plan anew",
            });
        }
        let pipeline = of(count)?;
        let rows_at = stretched(own, &pipeline);
        Ok(Self::new(pipeline, rows_at, frontier))
    }

    fn new(pipeline: Pipeline, rows_at: Vec<u32>, frontier: &Frontier) -> Self {
        let mut kinds = Vec::new();
        let tradeoffs = Tradeoffs::by_kind(&pipeline, |kind| {
            kinds.push(kind);
            Ok::<_, std::convert::Infallible>(Tradeoff::of_kind(
                &pipeline,
                kind,
                frontier.p2p_power(),
            ))
        });
        let Ok(tradeoffs) = tradeoffs;
        let is_short = pipeline.network().len() <= SHORT_STEP;
        let priced = is_short.then(|| Priced::new(&pipeline, &tradeoffs));
        Self { kinds, of: tradeoffs.of, rows_at, priced, pipeline }
    }

    /// The row of an operation in a plan of the frontier.
    pub(super) fn row(&self, rows: &[u8], operation: usize) -> Option<usize> {
        rows.get(self.rows_at[operation] as usize).map(|&row| usize::from(row))
    }
}

/// For each operation of a pipeline the place, among the instructions of another one, of that which is
/// as far from the nearer end of its step.
fn stretched(own: &Pipeline, other: &Pipeline) -> Vec<u32> {
    type Of = (Stage, Instruction, Chunk);
    let (own, other) = (own.network(), other.network());
    let mut places: HashMap<Of, Vec<u32>> = HashMap::new();
    for (place, &operation) in (0..).zip(own.stages.iter().flatten()) {
        let operation = &own.operations[operation as usize];
        let of = (operation.stage, operation.instruction, operation.chunk);
        places.entry(of).or_default().push(place);
    }
    let mut operations: HashMap<Of, Vec<u32>> = HashMap::new();
    for &index in other.stages.iter().flatten() {
        let operation = &other.operations[index as usize];
        let of = (operation.stage, operation.instruction, operation.chunk);
        operations.entry(of).or_default().push(index);
    }
    let mut rows_at = vec![NO_ROW; other.len()];
    for (of, operations) in operations {
        let Some(places) = places.get(&of) else { continue };
        let (last, last_place) = (operations.len() - 1, places.len() - 1);
        for (number, operation) in operations.into_iter().enumerate() {
            let place = match number <= last - number {
                true => number.min(last_place / 2),
                false => last_place - (last - number).min(last_place / 2),
            };
            rows_at[operation as usize] = places[place];
        }
    }
    rows_at
}
