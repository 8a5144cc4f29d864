//! How long to wait before the next attempt to connect.

use std::time::Duration;

use crate::problem::Problem;

struct Range {
    first: Duration,
    longest: Duration,
}

/// A daemon that restarts is back within moments, and every rank of a node wants to know.
const SOON: Range = Range { first: Duration::from_millis(50), longest: Duration::from_secs(5) };

/// Where a person has to act first, each attempt would only be another line in the journal.
const LATER: Range = Range { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// The delays of a row of failed attempts.
#[derive(Debug)]
pub(crate) struct Backoff {
    last: Option<Duration>,
    noise: u64,
}

impl Backoff {
    pub(crate) fn new(seed: u64) -> Self {
        Self { last: None, noise: seed | 1 }
    }

    pub(crate) fn reset(&mut self) {
        self.last = None;
    }

    pub(crate) fn after(&mut self, problem: &Problem) -> Duration {
        let range = if problem.code.passes_by_itself() { SOON } else { LATER };
        let delay =
            self.last.map_or(range.first, |last| last * 2).clamp(range.first, range.longest);
        self.last = Some(delay);
        self.jitter(delay)
    }

    /// Between three and five quarters of the delay, so that the ranks of a node do not come in
    /// step.
    fn jitter(&mut self, delay: Duration) -> Duration {
        // Xorshift, Marsaglia 2003: more than enough to spread a few ranks.
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        delay * 3 / 4 + delay * (self.noise % 1024) as u32 / 2048
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::ProblemCode;

    fn delays(code: ProblemCode, count: usize) -> Vec<Duration> {
        let mut backoff = Backoff::new(42);
        let problem = Problem::new(code, "", "");
        (0..count).map(|_| backoff.after(&problem)).collect()
    }

    #[test]
    fn an_absent_daemon_is_looked_for_after_50_ms_and_then_at_most_every_few_seconds() {
        let delays = delays(ProblemCode::NoDaemon, 20);
        assert!(delays[0] < Duration::from_millis(70), "{delays:?}");
        assert!(delays[1] > delays[0] && delays[3] > delays[1], "{delays:?}");
        assert!(delays[19] >= Duration::from_millis(3750), "{delays:?}");
        assert!(delays[19] <= Duration::from_millis(6250), "{delays:?}");
    }

    #[test]
    fn a_refusal_is_not_answered_with_a_flood_of_attempts() {
        let code = ProblemCode::Refused(pfo_protocol::RefusalCode::GpuHeld);
        let delays = delays(code, 20);
        assert!(delays[0] >= Duration::from_millis(750), "{delays:?}");
        assert!(delays[19] >= Duration::from_secs(22), "{delays:?}");
    }

    #[test]
    fn ranks_of_a_node_do_not_come_in_step() {
        let problem = Problem::new(ProblemCode::NoDaemon, "", "");
        let first = |seed| Backoff::new(seed).after(&problem);
        assert_ne!(first(1_000_001), first(2_000_003));
    }
}
