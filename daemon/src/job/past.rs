//! What a job's ranks measured in sessions that have ended.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pfo_protocol::Rank;

use crate::lease::{Measured, RankWindows};

/// Ranks that have left whose measurements are kept.
const KEPT_RANKS: usize = 1024;

/// The measurements of ended sessions.
#[derive(Debug, Default)]
pub(crate) struct Past {
    since: Option<Instant>,
    energy_j: f64,
    windows: BTreeMap<Rank, RankWindows>,
}

impl Past {
    /// Forgets what a former run of the job measured.
    pub(crate) fn start_over(&mut self) {
        *self = Self::default();
    }

    /// Marks that measuring has begun, unless it had before.
    pub(crate) fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Adds what a session measured that is over.
    pub(crate) fn add(&mut self, rank: Rank, measured: &Measured) {
        self.energy_j += measured.energy_j;
        self.windows.entry(rank).or_default().merge(&measured.windows);
        if self.windows.len() > KEPT_RANKS {
            self.windows.pop_first();
        }
    }

    /// How long the job has been measured.
    pub(crate) fn measured_for(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Joules of ended sessions.
    pub(crate) fn energy_j(&self) -> f64 {
        self.energy_j
    }

    /// Windows of ended sessions, by rank.
    pub(crate) fn windows(&self) -> &BTreeMap<Rank, RankWindows> {
        &self.windows
    }
}
