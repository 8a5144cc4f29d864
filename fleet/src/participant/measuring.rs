//! Trials: a swap that every node measures the same steps of. The job returns to default clocks when
//! nobody runs its trials any more.

use super::Participant;
use super::deciding::PATIENCE_MS;
use super::proposing::Wish;
use crate::event::{Action, Purpose, Terms};
use crate::member::completeness;
use crate::node::Node;
use crate::shared::Shared;
use crate::swap::{Length, Proposal, Run, Trial};

/// How often the lead of a swap that ends abandoned trials is doubled at most.
const MOST_DOUBLINGS: u64 = 4;

impl Participant {
    /// Has the node measure what the newest trial asks for.
    pub(super) fn measure(&mut self) -> Option<Action> {
        let (number, proposal) = self.shared.as_ref()?.committed().next()?;
        let (first_step, trial) = (proposal.first_step()?, proposal.trial.as_ref()?);
        let Length { steps, samples, .. } = trial.length;
        let is_new = self.measured != number;
        self.measured = number;
        is_new.then_some(Action::Measure { number, first_step, steps, samples })
    }

    pub(super) fn let_go(&mut self) {
        self.measures = false;
    }

    /// Drops a wish that has lost its reason before it was proposed.
    pub(super) fn drop_idle_wish(&mut self) {
        let is_idle = self.wish.as_ref().is_some_and(|wish| match wish.purpose {
            _ if wish.is_proposed() => false,
            Purpose::Trial(_) | Purpose::Comparison(_) => !self.measures,
            Purpose::Abandoned => !self.is_abandoned(),
            Purpose::Swap | Purpose::LastOfTrials => false,
        });
        self.wish.take_if(|_| is_idle);
    }

    /// Whether the job is in a trial, and nobody runs its trials any more, as far as this node sees it.
    fn is_abandoned(&self) -> bool {
        let is_free = |shared: &Shared| shared.trial().is_some() && shared.measured_by().is_none();
        self.whole().is_some_and(is_free)
    }

    /// The node whose trials a swap would disturb. A comparison is none that anybody waits for: what a
    /// user asks for ends it.
    pub(super) fn held_against(&self, purpose: Purpose) -> Option<Node> {
        let measuring = self.whole().and_then(Shared::measured_by);
        let is_compared = self.whole().and_then(Shared::trial).is_some_and(is_comparison);
        match purpose {
            Purpose::Swap | Purpose::Trial(_) if is_compared => None,
            Purpose::Swap if self.measures => Some(self.me.clone()),
            Purpose::Swap => measuring.cloned(),
            Purpose::Trial(_)
            | Purpose::Comparison(_)
            | Purpose::LastOfTrials
            | Purpose::Abandoned => measuring.filter(|node| **node != self.me).cloned(),
        }
    }

    /// Whether the others know that this node runs trials, if it does.
    pub(super) fn is_known_to_measure(&self) -> bool {
        let own = self.shared.as_ref().and_then(|shared| shared.members.get(&self.me));
        own.is_some_and(|member| member.measures)
    }

    /// How often a wish was tried with too little time for all nodes. To end trials that nobody runs any
    /// more, every swap since then was an attempt, whichever node made it.
    pub(super) fn attempts(shared: &Shared, wish: &Wish) -> u32 {
        let trial = shared.committed().next().filter(|_| wish.purpose == Purpose::Abandoned);
        let since = trial.map_or(0, |(number, _)| shared.newest().saturating_sub(number));
        wish.attempts.max(since.min(MOST_DOUBLINGS) as u32)
    }

    /// Wishes for default clocks, or for what was compared with them, where nobody runs the trials
    /// any more: any node may, and the node that requested them first. Without all of its nodes,
    /// the job runs on as it does.
    pub(super) fn end_abandoned_trials(&mut self) {
        if !self.is_abandoned() {
            self.abandoned_since_ms = None;
            return;
        }
        let Some(shared) = &self.shared else { return };
        let Some((number, proposal)) = shared.committed().next() else { return };
        let since_ms = *self.abandoned_since_ms.get_or_insert(self.now_ms);
        let place = proposal.members.iter().position(|node| *node == self.me).unwrap_or(0) as u64;
        let waits_ms =
            if proposal.by_node == self.me { 0 } else { PATIENCE_MS.saturating_add(place) };
        let is_turn = self.now_ms >= since_ms.saturating_add(waits_ms);
        let is_free = self.wish.is_none() && shared.undecided().is_none();
        if is_turn && is_free && completeness(&shared.members).is_ok() {
            let by_uid = proposal.by_uid;
            let terms = Terms { after: Some(number), ..Terms::default() };
            let run = after_abandoned(proposal);
            self.wish = Some(Wish::new(run, by_uid, Purpose::Abandoned, terms));
            self.stale = true;
        }
    }
}

fn is_comparison((_, proposal): (u64, &Proposal)) -> bool {
    proposal.trial.as_ref().is_some_and(|trial| trial.returns)
}

/// What a job is to run after trials that nobody runs any more.
fn after_abandoned(proposal: &Proposal) -> Run {
    match &proposal.trial {
        Some(Trial { before, returns: true, .. }) => before.clone(),
        _ => Run::DefaultClocks,
    }
}

impl Shared {
    /// The node at which somebody runs the trials that the job is in.
    #[must_use]
    pub fn measured_by(&self) -> Option<&Node> {
        let (_, proposal) = self.committed().next()?;
        let node = proposal.trial.as_ref().map(|_| &proposal.by_node)?;
        self.members.get(node).filter(|member| member.measures).map(|_| node)
    }
}
