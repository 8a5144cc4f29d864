//! What becomes of a proposal. Any agent may decide, the proposer first: the store creates the
//! decision once, so that it makes no difference who does.

use std::collections::BTreeSet;

use super::Participant;
use crate::event::{Action, Seen, Write};
use crate::node::Node;
use crate::shared::{Shared, SharedSwap};
use crate::swap::{Abort, Answer, Decision};

/// Milliseconds after which others finish what a proposer began.
pub(super) const PATIENCE_MS: u64 = 500;

impl Participant {
    pub(super) fn decide(&mut self) -> Option<Action> {
        let shared = self.shared.as_ref()?;
        let (number, swap) = shared.undecided()?;
        if self.now_ms < self.turn_ms(swap) {
            return None;
        }
        let decision = self.decision(shared, swap)?;
        self.writing.insert(Write::Decide).then_some(Action::Decide(number, decision))
    }

    /// When it is this node's turn: a thousand agents do not all write the same.
    fn turn_ms(&self, swap: &SharedSwap) -> u64 {
        let since_ms = self.undecided_since.map_or(self.now_ms, |(_, since_ms)| since_ms);
        if swap.proposal.by_node == self.me {
            return since_ms;
        }
        let place = swap.proposal.members.iter().position(|node| *node == self.me).unwrap_or(0);
        since_ms.saturating_add(PATIENCE_MS).saturating_add(place as u64)
    }

    fn decision(&self, shared: &Shared, swap: &SharedSwap) -> Option<Decision> {
        let SharedSwap { proposal, answers, .. } = swap;
        let vetoed = answers.iter().find_map(|(node, answer)| match answer {
            Answer::Veto(why) => Some(Abort::Veto(node.clone(), why.clone())),
            _ => None,
        });
        if let Some(abort) = vetoed {
            return Some(Decision::Abort(abort));
        }
        let has_armed = |node: &&Node| matches!(answers.get(*node), Some(Answer::Armed(_)));
        let missing: BTreeSet<Node> =
            proposal.members.iter().filter(|node| !has_armed(node)).cloned().collect();
        let is_late = |node: &Node| matches!(answers.get(node), Some(Answer::TooLate(_)));
        if missing.iter().any(is_late) {
            return Some(Decision::Abort(Abort::TooLate(missing)));
        }
        if let Some(left) = missing.iter().find(|node| !shared.members.contains_key(node)) {
            return Some(Decision::Abort(Abort::Left(left.clone())));
        }
        let seen = self.fresh()?;
        let next = seen.next_step?;
        if next >= proposal.step {
            return Some(Decision::Abort(Abort::TooLate(missing)));
        }
        if !missing.is_empty() {
            return None;
        }
        Some(self.counts_higher(swap, seen).map_or(Decision::Commit, Decision::Abort))
    }

    /// A member whose next step, when it armed, was beyond what ours is only now: ranks of one job
    /// are at most a step or two apart, so it does not count as we do.
    fn counts_higher(&self, swap: &SharedSwap, seen: &Seen) -> Option<Abort> {
        let others = seen.next_step?;
        swap.answers.iter().find_map(|(node, answer)| match answer {
            Answer::Armed(its) if others.saturating_add(self.settings.slack) < *its => {
                let (node, other) = (node.clone(), self.me.clone());
                Some(Abort::Steps { node, its: *its, other, others })
            }
            _ => None,
        })
    }
}
