//! What the thread of a rank publishes to the rest of the daemon, without a lock between them.
//!
//! The rank's thread is the only writer, but for what the watch of the clocks finds. Readers see each
//! value as it was a moment ago.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use arc_swap::{ArcSwap, ArcSwapOption};

use pfo_keeper::Published;
use pfo_protocol::{SettleTimes, Unit};

use super::lent::Lent;
use super::tap::Tap;
use super::windows::Measured;

/// Stands for a step that only a previous daemon knew.
const UNKNOWN: u64 = u64::MAX;

/// The visible state of one rank.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The last step begun, plus one, or [`UNKNOWN`]. Swaps are decided by it.
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
    /// Instructions that began outside a step or inside another one.
    pub misplaced_instructions: AtomicU64,
    /// Calls that the trainer could not time on its GPU.
    pub untimed_calls: AtomicU64,
    /// Instructions run under plans.
    pub instructions: AtomicU64,
    /// Nanoseconds that these instructions took.
    pub instruction_ns: AtomicU64,
    /// Nanoseconds of these that ran at another clock than planned.
    pub off_plan_ns: AtomicU64,
    /// Instructions that began before their clock was in force, because the wait had its own.
    pub late_instructions: AtomicU64,
    /// Clock changes that were skipped because of the limit per second.
    pub skipped_changes: AtomicU64,
    pub last_mismatch: ArcSwapOption<String>,
    /// Whether the clock is to be set again at the next step, even if it is the same.
    pub set_again: AtomicBool,
    /// The power below which the agent keeps the GPU under every plan, in watts.
    pub power_cap_w: Lent<u32>,
    /// When clocks are in force, as the agent has measured it.
    pub settle: Lent<SettleTimes>,
    /// What is wrong with the GPU's clock, if somebody else may have set it.
    pub foreign_clock: ArcSwapOption<String>,
    /// What is wrong with the rank's clocks.
    pub problem: ArcSwapOption<String>,
    /// What the rank ran in its last whole step.
    pub ran: ArcSwapOption<Vec<Unit>>,
    /// Energy and time, step by step.
    pub measured: ArcSwap<Measured>,
    /// What is set on its GPU.
    pub published: Arc<Published>,
    /// Where the rank's records go while a listener wants them.
    pub tap: Tap,
}

impl Progress {
    /// Publishes that step `step` begins. Ordered against the decision of swaps.
    pub(crate) fn begin_step(&self, step: u64) {
        self.steps_begun.store(step.saturating_add(1), SeqCst);
    }

    /// The last step begun, if it is known. Ordered against the decision of swaps.
    pub(crate) fn step(&self) -> Option<u64> {
        match self.steps_begun.load(SeqCst) {
            UNKNOWN => None,
            steps => steps.checked_sub(1),
        }
    }

    /// Marks that the rank is in a step that a previous daemon saw begin.
    pub(crate) fn forget_step(&self) {
        self.steps_begun.store(UNKNOWN, SeqCst);
    }

    /// Whether it is known how far the rank is.
    pub(crate) fn knows_step(&self) -> bool {
        self.steps_begun.load(SeqCst) != UNKNOWN
    }
}
