//! A user's wish that the whole job runs something: proposed, and proposed again if the members
//! were too slow.

use pfo_vocabulary::Uid;

use super::Participant;
use crate::event::{Action, Purpose, Seen, Terms, Told, Write};
use crate::member::completeness;
use crate::shared::Shared;
use crate::standing::Standing;
use crate::swap::{Abort, Decision, Proposal, Run, Trial};

/// Attempts, each with twice the lead of the one before.
const ATTEMPTS: u32 = 3;

/// How far ahead the step of a swap may be, and how far ahead it is when a wish for a later step does not
/// wait for it any more, in milliseconds.
const FARTHEST_MS: u64 = 3_600_000;
const FAR_MS: u64 = 20_000;

/// The lead of a trial after another one, as a multiple of what the members took to agree on that, and
/// of as much time as may pass before it is noticed, in milliseconds.
const AGREEMENTS: u64 = 3;
const UNNOTICED_MS: u64 = 250;

/// What a user wishes.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    run: Run,
    by_uid: Uid,
    pub(super) purpose: Purpose,
    terms: Terms,
    pub(super) attempts: u32,
    proposed: Option<(u64, Proposal)>,
    /// Whether the store has `proposed`, as far as is known.
    is_sent: bool,
    /// When it was proposed.
    proposed_ms: u64,
}

impl Wish {
    pub(super) fn new(run: Run, by_uid: Uid, purpose: Purpose, terms: Terms) -> Self {
        Self {
            run,
            by_uid,
            purpose,
            terms,
            attempts: 0,
            proposed: None,
            is_sent: false,
            proposed_ms: 0,
        }
    }

    pub(super) fn is_trial(&self) -> bool {
        matches!(self.purpose, Purpose::Trial(_) | Purpose::Comparison(_))
    }

    /// How it is marked if it is only for measuring.
    fn trial(&self, shared: &Shared) -> Option<Trial> {
        let trial = |length, returns| Some(Trial { length, before: shared.for_good(), returns });
        match self.purpose {
            Purpose::Trial(length) => trial(length, false),
            Purpose::Comparison(length) => trial(length, true),
            Purpose::Swap | Purpose::LastOfTrials | Purpose::Abandoned => None,
        }
    }

    /// What stands beside it from a step on.
    fn standing(&self, shared: &Shared, step: u64) -> Standing {
        let stands = || match shared.committed().next() {
            Some((_, newest)) if self.purpose == Purpose::Abandoned => {
                newest.standing_if_abandoned(step)
            }
            Some((_, newest)) if self.is_trial() || self.run == shared.for_good() => {
                newest.standing.clone()
            }
            Some((_, newest)) => newest.standing.for_another(step),
            None => Standing::default(),
        };
        self.terms.standing.clone().unwrap_or_else(stands)
    }

    /// What a rollback leads to after it, if that is not what ran before it: never to what a power budget had
    /// the job run.
    fn rollback(&self, shared: &Shared, step: u64) -> Option<Run> {
        let own = |standing: Option<&Standing>| Some(standing?.budgeted.as_ref()?.before.clone());
        let own = own(self.terms.standing.as_ref()).or_else(|| own(shared.standing()));
        if let Some(own) = own.filter(|own| *own != self.run) {
            return Some(own);
        }
        let newest = shared.committed().next();
        // What it takes the place of never runs.
        let replaces = newest.is_some_and(|(_, newest)| step <= newest.step);
        let changes_nothing = self.is_trial() || self.run == shared.for_good();
        (changes_nothing || replaces).then(|| shared.before_good())?
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
    pub(super) fn wished(&mut self, wish: Wish) -> Option<Told> {
        if self.wish.is_some() {
            return Some(Told::Busy);
        }
        if self.away_since_ms.is_some() {
            return Some(Told::Away);
        }
        if let Some(node) = self.held_against(wish.purpose) {
            return Some(Told::Held(node));
        }
        self.measures |= wish.is_trial();
        self.wish = Some(wish);
        self.stale = true;
        None
    }

    /// Proposes what a user wishes, when nothing else is under way.
    pub(super) fn propose(&mut self) -> Option<Action> {
        let (shared, wish) = (self.whole()?, self.wish.as_ref()?);
        // The one before the newest committed swap is what a rollback leads to.
        let forget_below = shared.committed().nth(1).map_or(0, |(number, _)| number);
        if wish.is_sent || shared.undecided().is_some() {
            return None;
        }
        if let Some((number, proposal)) = wish.proposed.clone() {
            let can_change = self.can_change_to(&proposal);
            return if can_change { self.send(number, proposal, forget_below) } else { None };
        }
        if wish.is_trial() && !self.is_known_to_measure() {
            return None;
        }
        let seen = self.fresh()?;
        if seen.next_step.is_some() && !self.pace.is_known_for(self.settings.lead_ms, self.now_ms) {
            return None;
        }
        if let Some(why) = seen.astray.clone().filter(|_| wish.is_trial()) {
            self.wish = None;
            return Some(Action::Tell(Told::Astray(why)));
        }
        match self.proposal(shared, wish, seen) {
            Ok(proposal) if !self.can_change_to(&proposal) => {
                let told = self.far_ahead(proposal.step)?;
                self.wish = None;
                Some(Action::Tell(told))
            }
            Ok(proposal) => {
                let number = shared.newest().saturating_add(1);
                if let Some(wish) = &mut self.wish {
                    wish.attempts = wish.attempts.saturating_add(1);
                    wish.proposed = Some((number, proposal.clone()));
                    wish.proposed_ms = self.now_ms;
                }
                self.send(number, proposal, forget_below)
            }
            Err(told) => {
                self.wish = None;
                Some(Action::Tell(told))
            }
        }
    }

    /// What is to be proposed.
    ///
    /// # Errors
    /// Why nothing is.
    fn proposal(&self, shared: &Shared, wish: &Wish, seen: &Seen) -> Result<Proposal, Told> {
        completeness(&shared.members).map_err(Told::Incomplete)?;
        let newest = shared.committed().next().map_or(0, |(number, _)| number);
        if wish.terms.after.is_some_and(|after| after != newest) {
            return Err(Told::Changed);
        }
        // Somebody at another node may have been first.
        if let Some(node) = self.held_against(wish.purpose) {
            return Err(Told::Held(node));
        }
        let next = seen.next_step.ok_or(Told::NotNow("a rank of this node has begun no step"))?;
        let lead_ms = self.lead_ms(shared, wish);
        // Ranks are as close to each other as a long step is long, or it is tried again.
        let is_long = self.steps_in(self.settings.lead_ms) <= 1 && wish.attempts == 0;
        let slack = if is_long { 0 } else { self.settings.slack };
        let first = next.saturating_add(slack).saturating_add(1);
        let step = match wish.terms.at {
            Some(at) => {
                let last = first.saturating_add(self.steps_in(FARTHEST_MS));
                let possible = first..=last;
                if !possible.contains(&at) {
                    return Err(Told::NotAt(at, possible));
                }
                at
            }
            None => self.in_place_of(shared, next, first.saturating_add(self.steps_in(lead_ms))),
        };
        Ok(Proposal {
            run: wish.run.clone(),
            step,
            members: shared.members.keys().cloned().collect(),
            proposed_at: next,
            by_uid: wish.by_uid,
            by_node: self.me.clone(),
            trial: wish.trial(shared),
            standing: wish.standing(shared, step),
            rollback: wish.rollback(shared, step),
            compared: wish.terms.compared.clone(),
        })
    }

    /// The step of a swap that is possible at one: that of the committed one which it takes the place of, if
    /// that has yet to come and is no nearer than the ranks are to each other.
    fn in_place_of(&self, shared: &Shared, next: u64, step: u64) -> u64 {
        let begins = shared.committed().next().map_or(0, |(_, newest)| newest.step);
        let is_possible = begins > next.saturating_add(self.steps_in(self.settings.lead_ms));
        if is_possible { step.min(begins) } else { step }
    }

    /// A committed swap whose step is to come, far ahead, and before this one.
    fn far_ahead(&self, wished: u64) -> Option<Told> {
        let (number, proposal) = self.shared.as_ref()?.committed().next()?;
        let (step, next) = (proposal.step, self.fresh()?.next_step?);
        let is_far = step.saturating_sub(next) > self.steps_in(FAR_MS);
        (is_far && step < wished).then_some(Told::ToCome { number, step })
    }

    /// How long the members have to arm a proposal. Trials of one node that follow each other are as far
    /// ahead as the one before has shown to be enough.
    fn lead_ms(&self, shared: &Shared, wish: &Wish) -> u64 {
        let attempts = Self::attempts(shared, wish);
        let full_ms = self.settings.lead_ms.saturating_mul(1 << attempts.min(8));
        let is_own = |proposal: &Proposal| proposal.trial.is_some() && proposal.by_node == self.me;
        let follows = shared.committed().next().is_some_and(|(_, newest)| is_own(newest));
        let is_short = follows && wish.is_trial() && attempts == 0;
        let agreed_ms = self.agreed_ms.filter(|_| is_short);
        let enough = |ms: u64| ms.saturating_add(UNNOTICED_MS).saturating_mul(AGREEMENTS);
        agreed_ms.map_or(full_ms, |ms| enough(ms).min(full_ms))
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
            Decision::Abort(Abort::TooLate(_))
                if wish.attempts < ATTEMPTS && wish.terms.at.is_none() =>
            {
                (wish.proposed, wish.is_sent) = (None, false);
                return None;
            }
            Decision::Abort(why) => Told::Aborted(why.clone(), wish.attempts),
        };
        if matches!(told, Told::Committed { .. }) {
            self.agreed_ms = Some(self.now_ms.saturating_sub(wish.proposed_ms));
        }
        self.wish = None;
        Some(Action::Tell(told))
    }
}

impl Shared {
    /// What stands beside what the job runs; none before its first swap.
    #[must_use]
    pub fn standing(&self) -> Option<&Standing> {
        self.committed().next().map(|(_, proposal)| &proposal.standing)
    }

    /// What the job runs, or ran before the trials that it is in.
    #[must_use]
    pub fn for_good(&self) -> Run {
        let newest = self.committed().next();
        newest.map_or(Run::DefaultClocks, |(_, proposal)| proposal.for_good().clone())
    }

    /// What the job ran before that; none if there was no swap.
    fn before_good(&self) -> Option<Run> {
        let mut committed = self.committed();
        let (_, newest) = committed.next()?;
        let before = || {
            let before = committed.next();
            before.map_or(Run::DefaultClocks, |(_, proposal)| proposal.for_good().clone())
        };
        Some(newest.rollback.clone().unwrap_or_else(before))
    }

    /// What the job ran before the newest committed swap: before trials, or before what is compared; none
    /// if there was no swap.
    #[must_use]
    pub fn before(&self) -> Option<Run> {
        let (_, newest) = self.committed().next()?;
        match &newest.trial {
            Some(Trial { before, returns: false, .. }) => Some(before.clone()),
            _ => self.before_good(),
        }
    }
}
