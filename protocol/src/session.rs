//! The opening and the end of a rank's session.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{DpRank, GpuName, GpuUuid, JobName, Rank, SessionId, Stage, TpRank};

/// Where a rank stands in its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPosition {
    /// The global rank.
    pub rank: Rank,
    /// The pipeline stage that the rank runs.
    pub pp_rank: Stage,
    /// The data-parallel rank.
    pub dp_rank: DpRank,
    /// The tensor-parallel rank.
    pub tp_rank: TpRank,
    /// The number of pipeline stages.
    pub pp_degree: u32,
    /// The number of data-parallel replicas.
    pub dp_degree: u32,
    /// The number of tensor-parallel shards.
    pub tp_degree: u32,
}

/// A rank asks for a session, and with it for the lease of its GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The client and its version, for status and logs.
    pub client: String,
    /// The job that the rank belongs to.
    pub job: JobName,
    /// Where the rank stands in it.
    pub position: RankPosition,
    /// The GPU that the rank drives.
    pub gpu: GpuName,
    /// How many microbatches a step has, if the rank knows.
    pub num_microbatches: Option<u32>,
    /// The number of the next step that the rank will begin.
    pub next_step: u64,
}

/// The session is open and holds the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The daemon and its version.
    pub daemon: String,
    /// The session's number, unique in the life of the daemon.
    pub session: SessionId,
    /// The leased GPU.
    pub gpu_uuid: GpuUuid,
    /// Its model.
    pub gpu_model: String,
    /// Events are awaited at least this often, in milliseconds; after a longer silence the session
    /// ends and its clocks are restored. The next event opens a new one.
    pub idle_limit_ms: u64,
}

/// Why something was refused, in a form that programs can act on. The order is the number on the
/// wire and in the C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RefusalCode {
    /// The message is not one.
    Malformed,
    /// The peer may not do this.
    NotAuthorized,
    /// No GPU of this node has that name.
    UnknownGpu,
    /// Another session holds the lease.
    GpuHeld,
    /// The GPU is split by MIG: its clocks belong to all of its instances.
    MigEnabled,
    /// The driver refuses to work with the GPU.
    GpuUnavailable,
    /// There is no driver.
    DriverUnavailable,
    /// A limit of the daemon is reached.
    LimitReached,
    /// The job already has a session of that rank, or the rank contradicts the others.
    RankConflict,
    /// The daemon knows no such job.
    UnknownJob,
    /// The plan is not one, or does not fit the job.
    PlanDoesNotFit,
    /// There is nothing to swap to.
    NoPlan,
    /// The daemon is going down.
    ShuttingDown,
    /// The daemon failed at something that should have worked.
    Internal,
    /// The peer has no process on the GPU, and the administrator requires one.
    NoProcess,
    /// The lease was taken back and is not given again yet.
    Revoked,
}

/// A refusal: what is wrong, with the value, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}{remedy}", if .remedy.is_empty() { "" } else { "; " })]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// What was wrong.
    pub message: String,
    /// What to do about it; empty where nothing can be said.
    pub remedy: String,
}

impl Refusal {
    /// A refusal with its message and remedy.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        let short = |text: String| match text.floor_char_boundary(1024) {
            end if end < text.len() => format!("{}…", &text[..end]),
            _ => text,
        };
        // Both texts fit into a refusal's frame, whatever the values they name.
        Self { code, message: short(message.into()), remedy: short(remedy.into()) }
    }
}

/// Why the daemon ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ClosingReason {
    /// No event arrived within the idle limit. The next event may open a new session.
    Idle,
    /// The daemon is going down; another will come.
    ShuttingDown,
    /// The rank sent something that is not a frame of this protocol.
    Malformed,
    /// An administrator or the user ended the session.
    Revoked,
    /// The GPU stopped answering.
    GpuLost,
}

/// The daemon ends a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// For programs.
    pub reason: ClosingReason,
    /// For people.
    pub message: String,
}

/// The answer to a frame of an unknown version. Its layout never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsupported {
    /// The oldest version that the sender speaks.
    pub oldest: u16,
    /// The newest version that the sender speaks.
    pub newest: u16,
}
