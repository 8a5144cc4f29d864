//! The thread of a rank: reads its events and sets its GPU's clock, with nothing in between.
//!
//! Between a read and the driver's set call there is no allocation, no lock shared with
//! administration and no log line. Everything else waits until the call is made.

mod accounting;
mod ahead;
mod cursor;
#[cfg(test)]
mod example;
mod following;
mod mismatch;
mod pace;
mod reading;
mod record;
mod setting;
mod urgency;
mod wish;

use std::sync::Arc;
use std::time::Instant;

use pfo_keeper::Clocks;
use pfo_policy::Place;
use pfo_protocol::{ClosingReason, DpRank, GpuUuid, Holder, Mhz, Milliwatts, Stage, Unit};

use self::accounting::StepsBegun;
use self::ahead::Ahead;
pub(crate) use self::cursor::Cursor;
use self::mismatch::Mismatch;
use self::pace::Pace;
pub(crate) use self::wish::Wish;
use crate::job::{Job, JobPlan, Swap};
use crate::lease::{Measured, Progress, Rules, Session};

/// Room for what a rank sends while the driver is busy for a few milliseconds.
const BUFFER_BYTES: usize = 16 * 1024;

/// Instructions of a step that are remembered, to check new plans against.
const REMEMBERED_UNITS: usize = 1 << 16;

/// No more events than this come in one read.
const MOST_EVENTS_READ: usize = BUFFER_BYTES / 32;

/// How a session ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The rank said goodbye.
    Goodbye,
    /// The connection ended.
    HungUp,
    /// The daemon ends it.
    Closed(ClosingReason, String),
    /// The daemon ends, and leaves the session to the next one.
    HandedOver,
    /// The thread panicked.
    Failed,
}

/// A rank and its GPU during its session.
pub(crate) struct Rank {
    session: Arc<Session>,
    job: Arc<Job>,
    stage: Stage,
    replica: DpRank,
    rules: Rules,
    pace: Pace,
    /// The change that was skipped for lack of room and has been counted.
    skipped: Option<Mhz>,
    clocks: Clocks,
    cursor: Cursor,
    ahead: Ahead,
    /// The lock that the running instruction had before the next one's was asked for.
    own_lock: Option<(Mhz, u64)>,
    plan: Option<Arc<JobPlan>>,
    swap: u64,
    joined_in: Option<Arc<Swap>>,
    refused: Option<Wish>,
    /// What the driver refused is asked for once more: a step begins.
    retry: bool,
    /// The power limit that the GPU should have.
    power_limit: Option<Milliwatts>,
    /// The setting that failed, and is not requested again until another one is wanted.
    refused_limit: Option<Option<Milliwatts>>,
    /// Whether the plan has the memory clock free, and whether it was locked and is free for that.
    frees_memory: bool,
    memory_freed: bool,
    begun: StepsBegun,
    mismatch: Option<Mismatch>,
    mismatched_in_a_row: u32,
    /// What the rank has run so far in this step, if it is complete.
    units: Vec<Unit>,
    units_complete: bool,
    /// What it ran in the last whole step, if that is not published yet.
    whole_step: Vec<Unit>,
    step_ended: bool,
    /// The clocks are restored until the next event; whether the memory clock was locked.
    resting: Option<bool>,
    process_checked: Instant,
}

impl Rank {
    /// A rank at the beginning of its session; `joined_in` is the swap in use when it joined.
    pub(crate) fn new(
        session: Arc<Session>,
        job: Arc<Job>,
        (stage, replica): (Stage, DpRank),
        clocks: Clocks,
        joined_in: Option<Arc<Swap>>,
    ) -> Self {
        let rules = session.grant.load().rules;
        session.progress.measured.store(Arc::new(Measured::begin(clocks.energy_j())));
        Self {
            session,
            job,
            stage,
            replica,
            rules,
            pace: Pace::new(rules.changes_per_second),
            skipped: None,
            clocks,
            cursor: Cursor::default(),
            ahead: Ahead::default(),
            own_lock: None,
            plan: None,
            swap: 0,
            joined_in,
            refused: None,
            retry: false,
            power_limit: None,
            refused_limit: None,
            frees_memory: false,
            memory_freed: false,
            begun: StepsBegun::default(),
            mismatch: None,
            mismatched_in_a_row: 0,
            units: Vec::with_capacity(MOST_EVENTS_READ),
            units_complete: false,
            whole_step: Vec::with_capacity(MOST_EVENTS_READ),
            step_ended: false,
            resting: None,
            process_checked: Instant::now(),
        }
    }

    /// A rank in the middle of a session that another daemon has followed until now.
    pub(crate) fn in_the_middle(self) -> Self {
        Self { cursor: Cursor::in_the_middle(), ..self }
    }

    /// The clocks, to restore them at the end of the session.
    pub(crate) fn clocks(&mut self) -> &mut Clocks {
        &mut self.clocks
    }

    fn progress(&self) -> &Progress {
        &self.session.progress
    }
}

/// Why a process may not have, or keep, a lease that requires it to compute on the GPU.
pub(crate) fn no_process(holder: &Holder, gpu: &GpuUuid, place: &Place) -> String {
    format!("process {} does not compute on GPU {gpu}, which {place} requires", holder.pid)
}
