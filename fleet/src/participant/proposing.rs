//! A user's wish that the whole job runs something: proposed, and proposed again if the members
//! were too slow.

use pfo_vocabulary::Uid;

use super::Participant;
use crate::event::{Action, Purpose, Told, Write};
use crate::member::completeness;
use crate::shared::Shared;
use crate::swap::{Abort, Decision, Proposal, Run, Trial};

/// Attempts, each with twice the lead of the one before.
const ATTEMPTS: u32 = 3;

/// The time of a step that was not measured, in milliseconds: short, so that the lead is enough.
const SHORT_STEP_MS: u64 = 20;

/// What a user wishes.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    run: Run,
    by_uid: Uid,
    pub(super) purpose: Purpose,
    pub(super) attempts: u32,
    proposed: Option<(u64, Proposal)>,
    /// Whether the store has `proposed`, as far as is known.
    is_sent: bool,
}

impl Wish {
    pub(super) fn new(run: Run, by_uid: Uid, purpose: Purpose) -> Self {
        Self { run, by_uid, purpose, attempts: 0, proposed: None, is_sent: false }
    }

    pub(super) fn is_trial(&self) -> bool {
        matches!(self.purpose, Purpose::Trial(_))
    }

    pub(super) fn is_proposed(&self) -> bool {
        self.proposed.is_some()
    }

    /// The attempt does not count.
    fn withdraw(&mut self) {
        (self.proposed, self.is_sent) = (None, false);
        self.attempts = self.attempts.saturating_sub(1);
    }
}

impl Participant {
    pub(super) fn wished(&mut self, run: Run, by_uid: Uid, purpose: Purpose) -> Option<Told> {
        if self.wish.is_some() {
            return Some(Told::NotNow("another swap of the job is under way"));
        }
        if self.away_since_ms.is_some() {
            return Some(Told::NotNow("the store does not answer"));
        }
        if let Some(node) = self.held_against(purpose) {
            return Some(Told::Held(node));
        }
        let wish = Wish::new(run, by_uid, purpose);
        self.measures |= wish.is_trial();
        self.wish = Some(wish);
        self.stale = true;
        None
    }

    /// Proposes what a user wishes, when nothing else is under way.
    pub(super) fn propose(&mut self) -> Option<Action> {
        let (shared, wish) = (self.shared.as_ref()?, self.wish.as_ref()?);
        // The one before the newest committed swap is what a rollback leads to.
        let forget_below = shared.committed().nth(1).map_or(0, |(number, _)| number);
        if wish.is_sent || shared.undecided().is_some() || !self.is_settled() {
            return None;
        }
        if let Some((number, proposal)) = wish.proposed.clone() {
            return self.send(number, proposal, forget_below);
        }
        if wish.is_trial() && !self.is_known_to_measure() {
            return None;
        }
        let seen = self.fresh()?;
        if let Err(why) = completeness(&shared.members) {
            self.wish = None;
            return Some(Action::Tell(Told::Incomplete(why)));
        }
        // Somebody at another node may have been first.
        if let Some(node) = self.held_against(wish.purpose) {
            self.wish = None;
            return Some(Action::Tell(Told::Held(node)));
        }
        let Some(next) = seen.next_step else {
            self.wish = None;
            return Some(Action::Tell(Told::NotNow("a rank of this node has begun no step")));
        };
        let lead_ms = self.settings.lead_ms.saturating_mul(1 << wish.attempts.min(8));
        let lead = lead_ms.div_ceil(self.step_ms.unwrap_or(SHORT_STEP_MS).max(1));
        let step = next.saturating_add(self.settings.slack).saturating_add(1).saturating_add(lead);
        let number = shared.newest().saturating_add(1);
        let proposal = Proposal {
            run: wish.run.clone(),
            step,
            members: shared.members.keys().cloned().collect(),
            proposed_at: next,
            by_uid: wish.by_uid,
            by_node: self.me.clone(),
            trial: match wish.purpose {
                Purpose::Trial(length) => Some(Trial { length, before: shared.for_good() }),
                Purpose::Swap | Purpose::LastOfTrials | Purpose::Abandoned => None,
            },
        };
        if let Some(wish) = &mut self.wish {
            wish.attempts = wish.attempts.saturating_add(1);
            wish.proposed = Some((number, proposal.clone()));
        }
        self.send(number, proposal, forget_below)
    }

    fn send(&mut self, number: u64, proposal: Proposal, forget_below: u64) -> Option<Action> {
        self.wish.as_mut()?.is_sent = true;
        self.writing.insert(Write::Propose);
        Some(Action::Propose { number, proposal, forget_below })
    }

    /// The store has said what became of a proposal.
    pub(super) fn proposed(&mut self, taken: Option<bool>) {
        let Some(wish) = &mut self.wish else { return };
        match taken {
            Some(true) => {}
            Some(false) => wish.withdraw(),
            None => wish.is_sent = false,
        }
    }

    /// What to tell the user, once that is known.
    pub(super) fn tell(&mut self) -> Option<Action> {
        let (shared, wish) = (self.shared.as_ref()?, self.wish.as_mut()?);
        let (number, proposal) = wish.proposed.as_ref()?;
        let Some(swap) = shared.swaps.get(number).filter(|swap| *swap.proposal == *proposal) else {
            // Somebody else was first.
            if shared.newest() >= *number {
                wish.withdraw();
            }
            return None;
        };
        let told = match swap.decision.as_ref()? {
            Decision::Commit => Told::Committed { number: *number, step: proposal.step },
            Decision::Abort(Abort::TooLate(_)) if wish.attempts < ATTEMPTS => {
                (wish.proposed, wish.is_sent) = (None, false);
                return None;
            }
            Decision::Abort(why) => Told::Aborted(why.clone(), wish.attempts),
        };
        self.wish = None;
        Some(Action::Tell(told))
    }
}

impl Shared {
    /// What the job runs, or ran before the trials that it is in.
    fn for_good(&self) -> Run {
        let newest = self.committed().next();
        newest.map_or(Run::DefaultClocks, |(_, proposal)| proposal.for_good().clone())
    }

    /// What the job ran before the newest committed swap, trials left out; none if there was no swap.
    #[must_use]
    pub fn before(&self) -> Option<Run> {
        let mut committed = self.committed();
        let (_, newest) = committed.next()?;
        if newest.trial.is_some() {
            return Some(newest.for_good().clone());
        }
        let before = committed.next();
        Some(before.map_or(Run::DefaultClocks, |(_, proposal)| proposal.for_good().clone()))
    }
}
