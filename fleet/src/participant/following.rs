//! Running what is committed: in time if this node learns of it in time, and else late, which is
//! reported before anything is done about it.

use std::sync::Arc;

use super::{OnPartition, Participant, RETRY_MS};
use crate::event::{Action, Runs, Seen, SwapAnswer};
use crate::swap::{Late, Proposal, Report, Run, Took};

/// A committed swap, with its number.
type Committed = (u64, Arc<Proposal>);

/// The newest look at which a node ran what was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct InForce {
    /// The committed swap that it had taken up.
    number: u64,
    /// The number that `pfod` gave its newest swap then.
    swap: u64,
    /// The step that none of its ranks had begun.
    next: u64,
}

/// What is to be done about the newest committed swap.
enum Due {
    Nothing,
    /// Change at exactly this step, or at the first one that is possible.
    Swap(Option<u64>),
    /// Report this first.
    Report(Report),
}

impl Participant {
    pub(super) fn swap(&mut self) -> Option<Action> {
        if self.swapping.is_some() || self.now_ms < self.retry_swap_ms {
            return None;
        }
        if self.is_cut_off() {
            let leaves = |seen: &Seen| Self::spans_nodes(seen) && seen.runs != Runs::DefaultClocks;
            let after = self.fresh().filter(|seen| leaves(seen))?.swap;
            self.swapping = Some(None);
            return Some(Action::Swap { run: Run::DefaultClocks, at: None, after });
        }
        let committed = self.shared.as_ref()?.committed();
        let mut committed = committed.map(|(number, proposal)| (number, Arc::clone(proposal)));
        let (newest, before) = (committed.next()?, committed.next());
        drop(committed);
        self.in_force = self.now_in_force(&newest, before.as_ref()).or(self.in_force);
        match self.due(&newest, before.as_ref()) {
            Due::Nothing => None,
            Due::Swap(at) => {
                if !self.lacking(&newest.1).is_empty() {
                    return None;
                }
                let after = self.fresh()?.swap;
                self.swapping = Some(Some(newest.0));
                Some(Action::Swap { run: newest.1.run.clone(), at, after })
            }
            Due::Report(report) => {
                self.report = Some(report);
                None
            }
        }
    }

    /// Whether the store has not answered for so long that the node is to run at default clocks.
    fn is_cut_off(&self) -> bool {
        let OnPartition::DefaultClocks(after_ms) = self.settings.on_partition else { return false };
        let is_over = |since_ms: u64| self.now_ms.saturating_sub(since_ms) >= after_ms;
        self.away_since_ms.is_some_and(is_over)
    }

    /// What this look shows to be in force, if that is what it should be.
    fn now_in_force(&self, newest: &Committed, before: Option<&Committed>) -> Option<InForce> {
        let is_in_time = self.report.as_ref().is_some_and(|said| !said.is_late());
        let seen = self.fresh().filter(|seen| is_in_time && seen.astray.is_none())?;
        let (next, taken, swap) = (seen.next_step?, self.taken(), seen.swap);
        let runs =
            |(number, proposal): &Committed| *number == taken && Self::is_run(seen, &proposal.run);
        if runs(newest) || next <= newest.1.step && before.is_some_and(runs) {
            return Some(InForce { number: taken, swap, next });
        }
        // Until the step of a swap that this agent arranged, what was before it is in force.
        let known = self.in_force.filter(|known| known.number == taken)?;
        let arranged = self.arranged.filter(|arranged| next <= arranged.step)?;
        let is_only_that = swap == known.swap.saturating_add(1);
        let shows_that = arranged.number == newest.0 && Self::is_run(seen, &newest.1.run);
        (is_only_that && shows_that).then_some(InForce { next, ..known })
    }

    fn due(&mut self, newest: &Committed, before: Option<&Committed>) -> Due {
        let (Some(seen), Some(report)) = (self.fresh(), self.report.as_ref()) else {
            return Due::Nothing;
        };
        let Some(next) = seen.next_step else { return Due::Nothing };
        let (number, proposal) = newest;
        let is_to_come = next <= proposal.step;
        let has_taken = self.taken() == *number;
        if Self::is_run(seen, &proposal.run) {
            if let Some(why) = seen.astray.clone().filter(|_| !is_to_come) {
                return self.find_astray(newest, why);
            }
            let arranged = self.arranged.filter(|arranged| arranged.number == *number);
            return match arranged {
                Some(arranged) if next <= arranged.step => Due::Nothing,
                Some(arranged) => self.settle(arranged),
                None if has_taken && !report.is_late() => match seen.shown {
                    true if report.shown < *number && proposal.trial.is_none() => {
                        Due::Report(Report { shown: *number, ..report.clone() })
                    }
                    _ => Due::Nothing,
                },
                None if is_to_come => self.find_begun(newest, before),
                None if report.is_late() => self.settle(Took { number: *number, step: next }),
                None => self.find_taken(newest, next),
            };
        }
        let told = self.shared.as_ref().and_then(|shared| shared.reports.get(&self.me));
        let late = report.late_now();
        let due = match (late, if is_to_come { before } else { Some(newest) }) {
            (None, None) => Due::Swap(Some(proposal.step)),
            (None, Some((_, before))) if is_to_come && Self::is_run(seen, &before.run) => {
                Due::Swap(Some(proposal.step))
            }
            (Some(late), now) if now.is_none_or(|(number, _)| late.number >= *number) => {
                let at = (is_to_come && !has_taken).then_some(proposal.step);
                if told == Some(report) { Due::Swap(at) } else { Due::Nothing }
            }
            (_, now) => {
                let now = now.unwrap_or(newest);
                let late = Some(self.late(now, self.why_late(now.0, next)));
                Due::Report(Report { late, ..report.clone() })
            }
        };
        self.arranged = None;
        due
    }

    /// Whether default clocks may be what an agent of this node left the plan for because of a
    /// partition.
    fn may_have_left(&self, run: &Run) -> bool {
        *run == Run::DefaultClocks && self.settings.on_partition != OnPartition::Keep
    }

    /// The node is about to run a swap, or runs already what it leads to, and this agent did not arrange
    /// it.
    fn find_begun(&self, newest: &Committed, before: Option<&Committed>) -> Due {
        let report = self.report.clone().unwrap_or_default();
        let may_have_left = !report.is_late() && self.may_have_left(&newest.1.run);
        match before.filter(|(_, before)| may_have_left && before.run != Run::DefaultClocks) {
            Some(before) => {
                let why = "it may have left the plan because it could not reach the store";
                let late = Some(self.late(before, why.into()));
                Due::Report(Report { late, ..report })
            }
            None => Due::Swap(Some(newest.1.step)),
        }
    }

    /// The node runs a swap whose step is past, and this agent did not arrange it. An earlier one did,
    /// and in time: it would have reported first that it was late. But default clocks may be what the
    /// node changed to because of a partition.
    fn find_taken(&mut self, newest: &Committed, next: u64) -> Due {
        let (number, proposal) = newest;
        let may_have_left = self.may_have_left(&proposal.run);
        let Some(left) = self.left_at.or(may_have_left.then_some(next)) else {
            return self.settle(Took { number: *number, step: proposal.step });
        };
        let step = left.max(proposal.step);
        let why = "it could not reach the store, and may have changed at another step".into();
        let late = Late { until: Some(step), ..self.late(newest, why) };
        (self.arranged, self.left_at, self.refused) = (None, None, None);
        let took = Some(Took { number: *number, step });
        Due::Report(Report { took, late: Some(late), ..self.report.clone().unwrap_or_default() })
    }

    /// A GPU of the node does not do what the node has taken up.
    fn find_astray(&mut self, newest: &Committed, why: String) -> Due {
        let report = self.report.clone().unwrap_or_default();
        let shown = report.shown;
        let (number, proposal) = newest;
        let is_told = |late: &Late| late.number >= *number;
        if self.taken() >= *number && report.late_now().is_some_and(is_told) {
            return Due::Nothing;
        }
        let mut known = [report.took, self.arranged].into_iter().flatten();
        let took = known.find(|took| took.number == *number);
        let took = took.unwrap_or(Took { number: *number, step: proposal.step });
        let late = Some(Late { why: why.clone(), ..self.late(newest, why) });
        self.arranged = None;
        Due::Report(Report { took: Some(took), late, shown })
    }

    fn why_late(&self, number: u64, next: u64) -> String {
        match (self.left_at, &self.refused) {
            (Some(step), _) => format!("it could not reach the store, and left the plan at {step}"),
            (None, _) if self.taken() == number => self.why_left(number).into(),
            (None, Some(why)) => why.clone(),
            (None, None) => {
                format!("it learned of the swap when step {} had begun", next.saturating_sub(1))
            }
        }
    }

    /// Why a node does not run what it had taken up, and this agent did not arrange that.
    fn why_left(&self, number: u64) -> &'static str {
        let known = self.in_force.filter(|known| known.number == number);
        let is_default = self.seen.as_ref().is_some_and(|seen| seen.runs == Runs::DefaultClocks);
        let swaps = known.map_or(1, |known| known.swap);
        match known {
            // It counts fewer swaps than there were.
            _ if self.seen.as_ref().is_some_and(|seen| seen.swap < swaps) => {
                "its pfod has forgotten what the job ran"
            }
            Some(_) => "this node alone was swapped to something else",
            None if is_default && self.settings.on_partition != OnPartition::Keep => {
                "it was swapped while this agent was away, or left the plan because it could not \
                 reach the store"
            }
            None => "this node alone was swapped to something else while its agent was away",
        }
    }

    /// This node is not known to run what it should, from some step on. If it was late before, it
    /// still is.
    fn late(&self, (number, proposal): &Committed, why: String) -> Late {
        let report = self.report.as_ref();
        let took = report.and_then(|report| report.took).filter(|took| took.number == *number);
        let due = took.map_or(proposal.step, |took| self.left_no_earlier_than(took, proposal.step));
        let from = match self.left_at {
            Some(left) if took.is_some() => left,
            Some(left) => left.min(due),
            None => due,
        };
        match report.and_then(Report::late_now).cloned() {
            Some(late) => Late { number: *number, from: late.from.min(from), ..late },
            None => Late { number: *number, from, until: None, why },
        }
    }

    /// The first step in which the node may not have run a swap of this step that it had taken up.
    fn left_no_earlier_than(&self, took: Took, step: u64) -> u64 {
        let next = self.seen.as_ref().and_then(|seen| seen.next_step).unwrap_or(0);
        let known = self.in_force.filter(|known| known.number == took.number);
        let first = known.map_or(took.step, |known| known.next);
        // A job that continues from a checkpoint runs steps again.
        if first <= next { first } else { step }
    }

    /// The node runs the swap that it was to run.
    fn settle(&mut self, took: Took) -> Due {
        (self.arranged, self.left_at, self.refused) = (None, None, None);
        let next = |seen: &Seen| Some((seen.swap, seen.next_step?));
        self.in_force = self.seen.as_ref().and_then(next).map(|(swap, next)| InForce {
            number: took.number,
            swap,
            next,
        });
        let Report { late, shown, .. } = self.report.clone().unwrap_or_default();
        let late = late.map(|late| Late { until: late.until.or(Some(took.step)), ..late });
        Due::Report(Report { took: Some(took), late, shown })
    }

    pub(super) fn swapped(&mut self, answer: SwapAnswer) {
        let number = self.swapping.take().flatten();
        self.stale = true;
        match (answer, number) {
            (SwapAnswer::At(step), Some(number)) => self.arranged = Some(Took { number, step }),
            (SwapAnswer::At(step), None) => {
                self.left_at.get_or_insert(step);
            }
            (refused, _) => {
                if let SwapAnswer::Refused(why) = refused {
                    self.refused = Some(why);
                }
                self.retry_swap_ms = self.now_ms.saturating_add(RETRY_MS);
            }
        }
    }
}
