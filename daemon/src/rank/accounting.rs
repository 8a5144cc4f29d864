//! What waits until the clock is set: measuring steps, and what a rank ran or did not follow.

use std::sync::Arc;

use pfo_service::{now_ns, panic_in_tests};

use super::mismatch::Mismatch;
use super::{MOST_EVENTS_READ, REMEMBERED_UNITS, Rank};
use crate::host::journal;

/// Shorter steps are measured several at a time: at the earliest after this, and after this many
/// times what reading the counter took.
const STEPS_MEASURED_NS: u64 = 10_000_000;
const TIMES_READING: u64 = 200;

/// The step boundaries that were read but not measured yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepsBegun {
    steps: u64,
    at_ns: u64,
    /// The last one has just been read.
    is_new: bool,
    /// When steps may be measured again.
    next_ns: u64,
    /// What reading the counter took.
    reading_ns: u64,
}

impl StepsBegun {
    pub(super) fn begin(&mut self, at_ns: u64) {
        self.steps = self.steps.saturating_add(1);
        (self.at_ns, self.is_new) = (at_ns, true);
    }

    /// How many there are and when the last one was, if it is to be measured.
    fn take(&mut self, now_ns: u64) -> Option<(u64, u64)> {
        let is_due = std::mem::take(&mut self.is_new) && now_ns >= self.next_ns;
        is_due.then(|| (std::mem::take(&mut self.steps), self.at_ns.min(now_ns)))
    }

    /// The counter was read. Twice long is a slow driver, once a thread that had to give way.
    fn measured(&mut self, began_ns: u64, ended_ns: u64) {
        let took_ns = ended_ns.saturating_sub(began_ns);
        let reading_ns = std::mem::replace(&mut self.reading_ns, took_ns).min(took_ns);
        let pause_ns = reading_ns.saturating_mul(TIMES_READING).max(STEPS_MEASURED_NS);
        self.next_ns = began_ns.saturating_add(pause_ns);
    }
}

impl Rank {
    /// Does everything that could wait until the clock was set.
    pub(super) fn account(&mut self) {
        self.ahead.make_room(self.cursor.planned_instructions());
        // So that no read makes it grow on the way to the driver.
        self.units.reserve(MOST_EVENTS_READ.min(REMEMBERED_UNITS.saturating_sub(self.units.len())));
        if std::mem::take(&mut self.step_ended) {
            self.remember_whole_step();
        }
        let began_ns = now_ns();
        if let Some((steps, at_ns)) = self.begun.take(began_ns) {
            let energy_j = self.clocks.energy_j();
            self.begun.measured(began_ns, now_ns());
            let mut measured = (**self.progress().measured.load()).clone();
            measured.step_begins(self.swap, steps, at_ns, energy_j);
            self.progress().measured.store(Arc::new(measured));
        }
        if let Some(mismatch) = self.mismatch.take() {
            self.account_for(mismatch);
        }
        if self.clocks.locked().is_some() {
            panic_in_tests(&self.job.key.name, "panics-in-rank");
        }
    }

    fn remember_whole_step(&self) {
        let known = self.progress().ran.load();
        if known.as_ref().is_none_or(|ran| **ran != self.whole_step) {
            self.progress().ran.store(Some(Arc::new(self.whole_step.clone())));
        }
    }

    #[cold]
    fn account_for(&self, mismatch: Mismatch) {
        self.progress().last_mismatch.store(Some(Arc::new(mismatch.to_string())));
        let rank = self.session.holder.rank;
        if let Some(plan) = &self.plan
            && self.mismatched_in_a_row >= self.rules.suspend_after
            && !plan.is_suspended()
        {
            let steps = self.mismatched_in_a_row;
            plan.suspend(|| {
                format!("rank {rank} did not follow it for {steps} steps in a row: {mismatch}")
            });
            let holder = &self.session.holder;
            tracing::warn!(
                name: journal::PLAN_SUSPENDED,
                job = %holder.job, rank = rank.0, uid = holder.uid.0, pid = holder.pid.0,
                gpu_uuid = %self.clocks.gpu().uuid, plan = plan.number,
                "suspended plan {} of job {}, user {}, which runs at default clocks now: \
                 rank {rank}: {mismatch}",
                plan.number, holder.job, holder.uid
            );
            self.job.notice_change();
        }
    }

    /// Measures what the session used after its last step began.
    pub(crate) fn measure_end(&self) {
        let mut measured = (**self.progress().measured.load()).clone();
        measured.counter_reads(self.clocks.energy_j());
        self.progress().measured.store(Arc::new(measured));
    }
}
