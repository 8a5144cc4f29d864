//! The number of microbatches in a step of a job, from what ran in a trial.

use pfo_planner::{Chunk, Instruction, Schedule};
use pfo_protocol::{LeftOut, RecordedRank, RecordedTrial, TrialRow};

/// The forwards of a step on each rank; none if ranks differ or have none.
pub(crate) fn of_trial(recorded: &RecordedTrial, schedule: Schedule) -> Option<u32> {
    let steps = recorded.trial.steps.len() as u64;
    let mut counts = recorded.ranks.iter().map(|rank| forwards(rank, schedule) / steps.max(1));
    let first = counts.next().filter(|&count| count > 0)?;
    counts.all(|count| count == first).then_some(first as u32)
}

/// Whether any rank reports a forward. The planner makes no plan without one.
pub(crate) fn are_reported(recorded: &RecordedTrial) -> bool {
    let is_forward = |row: &TrialRow| {
        matches!(row.instruction, Instruction::Forward | Instruction::ForwardBackward)
    };
    recorded.ranks.iter().flat_map(|rank| &rank.rows).any(is_forward)
}

/// Those of one model chunk, or of both where each is a copy of the model, measured or left out.
fn forwards(rank: &RecordedRank, schedule: Schedule) -> u64 {
    let of = |instruction, chunk| -> u64 {
        let is_it = |row: &&TrialRow| row.instruction == instruction && row.chunk == chunk;
        rank.rows.iter().filter(is_it).map(all).sum()
    };
    let (down, up) = (Chunk(0), Chunk(1));
    let (forward, both) = (Instruction::Forward, Instruction::ForwardBackward);
    match schedule {
        // An instruction of two runs the forward of the other chunk.
        Schedule::DualPipeV => of(forward, down) + of(both, up),
        Schedule::DualPipe => {
            [forward, both].map(|what| of(what, down) + of(what, up)).iter().sum()
        }
        // One instruction around both passes of a microbatch has its forward; of two chunks, it is of both.
        _ if of(both, up) == 0 => of(forward, down) + of(both, down),
        _ => of(forward, down),
    }
}

/// How often it ran, measured or not.
pub(crate) fn all(row: &TrialRow) -> u64 {
    let LeftOut { mismatched, settling, throttled, other_clock } = row.left_out;
    row.count + mismatched + settling + throttled + other_clock
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Rank, TrialResult, TrialStep};

    use super::*;

    fn row(chunk: u16, count: u64, settling: u64) -> TrialRow {
        TrialRow {
            instruction: Instruction::Forward,
            chunk: Chunk(chunk),
            mhz: None,
            observed_mhz: None,
            count,
            time_mean_s: 0.1,
            time_sd_s: 0.0,
            time_median_s: 0.1,
            energy_mean_j: None,
            energy_sd_j: None,
            energy_median_j: None,
            throttled: None,
            left_out: LeftOut { settling, ..LeftOut::default() },
        }
    }

    /// Two steps of ranks that ran these.
    fn counted(rows: &[Vec<TrialRow>]) -> Option<u32> {
        counted_in(Schedule::OneForwardOneBackward, rows)
    }

    fn counted_in(schedule: Schedule, rows: &[Vec<TrialRow>]) -> Option<u32> {
        of_trial(&trial_of(rows), schedule)
    }

    fn trial_of(rows: &[Vec<TrialRow>]) -> RecordedTrial {
        let rank = |rows: &Vec<TrialRow>| RecordedRank {
            rank: Rank(0),
            readings: 0,
            stray_readings: 0,
            rows: rows.clone(),
            waits: Vec::new(),
        };
        let steps = vec![TrialStep { time_s: 1.0, energy_j: None }; 2];
        let trial = TrialResult { plan: None, first_step: 0, steps, ranks: Vec::new() };
        RecordedTrial { trial, ranks: rows.iter().map(rank).collect() }
    }

    #[test]
    fn every_forward_counts_measured_or_not_but_of_one_chunk_only() {
        assert_eq!(counted(&[vec![row(0, 10, 2), row(1, 12, 0)], vec![row(0, 12, 0)]]), Some(6));
    }

    #[test]
    fn one_instruction_around_both_passes_is_a_microbatch_alone_and_in_the_last_stage() {
        let both =
            |count| TrialRow { instruction: Instruction::ForwardBackward, ..row(0, count, 0) };
        assert_eq!(counted(&[vec![both(8)]]), Some(4));
        assert!(are_reported(&trial_of(&[vec![both(8)]])));
        let other = TrialRow { instruction: Instruction::Backward, ..row(0, 8, 0) };
        assert!(!are_reported(&trial_of(&[vec![other]])));
        assert_eq!(counted(&[vec![row(0, 8, 0)], vec![both(6), row(0, 2, 0)]]), Some(4));
    }

    #[test]
    fn an_instruction_of_two_has_the_forward_of_the_other_chunk() {
        let both = |chunk, count| {
            let instruction = Instruction::ForwardBackward;
            TrialRow { instruction, ..row(chunk, count, 0) }
        };
        let rows = [vec![row(0, 10, 0), row(1, 8, 0), both(0, 8), both(1, 6)]];
        assert_eq!(counted_in(Schedule::DualPipeV, &rows), Some(8));
        assert_eq!(counted_in(Schedule::DualPipe, &rows), Some(16));
        assert_eq!(counted_in(Schedule::EarlyRecomputation, &rows), Some(5));
    }

    #[test]
    fn ranks_that_differ_or_run_none_have_no_common_count() {
        assert_eq!(counted(&[vec![row(0, 12, 0)], vec![row(0, 8, 0)]]), None);
        assert_eq!(counted(&[Vec::new()]), None);
        assert_eq!(counted(&[]), None);
    }
}
