//! What happens to a participant, and what it has done.

use std::collections::{BTreeMap, BTreeSet};

use pfo_vocabulary::{Mhz, Stage, Uid};

use crate::compared::Compared;
use crate::digest::Digest;
use crate::member::{Degrees, Gpus, Incomplete, Member, Place};
use crate::node::Node;
use crate::shared::{Change, Shared, View};
use crate::standing::{SlowStage, Standing};
use crate::swap::{Abort, Answer, Decision, Length, Proposal, Report, Run};

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, each for a moment")]
pub enum Event {
    /// Time has passed: milliseconds of a clock that never goes back.
    Tick(u64),
    /// The store answers; this is as much as was asked for of the job in it.
    Snapshot(View, Shared),
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
    Wished(Run, Uid, Purpose, Terms),
    /// Who ran trials of the job at this node is gone.
    LetGo,
    /// Somebody at this node wants to see the whole job.
    Asked,
}

/// What the job is to run something for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For good.
    Swap,
    /// To be measured. From then on other swaps are refused, until the last one or
    /// [`Event::LetGo`].
    Trial(Length),
    /// To be compared with what it runs: the same, but that it runs this again in the end.
    Comparison(Length),
    /// For good, after trials that were asked for here.
    LastOfTrials,
    /// For good, after trials that nobody runs any more. No user asks for it.
    Abandoned,
}

/// On which terms something is wished.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    /// The step at which the job is to change, and at no other; none for the first that is possible.
    pub at: Option<u64>,
    /// The newest committed swap, 0 for none: if there is another one, the reason for the wish is gone.
    pub after: Option<u64>,
    /// What stands beside it; none for what stands now, as far as that goes with what is wished.
    pub standing: Option<Standing>,
    /// The comparisons that it ends.
    pub compared: Vec<Compared>,
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
    /// The number that `pfod` gave that swap.
    pub swap: u64,
    /// Who holds the job for measuring.
    pub held: Option<String>,
    /// The stages that do not run as they were profiled, if that is watched.
    pub slow: Vec<SlowStage>,
    /// Why a GPU does not do what was swapped to, if the driver refuses or ignores it.
    pub astray: Option<String>,
    /// Whether every GPU has shown that it does what the newest swap that has taken place led to.
    pub shown: bool,
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
    /// One for everything of each data-parallel replica, in turn.
    Replicas(Vec<Mhz>),
    /// No plan, under a power limit for each stage, in watts.
    PowerLimits(Vec<u32>),
    /// Something that no fleet has.
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

/// Something to do. Each is answered by one event, except [`Action::Tell`] and
/// [`Action::Measure`].
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, each for a moment")]
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
    /// at the first one that none of them has begun. And only if the newest swap is still the one that
    /// was seen: an earlier agent of this node may have asked for another one just before it
    /// died. → [`Event::Swapped`]
    Swap {
        /// What is to run.
        run: Run,
        /// The step.
        at: Option<u64>,
        /// The number that `pfod` gave the newest swap.
        after: u64,
    },
    /// Tell the user who wished what became of it.
    Tell(Told),
    /// Watch so much of the job from now on, in place of what was watched before: nothing of that is
    /// to arrive any more. → [`Event::Snapshot`], or [`Event::StoreAway`]
    Watch(View),
    /// Measure steps of the ranks of this node, and hand that in. It takes the place of what was to be
    /// measured before.
    Measure {
        /// The number of the swap that is measured.
        number: u64,
        /// The first step.
        first_step: u64,
        /// How many.
        steps: u32,
        /// Whether each instruction is handed in by itself, too.
        samples: bool,
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
    /// The job changes at this step already, which is far ahead: nothing else is possible before.
    ToCome {
        /// The number of that swap.
        number: u64,
        /// The step.
        step: u64,
    },
    /// The step that was wished for is too near, or too far: those from one to another are possible.
    NotAt(u64, std::ops::RangeInclusive<u64>),
    /// The store does not answer.
    Away,
    /// Its nodes have run no plan together, somebody measures it, or no rank of this node has begun a step.
    NotNow(&'static str),
    /// A GPU of this node does not do what it is to do, for this reason: nothing is measured so.
    Astray(String),
    /// Another wish of this node is under way.
    Busy,
    /// The job has changed since the swap that the wish is for.
    Changed,
}
