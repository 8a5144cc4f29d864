//! What this release spells otherwise than release 0.1, whose build of `session.rs` wrote
//! `frames/session.json`.

pub(crate) use pfo_protocol::{Chunk, DpRank, Microbatch, Rank, SessionId, Stage, TpRank};
use pfo_protocol::{ClientMessage, DaemonMessage, GpuListing, Refusal};

pub(crate) fn list_gpus() -> ClientMessage {
    ClientMessage::ListGpus
}

pub(crate) fn gpu_list(answer: Result<Vec<GpuListing>, Refusal>) -> DaemonMessage {
    DaemonMessage::GpuList(answer)
}
