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
    /// A GPU has no energy counter.
    lacks_energy: bool,
    windows: BTreeMap<Rank, RankWindows>,
}

impl Past {
    /// Marks that measuring has begun, unless it had before.
    pub(crate) fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Adds what an ended session measured.
    pub(crate) fn add(&mut self, rank: Rank, measured: &Measured) {
        let has_steps = measured.windows.measured().next().is_some();
        self.lacks_energy |= has_steps && measured.energy_j.is_none();
        self.energy_j += measured.energy_j.unwrap_or(0.0);
        self.windows.entry(rank).or_default().merge(&measured.windows);
        if self.windows.len() > KEPT_RANKS {
            self.windows.pop_first();
        }
    }

    /// How long the job has been measured.
    pub(crate) fn measured_for(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Joules that ended sessions measured, if all GPUs have energy counters.
    pub(crate) fn energy_j(&self) -> Option<f64> {
        (!self.lacks_energy).then_some(self.energy_j)
    }

    /// Windows of ended sessions, by rank.
    pub(crate) fn windows(&self) -> &BTreeMap<Rank, RankWindows> {
        &self.windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Verdict;

    const SECOND: u64 = 1_000_000_000;

    /// Four steps of a second and ten joules each, of which the first one settles.
    fn session() -> Measured {
        let mut measured = Measured::begin(Some(0.0), Verdict::default());
        (0..4).for_each(|step| measured.step_begins(1, 1, step * SECOND, Some(10.0 * step as f64)));
        measured
    }

    fn steps(past: &Past, rank: u32) -> u64 {
        past.windows()[&Rank(rank)].measured().map(|(_, window)| window.steps).sum()
    }

    #[test]
    fn the_sessions_of_a_rank_add_up_and_those_of_others_stay_apart() {
        let mut past = Past::default();
        past.add(Rank(0), &session());
        past.add(Rank(0), &session());
        past.add(Rank(5), &session());
        assert_eq!((steps(&past, 0), steps(&past, 5)), (4, 2));
        assert_eq!(past.energy_j(), Some(90.0));
    }

    #[test]
    fn what_was_measured_without_an_energy_counter_leaves_no_energy_of_the_job() {
        let mut past = Past::default();
        past.add(Rank(0), &Measured::begin(None, Verdict::default()));
        assert_eq!(past.energy_j(), Some(0.0), "nothing was measured");
        let mut measured = Measured::begin(None, Verdict::default());
        (0..4).for_each(|step| measured.step_begins(1, 1, step * SECOND, None));
        past.add(Rank(1), &session());
        past.add(Rank(0), &measured);
        assert_eq!((past.energy_j(), steps(&past, 0)), (None, 2));
    }

    #[test]
    fn a_job_is_measured_since_its_first_rank_until_it_starts_over() {
        let mut past = Past::default();
        assert_eq!(past.measured_for(), Duration::ZERO);
        past.begin();
        std::thread::sleep(Duration::from_millis(2));
        past.begin();
        assert!(past.measured_for() >= Duration::from_millis(2));
        past.add(Rank(0), &session());
        past = Past::default();
        assert_eq!((past.measured_for(), past.energy_j()), (Duration::ZERO, Some(0.0)));
        assert!(past.windows().is_empty());
    }

    #[test]
    fn the_windows_of_no_more_than_a_number_of_ranks_are_kept() {
        let mut past = Past::default();
        (0..KEPT_RANKS as u32 + 3)
            .chain([u32::MAX])
            .for_each(|rank| past.add(Rank(rank), &session()));
        assert_eq!(past.windows().len(), KEPT_RANKS);
        assert!(past.windows().contains_key(&Rank(u32::MAX)));
    }
}
