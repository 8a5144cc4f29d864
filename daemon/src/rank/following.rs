//! What follows from an event: where the rank stands, and which rules, plan and clock it has from
//! then on.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pfo_protocol::{DpRank, Event, Mark, Mhz, Stage};
use pfo_service::now_ns;

use super::Rank;
use super::ahead::{Ahead, off_plan_ns};
use super::cursor::{Cursor, Finished};
use super::mismatch::Mismatch;
use super::record::record_of;
use super::wish::Wish;
use crate::job::{JobPlan, Swap};

/// What a rank follows, and where it stands in it.
pub(super) struct Following {
    stage: Stage,
    replica: DpRank,
    pub(super) cursor: Cursor,
    pub(super) ahead: Ahead,
    pub(super) plan: Option<Arc<JobPlan>>,
    /// The number of the swap that led to it.
    pub(super) swap: u64,
    /// The swap in use when the rank joined, until its first step.
    joined_in: Option<Arc<Swap>>,
    /// The first mismatch since the last accounting.
    pub(super) mismatch: Option<Mismatch>,
    pub(super) mismatched_in_a_row: u32,
}

impl Following {
    pub(super) fn new((stage, replica): (Stage, DpRank), joined_in: Option<Arc<Swap>>) -> Self {
        Self {
            stage,
            replica,
            cursor: Cursor::default(),
            ahead: Ahead::default(),
            plan: None,
            swap: 0,
            joined_in,
            mismatch: None,
            mismatched_in_a_row: 0,
        }
    }

    /// Makes room for a step of the plan. It allocates after a change of plans.
    pub(super) fn make_room(&mut self) {
        self.ahead.make_room(self.cursor.planned_instructions());
    }

    /// Takes up the job's newest swap if it is due at this step, or what the rank found when it
    /// joined. Returns whether it did.
    fn take_up(&mut self, newest: &Swap, step: u64) -> bool {
        let found = self.joined_in.take();
        let due = (newest.number != self.swap && step >= newest.step()).then_some(newest);
        let Some(swap) = due.or(found.as_deref()) else { return false };
        self.swap = swap.number;
        self.plan.clone_from(&swap.plan);
        self.mismatched_in_a_row = 0;
        let clocks = self.plan.as_ref().and_then(|plan| plan.clocks(self.stage, self.replica));
        self.cursor.follow(clocks);
        self.ahead.forget();
        true
    }
}

impl Rank {
    /// Takes an event, in this order:
    ///
    /// 1. A step that begins is published, and then its plan and rules are looked up: a swap is
    ///    decided by the steps that are published (`job::swap`).
    /// 2. The cursor finds the event's place in the plan. From then on the rank has another wish.
    /// 3. An instruction that begins is late if the clock of *that* wish is not in force.
    /// 4. What has ended is counted by the lock that it had, and its wait may get another clock.
    /// 5. The tap gets the event with the same lock, before a set call replaces it.
    /// 6. A mismatch is remembered for the accounting.
    pub(super) fn event(&mut self, event: &Event) {
        if let Mark::StepBegin(step) = event.mark {
            self.begin_step(step, event.client_ns);
        }
        let outcome = self.following.cursor.event(event);
        self.recording.take(event.mark, outcome.lost);
        if outcome.lost {
            let lost_events = self.following.cursor.lost_events();
            self.progress().lost_events.store(lost_events, Relaxed);
        }
        match event.mark {
            Mark::InstructionBegin(_) => self.judge_begin(event.client_ns),
            Mark::Untimed(calls) => self.progress().untimed_calls.store(calls, Relaxed),
            _ => {}
        }
        let own_lock = self.setting.own_lock.take();
        if let Some(finished) = outcome.finished {
            self.end_instruction(finished, own_lock);
        }
        let Following { cursor, ahead, .. } = &mut self.following;
        if ahead.ask_back_at_ns.is_some_and(|at_ns| now_ns() < at_ns) {
            cursor.look_at_wait();
        }
        let locked = own_lock.or_else(|| self.setting.clocks.locked());
        self.session.progress.tap.put(|| record_of(event, &outcome, locked));
        self.count_mismatch(event.mark, outcome.mismatch);
    }

    fn begin_step(&mut self, step: u64, at_ns: u64) {
        self.session.progress.begin_step(step);
        self.take_up_rules();
        self.take_up_swap(step);
        self.setting.begin_step(self.session.progress.set_again.swap(false, Relaxed));
        self.recording.begun.begin(at_ns);
    }

    /// Whether the instruction that begins has its clock.
    fn judge_begin(&mut self, at_ns: u64) {
        let wish = self.following.cursor.wish();
        let in_force = self
            .setting
            .clocks
            .locked()
            .is_some_and(|lock| Wish::At(lock.0) == wish && self.in_force_ns(lock) <= at_ns);
        let is_late = self.following.ahead.begins(at_ns, in_force);
        let (progress, misplaced) = (self.progress(), self.following.cursor.misplaced());
        progress.misplaced_instructions.store(misplaced, Relaxed);
        progress.late_instructions.fetch_add(is_late.into(), Relaxed);
    }

    fn end_instruction(&mut self, finished: Finished, own_lock: Option<(Mhz, u64)>) {
        self.following.ahead.ends(finished.position, finished.began_ns, finished.ended_ns);
        self.count_finished(finished, own_lock);
        if let Some(clocks) = self.following.cursor.wait_clocks()
            && self.setting.has_ample_room()
        {
            let settle_ns = clocks.map(|clock| self.settle_ns(clock));
            self.following.ahead.lower(settle_ns);
        }
    }

    fn count_mismatch(&mut self, mark: Mark, mismatch: Option<Mismatch>) {
        let following = &mut self.following;
        if let Some(mismatch) = mismatch {
            following.mismatch = Some(mismatch);
            following.mismatched_in_a_row = following.mismatched_in_a_row.saturating_add(1);
            self.session.progress.mismatched_steps.fetch_add(1, Relaxed);
        } else if matches!(mark, Mark::StepEnd(_)) && following.cursor.wish() != Wish::Highest {
            following.mismatched_in_a_row = 0;
        }
    }

    fn take_up_rules(&mut self) {
        let rules = self.session.grant.load().rules;
        if rules != self.rules {
            self.setting.pace.change(rules.changes_per_second);
            self.rules = rules;
        }
    }

    fn take_up_swap(&mut self, step: u64) {
        let newest = self.job.newest_swap();
        let Some(newest) = newest.as_deref().and_then(Swap::effective) else { return };
        if self.following.take_up(newest, step) {
            let plan = self.following.plan.as_ref().map_or(0, |plan| plan.number);
            self.session.progress.plan.store(plan, Relaxed);
            self.session.progress.swap.store(self.following.swap, Relaxed);
        }
        let in_force = self.following.plan.as_ref().filter(|plan| !plan.is_suspended());
        self.setting.power_limit = in_force.and_then(|plan| plan.power_limit(self.following.stage));
        self.setting.frees_memory = in_force.is_some_and(|plan| plan.frees_memory());
        if in_force.is_none() {
            self.following.cursor.follow(None);
        }
    }

    /// How long after it was asked for a clock is in force.
    pub(super) fn settle_ns(&self, clock: Mhz) -> u64 {
        let measured = self.progress().settle.get();
        measured.map_or(self.rules.settle_ns, |times| times.1.ns_to(clock))
    }

    /// When a clock that was asked for at that time is in force.
    fn in_force_ns(&self, (clock, asked_ns): (Mhz, u64)) -> u64 {
        asked_ns.saturating_add(self.settle_ns(clock))
    }

    fn count_finished(&self, finished: Finished, own_lock: Option<(Mhz, u64)>) {
        let Finished { planned: Some(planned), astray: false, began_ns, ended_ns, .. } = finished
        else {
            return;
        };
        let took_ns = ended_ns.saturating_sub(began_ns);
        let newest = self.setting.clocks.locked();
        let own = own_lock.or(newest).filter(|(mhz, _)| *mhz == planned);
        let next = newest.filter(|newest| own_lock.is_some_and(|own| own != *newest));
        let [own_ns, next_ns] = [own, next].map(|lock| lock.map(|lock| self.in_force_ns(lock)));
        let off_ns = off_plan_ns([began_ns, ended_ns], own_ns, next_ns);
        let progress = self.progress();
        progress.instructions.fetch_add(1, Relaxed);
        // The times come from the peer, and may have any value.
        progress.instruction_ns.fetch_add(took_ns, Relaxed);
        progress.off_plan_ns.fetch_add(off_ns, Relaxed);
    }
}
