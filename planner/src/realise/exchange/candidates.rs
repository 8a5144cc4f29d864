//! The choices of an operation, judged with the price of its time.

use crate::choices::Choices;

/// A choice and what it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) index: u32,
    pub(super) time_s: f64,
    /// What it takes more, in joules, than the best choice of the operation, if time has its price.
    pub(super) reduced_j: f64,
}

/// The candidates for an arc whose time costs this much, best first; a single one without time or
/// energy if no operation is there.
pub(super) fn ranked(choices: &Choices, operation: Option<u32>, price_w: f64) -> Vec<Candidate> {
    let Some(operation) = operation else {
        return vec![Candidate { index: 0, time_s: 0.0, reduced_j: 0.0 }];
    };
    let (first, end) = choices.of(operation as usize);
    let candidate = |index| {
        let choice = choices.get(index);
        let reduced_j = choice.effective_j + price_w * choice.time_s;
        Candidate { index, time_s: choice.time_s, reduced_j }
    };
    let mut ranked: Vec<Candidate> = (first..end).map(candidate).collect();
    ranked.sort_by(|a, b| a.reduced_j.total_cmp(&b.reduced_j));
    let least_j = ranked[0].reduced_j;
    for candidate in &mut ranked {
        candidate.reduced_j -= least_j;
    }
    ranked
}
