//! What the thread of a rank lets the rest of the daemon see, without a lock between them.
//!
//! The rank's thread is the only writer. Readers see each value as it was a moment ago.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use arc_swap::{ArcSwap, ArcSwapOption};

use pfo_keeper::Published;
use pfo_protocol::Unit;

use super::windows::Measured;
use crate::measure::Tap;

/// In the place of a step, that another daemon knew.
const UNKNOWN: u64 = u64::MAX;

/// The visible state of one rank.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The step begun last, plus one, or [`UNKNOWN`]: swaps are agreed on by it.
    steps_begun: AtomicU64,
    /// The number of the swap that the rank has taken up.
    pub swap: AtomicU64,
    /// The number of the plan it runs, 0 at default clocks.
    pub plan: AtomicU32,
    /// Set when the session is over.
    pub ended: AtomicBool,
    /// Steps whose instructions did not follow the plan.
    pub mismatched_steps: AtomicU64,
    /// Events that never arrived.
    pub lost_events: AtomicU64,
    /// Instructions run under plans.
    pub instructions: AtomicU64,
    /// Nanoseconds that these took.
    pub instruction_ns: AtomicU64,
    /// Nanoseconds of these at another clock than planned.
    pub off_plan_ns: AtomicU64,
    /// Changes that were not asked of the driver, because there had been too many.
    pub skipped_changes: AtomicU64,
    /// The last mismatch.
    pub last_mismatch: ArcSwapOption<String>,
    /// What is wrong with the rank's clocks.
    pub problem: ArcSwapOption<String>,
    /// What the rank ran in its last whole step.
    pub ran: ArcSwapOption<Vec<Unit>>,
    /// Energy and time, step by step.
    pub measured: ArcSwap<Measured>,
    /// What is set on its GPU.
    pub published: Arc<Published>,
    /// Where its records go while somebody wants them.
    pub tap: Tap,
}

impl Progress {
    /// Publishes that step `step` begins. Ordered against the decision of swaps.
    pub(crate) fn begin_step(&self, step: u64) {
        self.steps_begun.store(step.saturating_add(1), SeqCst);
    }

    /// The step begun last, if there is one and it is known. Ordered against the decision of swaps.
    #[must_use]
    pub(crate) fn step(&self) -> Option<u64> {
        match self.steps_begun.load(SeqCst) {
            UNKNOWN => None,
            steps => steps.checked_sub(1),
        }
    }

    /// The rank is in a step that another daemon knew.
    pub(crate) fn forget_step(&self) {
        self.steps_begun.store(UNKNOWN, SeqCst);
    }

    /// Whether it is known how far the rank is.
    #[must_use]
    pub(crate) fn knows_step(&self) -> bool {
        self.steps_begun.load(SeqCst) != UNKNOWN
    }
}
