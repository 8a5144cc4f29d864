//! How the agents of a job's nodes agree on what the job runs, and at which step it changes.
//!
//! Pure: events go into a [`Participant`], actions come out. There is no network, no clock and no
//! `pfod` here; `pfo-agent` has them. What the agents tell each other is in a store that all of
//! them share: who takes part ([`Member`]), what somebody proposes ([`Proposal`]), who has it ready
//! ([`Answer`]), one decision that is created once ([`Decision`]), and what became of it at each
//! node ([`Report`]).
//!
//! The promise: no two nodes run different plans at a step, unless one of them is reported late.
//! `tests/schedules.rs` holds it over random delays, losses, crashes and restarts.
#![forbid(unsafe_code)]

mod compared;
mod digest;
mod event;
mod member;
mod node;
mod participant;
mod shared;
mod standing;
mod swap;

pub use compared::{Compared, Turn};
pub use digest::{Digest, NotADigest};
pub use event::{Action, Event, Purpose, Runs, Seen, SwapAnswer, Terms, Told, Write};
pub use member::{Degrees, Gpus, Incomplete, Member, Place, completeness};
pub use node::{Node, NotANode};
pub use participant::{OnPartition, Participant, Settings, Wish};
pub use shared::{Change, Shared, SharedSwap, View};
pub use standing::{Answered, Budgeted, Guard, OutOfReason, Pace, SlowStage, Standing, Watch};
pub use swap::{
    Abort, Answer, Decision, Late, Length, PlanCut, Proposal, Report, Run, Took, Trial,
};
