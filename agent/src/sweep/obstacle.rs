//! Why a clock could not be measured. Pure.

use std::fmt;

use pfo_protocol::{Rank, RecordedTrial, TrialRow};

/// What keeps most of the instructions of a trial from being measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Obstacle {
    /// The GPU of a rank runs at another clock, in MHz, and nobody says why.
    OtherClock {
        rank: Rank,
        observed_mhz: f64,
    },
    Slowdown {
        rank: Rank,
    },
    Settling {
        rank: Rank,
    },
    Mismatched {
        rank: Rank,
    },
    /// They were measured, but for their energy.
    Energy,
}

impl Obstacle {
    /// That of the trial's instructions without a measured energy.
    pub(crate) fn of(trial: &RecordedTrial) -> Self {
        let ranks = trial.ranks.iter();
        let rows = ranks.flat_map(|rank| rank.rows.iter().map(|row| (rank.rank, row)));
        let unmeasured = rows.filter(|(_, row)| row.energy_median_j.is_none());
        let each = unmeasured.flat_map(|(rank, row)| Self::of_row(rank, row));
        let most = each.filter(|(count, _)| *count > 0).max_by_key(|(count, _)| *count);
        most.map_or(Self::Energy, |(_, obstacle)| obstacle)
    }

    /// How many instructions of a row each one kept from being measured.
    fn of_row(rank: Rank, row: &TrialRow) -> [(u64, Self); 5] {
        let observed_mhz = row.observed_mhz.unwrap_or_default();
        [
            (row.count, Self::Energy),
            (row.left_out.mismatched, Self::Mismatched { rank }),
            (row.left_out.settling, Self::Settling { rank }),
            (row.left_out.throttled, Self::Slowdown { rank }),
            (row.left_out.other_clock, Self::OtherClock { rank, observed_mhz }),
        ]
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherClock { rank, observed_mhz } => write!(
                f,
                "the GPU of rank {rank} runs at {observed_mhz:.0} MHz instead, and the driver names \
                 no reason: another program has set its clock, or the hardware holds it back"
            ),
            Self::Slowdown { rank } => {
                write!(f, "heat, a power brake or its hardware slows down the GPU of rank {rank}")
            }
            Self::Settling { rank } => {
                write!(f, "instructions of rank {rank} begin before their clock has settled")
            }
            Self::Mismatched { rank } => {
                write!(f, "instructions of rank {rank} did not follow the plan, or events are lost")
            }
            Self::Energy => f.write_str(
                "the readings of the energy counter do not determine it; measure more steps",
            ),
        }
    }
}
