//! How often the agent answers slow stages. Pure.
//!
//! A stage that is slow in turns would make the ranks change plans each time, and the agent plan each
//! time. So every answer is followed by a pause, which is twice as long as the one before, until
//! stages have left the agent in peace for a while. Where power limits hold all slow stages, the pause
//! does not grow: somebody may move these limits all the time. The way back is never paused.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// After as long without an answer, the next pause is the shortest again.
const PEACE: Duration = Duration::from_secs(30 * 60);

/// The answers of one job. Times are since any beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// The last answer, and the pause after it.
    last: Option<(Duration, Duration)>,
}

impl Pace {
    /// Whether the next answer may be made now.
    pub(super) fn may_answer(&self, now: Duration, are_limited: bool) -> bool {
        let pause_after = |pause| if are_limited { SHORTEST } else { pause };
        self.last.is_none_or(|(at, pause)| now.saturating_sub(at) >= pause_after(pause))
    }

    /// Slow stages have been answered.
    pub(super) fn answered(&mut self, now: Duration) {
        let pause = match self.last {
            Some((at, pause)) if now.saturating_sub(at) < PEACE => {
                LONGEST.min(pause.saturating_mul(2))
            }
            _ => SHORTEST,
        };
        self.last = Some((now, pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_is_slow_in_turns_is_answered_ever_more_seldom() {
        let mut pace = Pace::default();
        let mut answers = Vec::new();
        for now in (0..24 * 3600).map(Duration::from_secs) {
            if pace.may_answer(now, false) {
                pace.answered(now);
                answers.push(now.as_secs());
            }
        }
        assert_eq!(answers[..4], [0, 10, 30, 70]);
        assert!(answers.len() <= 8 + 24 * 4, "{}", answers.len());
    }

    #[test]
    fn power_limits_that_move_all_the_time_are_answered_after_the_same_pause_each_time() {
        let mut pace = Pace::default();
        let mut answers = Vec::new();
        for now in (0..60).map(Duration::from_secs) {
            if pace.may_answer(now, true) {
                pace.answered(now);
                answers.push(now.as_secs());
            }
        }
        assert_eq!(answers, [0, 10, 20, 30, 40, 50]);
        assert!(!pace.may_answer(Duration::from_secs(60), false), "another reason waits longer");
    }

    #[test]
    fn after_a_while_of_peace_it_is_answered_soon_again() {
        let mut pace = Pace::default();
        for now in [0, 10, 30, 70, 2000].map(Duration::from_secs) {
            assert!(pace.may_answer(now, false), "{now:?}");
            pace.answered(now);
        }
        assert!(pace.may_answer(Duration::from_secs(2010), false));
    }
}
