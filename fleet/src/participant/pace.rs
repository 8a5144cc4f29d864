//! How long a step takes: as `pfod` has measured it or, before it has, no less than what this node has seen
//! of the steps.

use super::Participant;

/// The time of a step of which nothing is known, in milliseconds: short, so that a lead is enough.
const SHORT_STEP_MS: u64 = 20;

/// Steps that this node has watched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// The time of a step in milliseconds when it was measured last.
    measured_ms: Option<u64>,
    /// The next step when it was seen first, and when that was.
    first: Option<(u64, u64)>,
}

impl Pace {
    /// Takes note of what `pfod` shows.
    pub(super) fn see(&mut self, next: Option<u64>, measured_ms: Option<u64>, now_ms: u64) {
        self.measured_ms = measured_ms.or(self.measured_ms);
        // A training that begins anew counts from a lower step.
        let begun = self.first.zip(next).filter(|((first, _), next)| first <= next);
        self.first = begun.map(|(first, _)| first).or(next.map(|next| (next, now_ms)));
    }

    /// The time of a step when the next one is this: what was measured, or a lower bound.
    pub(super) fn step_ms(&self, next: Option<u64>, now_ms: u64) -> u64 {
        let (first, since_ms) = self.first.unwrap_or((next.unwrap_or(0), now_ms));
        // Of the first and of the last one that was seen, some is out of sight.
        let steps = next.unwrap_or(first).saturating_sub(first).saturating_add(1);
        let bound_ms = now_ms.saturating_sub(since_ms) / steps;
        self.measured_ms.unwrap_or(SHORT_STEP_MS.max(bound_ms)).max(1)
    }

    /// Whether a lead can be counted in steps: they are measured, or were watched for as long.
    pub(super) fn is_known_for(&self, lead_ms: u64, now_ms: u64) -> bool {
        let watched = |(_, since_ms): (u64, u64)| now_ms.saturating_sub(since_ms) >= lead_ms;
        self.measured_ms.is_some() || self.first.is_some_and(watched)
    }
}

impl Participant {
    /// As many steps as take so long.
    pub(super) fn steps_in(&self, time_ms: u64) -> u64 {
        let next = self.seen.as_ref().and_then(|seen| seen.next_step);
        time_ms.div_ceil(self.pace.step_ms(next, self.now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_was_not_measured_takes_at_least_as_long_as_it_was_watched() {
        let mut pace = Pace::default();
        pace.see(Some(1), None, 1000);
        assert_eq!(pace.step_ms(Some(1), 1000), SHORT_STEP_MS);
        assert_eq!(pace.step_ms(Some(1), 5000), 4000);
        assert!(!pace.is_known_for(3000, 3999) && pace.is_known_for(3000, 4000));
        // Three steps were begun in 6 s: parts of four.
        assert_eq!(pace.step_ms(Some(4), 7000), 1500);
        pace.see(Some(4), Some(1800), 7000);
        assert_eq!(pace.step_ms(Some(4), 9000), 1800);
        assert!(pace.is_known_for(3000, 0));
    }

    #[test]
    fn a_training_that_begins_anew_is_watched_anew() {
        let mut pace = Pace::default();
        pace.see(Some(50), None, 0);
        pace.see(Some(1), None, 10_000);
        assert_eq!(pace.step_ms(Some(1), 12_000), 2000);
    }
}
