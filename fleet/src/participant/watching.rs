//! How much of a job this node watches. Everybody watches the swaps and their decisions; the rest is
//! watched by those who have something to do with it, and by a few who stand in for them.

use pfo_vocabulary::Rank;

use super::Participant;
use super::deciding::PATIENCE_MS;
use crate::event::Action;
use crate::node::Node;
use crate::shared::{Shared, View};
use crate::swap::Proposal;

/// How long the whole job is watched after somebody wanted to see it.
const LINGER_MS: u64 = 10_000;

/// How many nodes at a time see to it that trials end when nobody runs them any more, and for how long
/// before it is the turn of the next ones.
const GUARDS: u64 = 2;
const GUARD_MS: u64 = 10_000;

impl Participant {
    /// How much of the job this node sees.
    #[must_use]
    pub fn view(&self) -> View {
        self.view
    }

    /// The whole job, if it is watched.
    pub(super) fn whole(&self) -> Option<&Shared> {
        self.shared.as_ref().filter(|_| self.view == View::Whole)
    }

    /// Watches more or less of the job than before, if there is a reason.
    pub(super) fn watch(&mut self) -> Option<Action> {
        let wanted = if self.has_to_see_all() { View::Whole } else { View::Part };
        if self.watches == wanted {
            return None;
        }
        // What is known of the others is old from now on.
        (self.watches, self.view) = (wanted, View::Part);
        Some(Action::Watch(wanted))
    }

    fn has_to_see_all(&self) -> bool {
        let is_asked =
            self.asked_ms.is_some_and(|asked_ms| self.now_ms < asked_ms.saturating_add(LINGER_MS));
        is_asked
            || self.has_first_rank()
            || self.wish.is_some()
            || self.measures
            || self.has_to_decide()
            || self.has_to_guard_trial()
            || self.has_to_answer()
    }

    /// Who answers slow stages has to know of those of the others.
    fn has_to_answer(&self) -> bool {
        let watch = self.shared.as_ref().and_then(Shared::standing);
        let watch = watch.and_then(|standing| standing.watch.as_ref());
        watch.is_some_and(|watch| watch.by_node == self.me)
    }

    /// One node always watches: what it exports is what is known of the whole job.
    fn has_first_rank(&self) -> bool {
        let seen = self.seen.as_ref();
        seen.is_some_and(|seen| seen.places.iter().any(|place| place.rank == Rank(0)))
    }

    fn has_to_decide(&self) -> bool {
        let undecided = self.shared.as_ref().and_then(Shared::undecided);
        undecided.is_some_and(|(_, swap)| self.undecided_for_ms() >= self.waits_ms(&swap.proposal))
    }

    /// How long this node leaves it to others to decide: the proposer decides at once, and one more node
    /// joins in whenever they have been silent for a while.
    fn waits_ms(&self, proposal: &Proposal) -> u64 {
        match self.place_in(proposal) {
            _ if proposal.by_node == self.me => 0,
            Some(place) => PATIENCE_MS.saturating_mul(place.saturating_add(1)),
            None => u64::MAX,
        }
    }

    fn place_in(&self, proposal: &Proposal) -> Option<u64> {
        proposal.members.iter().position(|node: &Node| *node == self.me).map(|place| place as u64)
    }

    /// Who runs the trials has its node watch them; beside it, all members take turns.
    fn has_to_guard_trial(&self) -> bool {
        let Some((_, proposal)) = self.shared.as_ref().and_then(Shared::trial) else {
            return false;
        };
        let Some(place) = self.place_in(proposal) else { return false };
        let since_ms = self.trial_since.map_or(self.now_ms, |(_, since_ms)| since_ms);
        let turns = (proposal.members.len() as u64).div_ceil(GUARDS).max(1);
        let turn = self.now_ms.saturating_sub(since_ms) / GUARD_MS % turns;
        proposal.by_node == self.me || place / GUARDS == turn
    }

    pub(super) fn take_note_of_swaps(&mut self) {
        let Some(shared) = &self.shared else { return };
        let since = |known: Option<(u64, u64)>, number| match known {
            Some((same, since_ms)) if same == number => (number, since_ms),
            _ => (number, self.now_ms),
        };
        let undecided = shared.undecided().map(|(number, _)| since(self.undecided_since, number));
        let trial = shared.trial().map(|(number, _)| since(self.trial_since, number));
        (self.undecided_since, self.trial_since) = (undecided, trial);
    }
}

impl Shared {
    /// The trial that the job is in.
    pub(super) fn trial(&self) -> Option<(u64, &Proposal)> {
        let (number, proposal) = self.committed().next()?;
        proposal.trial.is_some().then_some((number, &**proposal))
    }
}
