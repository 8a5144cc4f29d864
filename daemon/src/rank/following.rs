//! What follows from an event: where the rank stands, and which rules, plan and clock it has from
//! then on.

use std::sync::atomic::Ordering::Relaxed;

use pfo_protocol::{Event, Mark, Mhz};
use pfo_service::now_ns;

use super::ahead::off_plan_ns;
use super::cursor::Finished;
use super::pace::Room;
use super::record::record_of;
use super::wish::Wish;
use super::{REMEMBERED_UNITS, Rank};
use crate::job::Swap;

impl Rank {
    pub(super) fn event(&mut self, event: &Event) {
        match event.mark {
            Mark::StepBegin(step) => {
                self.session.progress.begin_step(step);
                self.take_up_rules();
                self.take_up_swap(step);
                self.retry = true;
                if self.session.progress.set_again.swap(false, Relaxed) {
                    self.clocks.forget_lock();
                }
                self.begun.begin(event.client_ns);
                self.units.clear();
                self.units_complete = true;
            }
            Mark::InstructionBegin(unit) if self.units.len() < REMEMBERED_UNITS => {
                self.units.push(unit);
            }
            Mark::InstructionBegin(_) => self.units_complete = false,
            Mark::InstructionEnd(_) | Mark::StepEnd(_) => {}
            Mark::Untimed(calls) => self.progress().untimed_calls.store(calls, Relaxed),
        }
        let lost_before = self.cursor.lost_events();
        let outcome = self.cursor.event(event);
        if self.cursor.lost_events() != lost_before {
            self.units_complete = false;
            self.progress().lost_events.store(self.cursor.lost_events(), Relaxed);
        }
        if matches!(event.mark, Mark::InstructionBegin(_)) {
            self.progress().misplaced_instructions.store(self.cursor.misplaced(), Relaxed);
            let in_force = self.clocks.locked().is_some_and(|lock| {
                Wish::At(lock.0) == self.cursor.wish() && self.in_force_ns(lock) <= event.client_ns
            });
            let is_late = self.ahead.begins(event.client_ns, in_force);
            self.progress().late_instructions.fetch_add(is_late.into(), Relaxed);
        }
        let own_lock = self.own_lock.take();
        if let Some(finished) = outcome.finished {
            self.ahead.ends(finished.position, finished.began_ns, finished.ended_ns);
            self.count_finished(finished, own_lock);
            if let Some(clocks) = self.cursor.wait_clocks()
                && self.pace.room(now_ns()) == Room::Ample
            {
                self.ahead.lower(clocks.map(|clock| self.settle_ns(clock)));
            }
        }
        if self.ahead.ask_back_at_ns.is_some_and(|at_ns| now_ns() < at_ns) {
            self.cursor.look_at_wait();
        }
        let locked = own_lock.or_else(|| self.clocks.locked());
        self.session.progress.tap.put(|| record_of(event, &outcome, locked));
        if let Some(mismatch) = outcome.mismatch {
            self.mismatch = Some(mismatch);
            self.mismatched_in_a_row = self.mismatched_in_a_row.saturating_add(1);
            self.progress().mismatched_steps.fetch_add(1, Relaxed);
        } else if matches!(event.mark, Mark::StepEnd(_)) && self.cursor.wish() != Wish::Highest {
            self.mismatched_in_a_row = 0;
        }
        if matches!(event.mark, Mark::StepEnd(_)) && std::mem::take(&mut self.units_complete) {
            std::mem::swap(&mut self.units, &mut self.whole_step);
            self.step_ended = true;
        }
    }

    fn take_up_rules(&mut self) {
        let rules = self.session.grant.load().rules;
        if rules != self.rules {
            self.pace.change(rules.changes_per_second);
            self.rules = rules;
        }
    }

    fn take_up_swap(&mut self, step: u64) {
        let newest = self.job.newest_swap();
        let Some(newest) = newest.as_deref().and_then(Swap::effective) else { return };
        let found = self.joined_in.take();
        let due = (newest.number != self.swap && step >= newest.step()).then_some(newest);
        if let Some(swap) = due.or(found.as_deref()) {
            self.swap = swap.number;
            self.plan.clone_from(&swap.plan);
            self.mismatched_in_a_row = 0;
            self.cursor
                .follow(self.plan.as_ref().and_then(|plan| plan.clocks(self.stage, self.replica)));
            self.ahead.forget();
            let plan_number = self.plan.as_ref().map_or(0, |plan| plan.number);
            self.session.progress.plan.store(plan_number, Relaxed);
            self.session.progress.swap.store(swap.number, Relaxed);
        }
        let in_force = self.plan.as_ref().filter(|plan| !plan.is_suspended());
        if in_force.is_none() {
            self.cursor.follow(None);
        }
        self.power_limit = in_force.and_then(|plan| plan.power_limit(self.stage));
        self.frees_memory = in_force.is_some_and(|plan| plan.frees_memory());
    }

    /// How long after it was asked for a clock is in force.
    pub(super) fn settle_ns(&self, clock: Mhz) -> u64 {
        let measured = self.session.settle.load();
        measured.as_ref().map_or(self.rules.settle_ns, |times| times.ns_to(clock))
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
        let newest = self.clocks.locked();
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
