//! Trials: a swap that every node measures the same steps of. The job returns to default clocks when
//! nobody runs its trials any more.

use super::Participant;
use super::deciding::PATIENCE_MS;
use super::proposing::Wish;
use crate::event::{Action, Purpose};
use crate::member::completeness;
use crate::node::Node;
use crate::shared::Shared;
use crate::swap::Run;

/// How often the lead of a swap that ends abandoned trials is doubled at most.
const MOST_DOUBLINGS: u64 = 4;

impl Participant {
    /// Has the node measure what the newest trial asks for.
    pub(super) fn measure(&mut self) -> Option<Action> {
        let (number, proposal) = self.shared.as_ref()?.committed().next()?;
        let (first_step, trial) = (proposal.first_step()?, proposal.trial.as_ref()?);
        let steps = trial.length.steps;
        let is_new = self.measured != number;
        self.measured = number;
        is_new.then_some(Action::Measure { number, first_step, steps })
    }

    pub(super) fn let_go(&mut self) {
        self.measures = false;
    }

    /// Drops a wish that has lost its reason before it was proposed.
    pub(super) fn drop_idle_wish(&mut self) {
        let is_idle = self.wish.as_ref().is_some_and(|wish| match wish.purpose {
            _ if wish.is_proposed() => false,
            Purpose::Trial(_) => !self.measures,
            Purpose::Abandoned => !self.is_abandoned(),
            Purpose::Swap | Purpose::LastOfTrials => false,
        });
        self.wish.take_if(|_| is_idle);
    }

    /// Whether the job is in a trial, and nobody runs its trials any more.
    fn is_abandoned(&self) -> bool {
        let newest =
            self.shared.as_ref().and_then(|shared| Some((shared, shared.committed().next()?)));
        newest.is_some_and(|(shared, (_, proposal))| {
            proposal.trial.is_some() && shared.measured_by().is_none()
        })
    }

    /// The node whose trials a swap would disturb.
    pub(super) fn held_against(&self, purpose: Purpose) -> Option<Node> {
        let measuring = self.shared.as_ref().and_then(Shared::measured_by);
        match purpose {
            Purpose::Swap if self.measures => Some(self.me.clone()),
            Purpose::Swap => measuring.cloned(),
            Purpose::Trial(_) | Purpose::LastOfTrials | Purpose::Abandoned => {
                measuring.filter(|node| **node != self.me).cloned()
            }
        }
    }

    /// Whether the others know that this node runs trials, if it does.
    pub(super) fn is_known_to_measure(&self) -> bool {
        let own = self.shared.as_ref().and_then(|shared| shared.members.get(&self.me));
        own.is_some_and(|member| member.measures)
    }

    /// Wishes for default clocks where nobody runs the trials any more: any node may, and who asked for
    /// them first. Without all of its nodes, the job runs on as it does.
    pub(super) fn end_abandoned_trials(&mut self) {
        if !self.is_abandoned() {
            self.abandoned_since_ms = None;
            return;
        }
        let Some(shared) = &self.shared else { return };
        let Some((number, proposal)) = shared.committed().next() else { return };
        let since_ms = *self.abandoned_since_ms.get_or_insert(self.now_ms);
        let place = proposal.members.iter().position(|node| *node == self.me).unwrap_or(0) as u64;
        let waits_ms = if proposal.by_node == self.me { 0 } else { PATIENCE_MS + place };
        let is_turn = self.now_ms >= since_ms.saturating_add(waits_ms);
        let is_free = self.wish.is_none() && shared.undecided().is_none();
        if is_turn && is_free && completeness(&shared.members).is_ok() {
            let by_uid = proposal.by_uid;
            // Each swap since the trial was an attempt in which the nodes had too little time.
            let attempts = shared.newest().saturating_sub(number).min(MOST_DOUBLINGS) as u32;
            let mut wish = Wish::new(Run::DefaultClocks, by_uid, Purpose::Abandoned);
            wish.attempts = attempts;
            self.wish = Some(wish);
            self.stale = true;
        }
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
