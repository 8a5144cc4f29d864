//! What instructions took in a trial, for policies that look at them.

use std::collections::BTreeMap;

use pfo_planner::{Instruction, Mhz, Stage};
use pfo_protocol::{RecordedRank, TrialResult};

/// Mean seconds of each kind of instruction on each stage at each clock that it ran at, of which
/// none is the one that the driver chooses.
#[derive(Debug, Default)]
pub(crate) struct InstructionTimes(BTreeMap<(Stage, Instruction, Option<Mhz>), Sum>);

#[derive(Debug, Default)]
struct Sum {
    seconds: f64,
    count: u64,
}

impl InstructionTimes {
    /// Those of a trial, of all ranks of a stage together.
    pub(crate) fn of(trial: &TrialResult, recorded: &[RecordedRank]) -> Self {
        let mut times = Self::default();
        for (rank, recorded) in trial.ranks.iter().zip(recorded) {
            for row in &recorded.rows {
                let sum = times.0.entry((rank.stage, row.instruction, row.mhz)).or_default();
                sum.seconds += row.time_mean_s * row.count as f64;
                sum.count += row.count;
            }
        }
        times
    }

    /// None if no such instruction was measured.
    pub(crate) fn mean_s(
        &self,
        stage: Stage,
        instruction: Instruction,
        clock: Option<Mhz>,
    ) -> Option<f64> {
        let sum = self.0.get(&(stage, instruction, clock)).filter(|sum| sum.count > 0)?;
        Some(sum.seconds / sum.count as f64)
    }
}
