//! What happens to a participant, and what it has done.

use std::collections::{BTreeMap, BTreeSet};

use pfo_vocabulary::{Mhz, Stage, Uid};

use crate::digest::Digest;
use crate::member::{Degrees, Gpus, Incomplete, Member, Place};
use crate::node::Node;
use crate::shared::{Change, Shared};
use crate::swap::{Abort, Answer, Decision, Length, Proposal, Report, Run};

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Time has passed: milliseconds of a clock that never goes back.
    Tick(u64),
    /// The store answers; this is the job in it.
    Snapshot(Shared),
    /// The job in the store has changed.
    Changed(Change),
    /// The store does not answer any more.
    StoreAway,
    /// What became of a write: whether the store has taken it, or it was refused because somebody
    /// was first. None if that is not known.
    Written(Write, Option<bool>),
    /// These slices are here now: fetched and compared with their digests. Others that were asked
    /// for could not be had.
    Fetched(BTreeSet<Digest>),
    /// What `pfod` shows of the job; none if it does not answer.
    Looked(Option<Seen>),
    /// Whether `pfod` finds that the plan of a proposal fits; none if it does not answer.
    Loaded(u64, Option<Result<(), String>>),
    /// What `pfod` said to [`Action::Swap`].
    Swapped(SwapAnswer),
    /// A user wants the whole job to run something.
    Wished(Run, Uid, Purpose),
    /// Who ran trials of the job at this node is gone.
    LetGo,
}

/// What the job is to run something for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For good.
    Swap,
    /// To be measured. From then on other swaps are refused, until the last one or
    /// [`Event::LetGo`].
    Trial(Length),
    /// For good, after trials that were asked for here.
    LastOfTrials,
    /// For good, after trials that nobody runs any more. No user asks for it.
    Abandoned,
}

/// A write to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Write {
    /// [`Action::Join`]
    Join,
    /// [`Action::Report`]
    Report,
    /// [`Action::Propose`]
    Propose,
    /// [`Action::Arm`]
    Arm,
    /// [`Action::Decide`]
    Decide,
}

/// What `pfod` shows of the job's part on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The sizes of the job.
    pub degrees: Degrees,
    /// The ranks on this node.
    pub places: Vec<Place>,
    /// The GPUs of these.
    pub gpus: Gpus,
    /// The first step that none of them has begun; none if the step of one is not known.
    pub next_step: Option<u64>,
    /// The time of a step in milliseconds, if it was measured.
    pub step_ms: Option<u64>,
    /// What the newest swap leads to, whether it has taken place or not.
    pub runs: Runs,
    /// Who holds the job for measuring.
    pub held: Option<String>,
}

/// What `pfod` shows that a job runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Runs {
    /// No plan.
    DefaultClocks,
    /// A plan with these slices, for the stages that are on this node.
    Slices(BTreeMap<Stage, Digest>),
    /// One clock for everything.
    Uniform(Mhz),
    /// Something that no fleet has, such as power limits.
    Other,
}

/// What `pfod` says to a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapAnswer {
    /// Every rank of the node changes at this step.
    At(u64),
    /// It does not take place, for this reason.
    Refused(String),
    /// There was no answer.
    Unknown,
}

/// Something to do. Each is answered by one event, except [`Action::Tell`] and [`Action::Measure`].
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write this node into the job, under its lease. → [`Event::Written`]
    Join(Member),
    /// Write the report of this node. → [`Event::Written`]
    Report(Report),
    /// Create the next swap, if none has this number or a higher one, and delete those below
    /// `forget_below`. → [`Event::Written`]
    Propose {
        /// Its number: one more than that of the newest.
        number: u64,
        /// What is proposed.
        proposal: Proposal,
        /// Swaps below this number do not matter any more.
        forget_below: u64,
    },
    /// Write this node's answer to a proposal. → [`Event::Written`]
    Arm(u64, Answer),
    /// Create the decision, if there is none. → [`Event::Written`]
    Decide(u64, Decision),
    /// Fetch slices. → [`Event::Fetched`]
    Fetch(BTreeSet<Digest>),
    /// Ask `pfod` for the job. → [`Event::Looked`]
    Look,
    /// Have `pfod` check a plan against the job. → [`Event::Loaded`]
    Load(u64, Run),
    /// Have `pfod` change the ranks of this node, at exactly a step or not at all; without a step
    /// at the first one that none of them has begun. → [`Event::Swapped`]
    Swap(Run, Option<u64>),
    /// Tell the user who wished what became of it.
    Tell(Told),
    /// Measure steps of the ranks of this node, and hand that in. It takes the place of what was to be
    /// measured before.
    Measure {
        /// The number of the swap that is measured.
        number: u64,
        /// The first step.
        first_step: u64,
        /// How many.
        steps: u32,
    },
}

/// What became of a user's wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The job changes at this step, by the swap of this number.
    Committed {
        /// The number of the swap.
        number: u64,
        /// The step.
        step: u64,
    },
    /// It does not, after this many attempts.
    Aborted(Abort, u32),
    /// The job is not complete.
    Incomplete(Incomplete),
    /// Somebody at this node measures the job.
    Held(Node),
    /// The store does not answer, or no rank of this node has begun a step.
    NotNow(&'static str),
}
