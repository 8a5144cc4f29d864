//! What waits until the clock is set: measuring steps, and what a rank ran or did not follow.

use std::sync::Arc;

use pfo_service::{now_ns, panic_in_tests};

use super::Rank;
use super::mismatch::Mismatch;
use crate::host::journal;

impl Rank {
    /// Does everything that could wait until the clock was set.
    pub(super) fn account(&mut self) {
        self.following.make_room();
        self.recording.make_room();
        let ran = &self.session.progress.ran;
        if let Some(step) = self.recording.new_step()
            && ran.load().as_ref().is_none_or(|known| **known != step)
        {
            ran.store(Some(Arc::new(step.to_vec())));
        }
        let began_ns = now_ns();
        if let Some((steps, at_ns)) = self.recording.begun.take(began_ns) {
            let (energy_j, verdict) = self.counter.energy_j();
            let is_late = self.recording.begun.measured(began_ns, now_ns());
            let mut measured = (**self.progress().measured.load()).clone();
            measured.judged(verdict, began_ns);
            // Steps in which what the rank is to run is not in force are nobody's.
            let is_suspended = self.following.plan.as_ref().is_some_and(|plan| plan.is_suspended());
            let is_void = is_late || is_suspended || self.setting.refused.is_some();
            measured.step_begins(self.following.swap, steps, at_ns, energy_j.filter(|_| !is_void));
            self.progress().measured.store(Arc::new(measured));
        }
        if let Some(mismatch) = self.following.mismatch.take() {
            self.account_for(mismatch);
        }
        if self.setting.clocks.locked().is_some() {
            panic_in_tests(&self.job.key.name, "panics-in-rank");
        }
    }

    #[cold]
    fn account_for(&self, mismatch: Mismatch) {
        self.progress().last_mismatch.store(Some(Arc::new(mismatch.to_string())));
        let rank = self.session.holder.rank;
        if let Some(plan) = &self.following.plan
            && self.following.mismatched_in_a_row >= self.rules.suspend_after
            && !plan.is_suspended()
        {
            let steps = self.following.mismatched_in_a_row;
            plan.suspend(|| {
                format!("rank {rank} did not follow it for {steps} steps in a row: {mismatch}")
            });
            let holder = &self.session.holder;
            tracing::warn!(
                name: journal::PLAN_SUSPENDED,
                job = %holder.job, rank = rank.0, uid = holder.uid.0, pid = holder.pid.0,
                gpu_uuid = %self.setting.clocks.gpu().uuid, plan = plan.number,
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
        let (energy_j, verdict) = self.counter.energy_j();
        measured.judged(verdict, now_ns());
        measured.counter_reads(energy_j);
        self.progress().measured.store(Arc::new(measured));
    }
}
