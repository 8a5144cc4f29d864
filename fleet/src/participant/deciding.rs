//! What becomes of a proposal. Any agent may decide that watches the whole job, the proposer first: the
//! store creates the decision once, so that it makes no difference who does.

use std::collections::BTreeSet;

use super::Participant;
use crate::event::{Action, Seen, Write};
use crate::node::Node;
use crate::shared::{Shared, SharedSwap};
use crate::swap::{Abort, Answer, Decision};

/// Milliseconds after which another node finishes what a proposer began, and after which one more does.
pub(super) const PATIENCE_MS: u64 = 500;

impl Participant {
    pub(super) fn decide(&mut self) -> Option<Action> {
        let shared = self.whole()?;
        let (number, swap) = shared.undecided()?;
        if swap.proposal.by_node != self.me && self.undecided_for_ms() < PATIENCE_MS {
            return None;
        }
        let decision = self.decision(shared, swap)?;
        self.writing.insert(Write::Decide).then_some(Action::Decide(number, decision))
    }

    /// For how long the newest swap is known and not decided.
    pub(super) fn undecided_for_ms(&self) -> u64 {
        self.undecided_since.map_or(0, |(_, since_ms)| self.now_ms.saturating_sub(since_ms))
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
