//! The outcome of a policy.

use crate::plan::{Plan, Prediction};

/// The outcome of a policy.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The plans that it considered, each with its replay as prediction; never empty.
    pub plans: Vec<Plan>,
    /// The policy's own predictions for the plans; empty if it measures instead.
    pub claims: Vec<Prediction>,
    /// The index of the plan that it would run.
    pub chosen: usize,
    /// The number of training steps, or of rounds of an offline search, until it stops.
    pub rounds: u32,
    /// Why it stopped.
    pub end: End,
}

/// Why a policy stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It reached its goal.
    Settled,
    /// It did not reach its goal, but had nothing left to change. Perseus' EnvPipe loops forever
    /// here.
    Saturated,
    /// It reached the largest allowed number of rounds.
    Bounded,
}

impl Outcome {
    /// The outcome of a policy that measures what it tries.
    pub(super) fn found(plans: Vec<Plan>, chosen: usize, rounds: u32, end: End) -> Self {
        Self { plans, claims: Vec::new(), chosen, rounds, end }
    }
}
