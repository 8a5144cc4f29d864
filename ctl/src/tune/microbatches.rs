//! The number of microbatches in a step of a job, from what ran in a trial.

use pfo_protocol::{Instruction, LeftOut, RecordedRank, RecordedTrial, TrialRow};

/// The forwards of a step on each rank; none if ranks differ or have none.
pub(super) fn of_trial(recorded: &RecordedTrial) -> Option<u32> {
    let steps = recorded.trial.steps.len() as u64;
    let mut counts = recorded.ranks.iter().map(|rank| forwards(rank) / steps.max(1));
    let first = counts.next().filter(|&count| count > 0)?;
    counts.all(|count| count == first).then_some(first as u32)
}

/// Those of one model chunk, measured or left out.
fn forwards(rank: &RecordedRank) -> u64 {
    let is_forward =
        |row: &&TrialRow| row.instruction == Instruction::Forward && row.chunk.is_first();
    let all = |row: &TrialRow| {
        let LeftOut { mismatched, settling, throttled, other_clock } = row.left_out;
        row.count + mismatched + settling + throttled + other_clock
    };
    rank.rows.iter().filter(is_forward).map(all).sum()
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Chunk, Rank, TrialResult, TrialStep};

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
        let rank = |rows: &Vec<TrialRow>| RecordedRank {
            rank: Rank(0),
            readings: 0,
            stray_readings: 0,
            rows: rows.clone(),
            waits: Vec::new(),
        };
        let steps = vec![TrialStep { time_s: 1.0, energy_j: None }; 2];
        let trial = TrialResult { plan: None, first_step: 0, steps, ranks: Vec::new() };
        of_trial(&RecordedTrial { trial, ranks: rows.iter().map(rank).collect() })
    }

    #[test]
    fn every_forward_counts_measured_or_not_but_of_one_chunk_only() {
        assert_eq!(counted(&[vec![row(0, 10, 2), row(1, 12, 0)], vec![row(0, 12, 0)]]), Some(6));
    }

    #[test]
    fn ranks_that_differ_or_run_none_have_no_common_count() {
        assert_eq!(counted(&[vec![row(0, 12, 0)], vec![row(0, 8, 0)]]), None);
        assert_eq!(counted(&[Vec::new()]), None);
        assert_eq!(counted(&[]), None);
    }
}
