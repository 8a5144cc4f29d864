//! A swap of a whole job: what the agents write into the store about it.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Not;

use pfo_vocabulary::{Mhz, Stage, Uid};
use serde::{Deserialize, Serialize};

use crate::compared::Compared;
use crate::digest::Digest;
use crate::node::Node;
use crate::standing::Standing;

/// What a job runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Run {
    /// No plan.
    DefaultClocks,
    /// A plan.
    Plan(PlanCut),
    /// One clock for everything, while that is measured.
    Uniform(Mhz),
    /// Several at the same time: one for everything of each data-parallel replica, in turn.
    Replicas(Vec<Mhz>),
    /// No plan, under power limits.
    PowerLimits {
        /// What it is called in status.
        label: String,
        /// Each stage's, in watts.
        limits_w: Vec<u32>,
    },
}

impl Run {
    /// The slice of a stage; none at default clocks, and for a stage that the plan does not have.
    #[must_use]
    pub fn slice(&self, stage: Stage) -> Option<Digest> {
        match self {
            Self::DefaultClocks
            | Self::Uniform(_)
            | Self::Replicas(_)
            | Self::PowerLimits { .. } => None,
            Self::Plan(plan) => plan.stages.get(stage.index()).copied(),
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultClocks => f.write_str("default clocks"),
            Self::Plan(plan) => f.write_str(&plan.label),
            Self::PowerLimits { label, .. } => f.write_str(label),
            Self::Uniform(mhz) => write!(f, "all at {mhz}"),
            Self::Replicas(clocks) => {
                let each: Vec<_> = clocks.iter().map(|mhz| mhz.0.to_string()).collect();
                write!(f, "all at {} MHz", each.join("/"))
            }
        }
    }
}

/// A plan that is cut by stage. The slices are in the store under their digests, and a node fetches
/// those of its own stages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanCut {
    /// What it is called in status.
    pub label: String,
    /// The microbatches of a step.
    pub num_microbatches: u32,
    /// The predicted time (s) and energy (J) of a step, if the plan predicts them.
    pub predicted: Option<(f64, f64)>,
    /// The slice of each stage.
    pub stages: Vec<Digest>,
}

/// A swap that every member is asked to arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// What the job shall run.
    pub run: Run,
    /// The step at which every rank changes, or none does.
    pub step: u64,
    /// The nodes that have to arm it: those that had the job when it was proposed.
    pub members: BTreeSet<Node>,
    /// The first step that no rank of the proposer's had begun when it was proposed.
    pub proposed_at: u64,
    /// Who requested it.
    pub by_uid: Uid,
    /// Where.
    pub by_node: Node,
    /// What is measured of it; none if the job is to run it for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
    /// What stands beside it.
    #[serde(default, skip_serializing_if = "Standing::is_empty")]
    pub standing: Standing,
    /// What a rollback leads to; none if that is what the job ran before this swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Run>,
    /// The comparisons that it ends, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compared: Vec<Compared>,
}

impl Proposal {
    /// The first step that is measured.
    #[must_use]
    pub fn first_step(&self) -> Option<u64> {
        let trial = self.trial.as_ref()?;
        Some(self.step.saturating_add(trial.length.settling_steps.into()))
    }

    /// What the job runs for good after this swap.
    #[must_use]
    pub fn for_good(&self) -> &Run {
        self.trial.as_ref().map_or(&self.run, |trial| &trial.before)
    }
}

impl Proposal {
    /// What stands beside what the job runs from a step on, if nobody runs the trial any more that this
    /// is. A comparison that came to nothing is paid for, too.
    pub(crate) fn standing_if_abandoned(&self, step: u64) -> Standing {
        if !self.trial.as_ref().is_some_and(|trial| trial.returns) {
            return self.standing.for_another(step);
        }
        let is_default = self.run == Run::DefaultClocks;
        let spent = if is_default { step.saturating_sub(self.step) } else { 0 };
        let guard = self.standing.guard.as_ref().map(|guard| guard.after(spent, None));
        Standing { guard, ..self.standing.clone() }
    }
}

/// A swap that is only for measuring: every node measures the same steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// How many.
    pub length: Length,
    /// What the job ran before its trials.
    pub before: Run,
    /// Whether it runs that again, and not default clocks, when nobody runs its trials any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub returns: bool,
}

/// How long a trial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Length {
    /// Steps after the swap that are left out.
    pub settling_steps: u32,
    /// Steps that are measured after those.
    pub steps: u32,
    /// Whether every instruction is handed in by itself, too.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub samples: bool,
}

/// What a member says of a proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It has its slices, `pfod` finds that they fit, and no rank has begun the step before the
    /// swap's: this was the next one.
    Armed(u64),
    /// The swap's step is too near, or past: this is the next one.
    TooLate(u64),
    /// It cannot, for this reason.
    Veto(String),
}

/// What becomes of a proposal: created once, and never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Every rank changes at the proposal's step.
    Commit,
    /// None does.
    Abort(Abort),
}

/// Why a swap does not take place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Abort {
    /// A node cannot run it.
    #[error("node {0}: {1}")]
    Veto(Node, String),
    /// These nodes had not armed it when the step before the swap's began.
    #[error("not armed in time by {}", names(.0))]
    TooLate(BTreeSet<Node>),
    /// A node left before it had armed it.
    #[error("node {0} has left the job, or cannot reach the store")]
    Left(Node),
    /// A node counts steps differently.
    #[error(
        "node {node} counts steps differently: its next one was {its} when that of node {other} \
        was {others}"
    )]
    Steps {
        /// The node.
        node: Node,
        /// Its next step.
        its: u64,
        /// A node to compare with.
        other: Node,
        /// The next step of that one, no earlier.
        others: u64,
    },
}

fn names(nodes: &BTreeSet<Node>) -> String {
    let mut names: Vec<_> = nodes.iter().take(8).map(Node::as_str).collect();
    if nodes.len() > names.len() {
        names.push("…");
    }
    names.join(", ")
}

/// What became of the committed swaps at a node. It stays in the store while the agent is away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The newest swap that the node has taken up.
    pub took: Option<Took>,
    /// The newest swap that it was late for.
    pub late: Option<Late>,
    /// The newest swap for good whose plan its GPUs have shown; 0 for none.
    #[serde(default)]
    pub shown: u64,
}

impl Report {
    /// Whether the node is late now.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.late_now().is_some()
    }

    /// How the node is late now; none if it is not.
    #[must_use]
    pub fn late_now(&self) -> Option<&Late> {
        self.late.as_ref().filter(|late| late.until.is_none())
    }
}

/// A swap that a node has taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Took {
    /// Its number.
    pub number: u64,
    /// The step from which the node runs it.
    pub step: u64,
}

/// Steps in which a node did not run what had been committed, or may not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// The swap.
    pub number: u64,
    /// The first of the steps.
    pub from: u64,
    /// The step from which the node runs the swap; none while it does not.
    pub until: Option<u64>,
    /// Why.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_store_can_be_read_by_people() {
        let answer = serde_json::to_string(&Answer::Armed(7)).unwrap();
        assert_eq!(answer, r#"{"armed":7}"#);
        assert_eq!(serde_json::to_string(&Decision::Commit).unwrap(), r#""commit""#);
        let nodes: BTreeSet<Node> = ["a", "b"].map(|name| name.parse().unwrap()).into();
        let abort = Decision::Abort(Abort::TooLate(nodes.clone()));
        assert_eq!(serde_json::to_string(&abort).unwrap(), r#"{"abort":{"too-late":["a","b"]}}"#);
        assert_eq!(Abort::TooLate(nodes).to_string(), "not armed in time by a, b");
    }

    #[test]
    fn a_proposal_that_says_more_than_this_version_knows_is_not_read() {
        let proposal = Proposal {
            run: Run::DefaultClocks,
            step: 9,
            members: BTreeSet::new(),
            proposed_at: 3,
            by_uid: Uid(7),
            by_node: "n".parse().unwrap(),
            trial: None,
            standing: Standing::default(),
            rollback: None,
            compared: Vec::new(),
        };
        let mut written = serde_json::to_value(&proposal).unwrap();
        assert_eq!(serde_json::from_value::<Proposal>(written.clone()).unwrap(), proposal);
        written["only_ranks"] = serde_json::json!([0]);
        assert!(serde_json::from_value::<Proposal>(written).is_err());
    }

    #[test]
    fn many_nodes_that_are_late_do_not_make_a_page() {
        let nodes = (0..1000).map(|node| format!("n{node}").parse().unwrap()).collect();
        assert!(Abort::TooLate(nodes).to_string().len() < 80);
    }
}
