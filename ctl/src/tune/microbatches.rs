//! How many microbatches a step of a job has, out of what ran in a trial.

use pfo_protocol::{Instruction, LeftOut, TrialRank, TrialResult, TrialRow};

/// The forwards of a step on each rank; none if ranks differ or have none.
pub(super) fn of_trial(trial: &TrialResult) -> Option<u32> {
    let steps = trial.steps.len() as u64;
    let mut counts = trial.ranks.iter().map(|rank| forwards(rank) / steps.max(1));
    let first = counts.next().filter(|&count| count > 0)?;
    counts.all(|count| count == first).then_some(first as u32)
}

/// Those of one model chunk, measured or left out.
fn forwards(rank: &TrialRank) -> u64 {
    let is_forward = |row: &&TrialRow| row.instruction == Instruction::Forward && row.chunk == 0;
    let all = |row: &TrialRow| {
        let LeftOut { mismatched, settling, throttled, other_clock } = row.left_out;
        row.count + mismatched + settling + throttled + other_clock
    };
    rank.rows.iter().filter(is_forward).map(all).sum()
}
