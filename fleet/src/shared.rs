//! What the store shows of a job: a snapshot, and the changes after it in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::member::Member;
use crate::node::Node;
use crate::swap::{Answer, Decision, Proposal, Report};

/// How much of a job an agent watches. What members say to a proposal would be a message for each pair
/// of them if everybody watched it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The swaps with their decisions, and what this node has written itself.
    Part,
    /// All of it.
    Whole,
}

/// A job in the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shared {
    /// The nodes whose lease has not expired.
    pub members: BTreeMap<Node, Member>,
    /// What became of the swaps at each node that ever took part.
    pub reports: BTreeMap<Node, Report>,
    /// The swaps by number: the newest one, and those before it that still matter.
    pub swaps: BTreeMap<u64, SharedSwap>,
}

/// One swap in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedSwap {
    /// What was proposed.
    pub proposal: Arc<Proposal>,
    /// What the members have said so far.
    pub answers: BTreeMap<Node, Answer>,
    /// What becomes of it.
    pub decision: Option<Decision>,
}

/// One change of a job in the store.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, each for a moment")]
pub enum Change {
    /// A member joined or wrote itself anew; none if it left or its lease has expired.
    Member(Node, Option<Member>),
    /// A node reported.
    Report(Node, Report),
    /// Somebody proposed a swap.
    Proposal(u64, Proposal),
    /// A member answered.
    Answer(u64, Node, Answer),
    /// A swap was decided.
    Decision(u64, Decision),
    /// A swap was deleted.
    Forgotten(u64),
}

impl View {
    /// Whether a node that watches this much learns of a change.
    #[must_use]
    pub fn shows(self, change: &Change, me: &Node) -> bool {
        match change {
            _ if self == Self::Whole => true,
            Change::Member(node, _) | Change::Report(node, _) | Change::Answer(_, node, _) => {
                node == me
            }
            Change::Proposal(..) | Change::Decision(..) | Change::Forgotten(_) => true,
        }
    }
}

impl Shared {
    /// What a node sees that watches this much.
    #[must_use]
    pub fn seen(mut self, view: View, me: &Node) -> Self {
        if view == View::Part {
            self.members.retain(|node, _| node == me);
            self.reports.retain(|node, _| node == me);
            for swap in self.swaps.values_mut() {
                swap.answers.retain(|node, _| node == me);
            }
        }
        self
    }

    /// Takes a change in.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Member(node, Some(member)) => {
                self.members.insert(node, member);
            }
            Change::Member(node, None) => {
                self.members.remove(&node);
            }
            Change::Report(node, report) => {
                self.reports.insert(node, report);
            }
            Change::Proposal(number, proposal) => {
                let proposal = Arc::new(proposal);
                let swap = SharedSwap { proposal, answers: BTreeMap::new(), decision: None };
                self.swaps.entry(number).or_insert(swap);
            }
            Change::Answer(number, node, answer) => {
                if let Some(swap) = self.swaps.get_mut(&number) {
                    swap.answers.insert(node, answer);
                }
            }
            Change::Decision(number, decision) => {
                if let Some(swap) = self.swaps.get_mut(&number) {
                    swap.decision = Some(decision);
                }
            }
            Change::Forgotten(number) => {
                self.swaps.remove(&number);
            }
        }
    }

    /// The number of the newest swap, 0 before the first one.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.swaps.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// The newest swap, if it is not decided.
    #[must_use]
    pub fn undecided(&self) -> Option<(u64, &SharedSwap)> {
        let (number, swap) = self.swaps.last_key_value()?;
        swap.decision.is_none().then_some((*number, swap))
    }

    /// The committed swaps, the newest first.
    pub fn committed(&self) -> impl Iterator<Item = (u64, &Arc<Proposal>)> {
        let swaps = self.swaps.iter().rev();
        swaps
            .filter(|(_, swap)| swap.decision == Some(Decision::Commit))
            .map(|(number, swap)| (*number, &swap.proposal))
    }

    /// Members that have not said that they run the newest committed swap: they are late, or about
    /// to change.
    #[must_use]
    pub fn behind(&self) -> BTreeSet<&Node> {
        let Some((number, _)) = self.committed().next() else { return BTreeSet::new() };
        let has_taken = |node: &&Node| {
            let report = self.reports.get(*node);
            report.is_some_and(|report| {
                !report.is_late() && report.took.is_some_and(|took| took.number >= number)
            })
        };
        self.members.keys().filter(|node| !has_taken(node)).collect()
    }
}
