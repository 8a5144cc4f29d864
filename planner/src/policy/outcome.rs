//! What every policy comes to.

use crate::plan::{Plan, Prediction};

/// What a policy comes to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The plans that it considers, each with its replay as prediction; never empty.
    pub plans: Vec<Plan>,
    /// What it believes that each of them takes; none if it measures instead.
    pub claims: Vec<Prediction>,
    /// The one that it would run, by its place among them.
    pub chosen: usize,
    /// Training steps, or rounds of an off-line search, until it settles.
    pub rounds: u32,
    /// Why it stopped.
    pub end: End,
}

/// Why a policy stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It reached what it looks for.
    Settled,
    /// It did not reach that, but had nothing left to change. Perseus' EnvPipe would go on for
    /// ever.
    Saturated,
    /// It was stopped after as many rounds as are allowed.
    Bounded,
}

impl Outcome {
    /// That of a policy that measures what it tries.
    pub(super) fn found(plans: Vec<Plan>, chosen: usize, rounds: u32, end: End) -> Self {
        Self { plans, claims: Vec::new(), chosen, rounds, end }
    }
}
