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
mod recording;
mod setting;
mod urgency;
mod wish;

use std::sync::Arc;

use pfo_keeper::Clocks;
use pfo_protocol::{ClosingReason, DpRank, Stage};

pub(crate) use self::cursor::Cursor;
use self::following::Following;
use self::recording::Recording;
use self::setting::Setting;
#[cfg(feature = "fuzzing")]
pub(crate) use self::wish::Wish;
use crate::job::{Job, Swap};
use crate::lease::{Measured, Progress, Rules, Session};
use crate::measure::CounterReader;

/// Room for what a rank sends while the driver is busy for a few milliseconds.
const BUFFER_BYTES: usize = 16 * 1024;

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
    counter: Arc<CounterReader>,
    rules: Rules,
    following: Following,
    setting: Setting,
    recording: Recording,
}

impl Rank {
    /// A rank at the beginning of its session; `joined_in` is the swap in use when it joined.
    pub(crate) fn new(
        session: Arc<Session>,
        job: Arc<Job>,
        place: (Stage, DpRank),
        clocks: Clocks,
        counter: Arc<CounterReader>,
        joined_in: Option<Arc<Swap>>,
    ) -> Self {
        let rules = session.grant.load().rules;
        let (energy_j, verdict) = counter.energy_j();
        session.progress.measured.store(Arc::new(Measured::begin(energy_j, verdict)));
        Self {
            session,
            job,
            counter,
            rules,
            following: Following::new(place, joined_in),
            setting: Setting::new(clocks, rules.changes_per_second),
            recording: Recording::new(),
        }
    }

    /// A rank in the middle of a session that another daemon has followed until now.
    pub(crate) fn in_the_middle(mut self) -> Self {
        self.following.cursor = Cursor::in_the_middle();
        self
    }

    /// The clocks, to restore them at the end of the session.
    pub(crate) fn clocks(&mut self) -> &mut Clocks {
        &mut self.setting.clocks
    }

    fn progress(&self) -> &Progress {
        &self.session.progress
    }
}
