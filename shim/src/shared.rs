//! What the session's calls and its background thread have in common: one lock, held for moments
//! only and never while anything waits for the daemon.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::description::CheckedRank;
use crate::fork;
use crate::line::{Line, Phase, Wake};
use crate::problem::Problem;

/// A session's state, and the way to wait for its changes.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rank: CheckedRank,
    line: Mutex<Line>,
    changed: Condvar,
    generation: u32,
}

impl Shared {
    pub(crate) fn new(rank: CheckedRank) -> Self {
        let socket = &rank.socket;
        let line = Line::new(rank.first_step, Problem::no_answer(socket), Problem::unread(socket));
        Self {
            rank,
            line: Mutex::new(line),
            changed: Condvar::new(),
            generation: fork::generation(),
        }
    }

    /// Whether this is the process that opened the session, not a child forked from it.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Line> {
        // A panic elsewhere must not become one here, and no half-made change does harm.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the line change, and wakes the background thread if that asks for it. In a forked
    /// child, nothing happens.
    pub(crate) fn tell(&self, event: impl FnOnce(&mut Line) -> Wake) {
        if self.is_ours() && event(&mut self.lock()) == Wake::Yes {
            self.notify();
        }
    }

    /// Tells the background thread and a waiting `open` of a change. Never blocks.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits for the end of the first attempt, but not longer than this; whether it has come.
    pub(crate) fn is_settled_within(&self, patience: Duration) -> bool {
        let unsettled = |line: &mut Line| !line.settled;
        let waited = self.changed.wait_timeout_while(self.lock(), patience, unsettled);
        waited.unwrap_or_else(PoisonError::into_inner).0.settled
    }

    /// Sleeps until something changes, without a timer.
    pub(crate) fn wait<'a>(&self, line: MutexGuard<'a, Line>) -> MutexGuard<'a, Line> {
        self.changed.wait(line).unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something changes, but not longer than this.
    pub(crate) fn wait_at_most<'a>(
        &self,
        line: MutexGuard<'a, Line>,
        longest: Duration,
    ) -> MutexGuard<'a, Line> {
        self.changed.wait_timeout(line, longest).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Sleeps, but not beyond the end of the session.
    pub(crate) fn pause(&self, delay: Duration) {
        let open = |line: &mut Line| !matches!(line.phase, Phase::Closed);
        drop(self.changed.wait_timeout_while(self.lock(), delay, open));
    }

    /// Ends the session.
    pub(crate) fn close(&self) {
        let mut line = self.lock();
        if let Phase::Connected(link) = std::mem::replace(&mut line.phase, Phase::Closed) {
            link.goodbye();
        }
        if let Some(link) = line.attempt.take() {
            link.interrupt();
        }
        self.notify();
    }

    /// Notes that an attempt to connect has failed.
    pub(crate) fn fail(&self, problem: Problem) {
        let mut line = self.lock();
        line.problem = Some(problem);
        line.settled = true;
        self.notify();
    }
}
