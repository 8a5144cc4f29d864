//! What a rank tells its launcher, a line of JSON at a time: what it said stays said if it is
//! killed.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum RankEvent {
    /// The rank is ready to train.
    Started { pid: u32, uid: u32, gpu_uuid: String, problem: Option<ProblemReport> },
    /// A step begins.
    StepBegin { step: u64, at_ns: u64 },
    /// A step is done.
    StepEnd { step: u64, at_ns: u64, energy_j: f64, clock_changes: u64, clocks: Vec<Ran> },
    /// The rank ends by itself.
    Ended { end: End, problem: Option<ProblemReport>, counters: EventCounters },
}

/// The clocks that an instruction ran at, in MHz, and for how long each, in nanoseconds.
pub(crate) type Ran = Vec<(u32, u64)>;

/// Why a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    /// It did all of its steps.
    Completed,
    /// It was asked to stop.
    Stopped,
    /// A neighbour stage is gone.
    NeighbourGone,
}

/// Why the shim holds no lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProblemReport {
    pub(crate) code: i32,
    pub(crate) message: String,
    pub(crate) remedy: String,
}

/// What became of the events that the shim was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EventCounters {
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
    pub(crate) reconnects: u64,
    pub(crate) connected: bool,
}

impl From<pfo::Problem> for ProblemReport {
    fn from(problem: pfo::Problem) -> Self {
        Self { code: problem.code.number(), message: problem.message, remedy: problem.remedy }
    }
}

impl From<pfo::Counters> for EventCounters {
    fn from(counters: pfo::Counters) -> Self {
        Self {
            sent: counters.sent,
            dropped: counters.dropped,
            reconnects: counters.reconnects,
            connected: counters.connected,
        }
    }
}

/// Says it to the launcher. A launcher that is gone takes its ranks with it in another way.
pub(crate) fn tell(event: &RankEvent) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let _ = io::stdout().lock().write_all(&line).and_then(|()| io::stdout().flush());
    }
}
