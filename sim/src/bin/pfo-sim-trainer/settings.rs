//! What the launcher tells a rank. Private between the two, in JSON on the rank's command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::identity::Identity;
use crate::misbehaviour::Misbehaviour;

/// How a rank names its GPU to pfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum GpuName {
    /// By its UUID.
    Uuid,
    /// By its PCI bus id.
    Pci,
    /// As CUDA ordinal 0, with itself in `CUDA_VISIBLE_DEVICES`.
    Cuda,
}

/// One rank: one stage of a replica on one GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankSettings {
    pub(crate) state: PathBuf,
    pub(crate) stage: usize,
    pub(crate) stages: usize,
    /// The data-parallel replica, of how many.
    pub(crate) replica: usize,
    pub(crate) replicas: usize,
    pub(crate) gpu: usize,
    pub(crate) gpu_name: GpuName,
    pub(crate) microbatches: u32,
    /// Without end if zero.
    pub(crate) steps: u64,
    pub(crate) step_pause_ms: u64,
    /// From the end of an instruction until its output has reached a neighbour.
    pub(crate) transfer_ms: f64,
    pub(crate) profile: Option<PathBuf>,
    pub(crate) time_scale: f64,
    pub(crate) job: String,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) with_pfo: bool,
    /// Whether to tell the clocks of instructions.
    pub(crate) clocks: bool,
    /// Who to become first.
    pub(crate) identity: Option<Identity>,
    pub(crate) misbehaviour: Misbehaviour,
    /// Where each rank listens; none if they inherit their sockets.
    pub(crate) tcp: Vec<SocketAddr>,
    /// The network namespace to start in.
    pub(crate) namespace: Option<String>,
    /// For how long a neighbour may be silent, in seconds; 0 is for ever.
    pub(crate) patience_s: u32,
    /// Inherited sockets to the neighbours.
    pub(crate) previous_fd: Option<i32>,
    pub(crate) next_fd: Option<i32>,
    /// Inherited sockets to the same stage of other replicas.
    pub(crate) replica_fds: Vec<i32>,
    /// The launcher's pid: a rank does not outlive it.
    pub(crate) launcher: i32,
}

impl RankSettings {
    /// The global rank: one replica comes after the other.
    pub(crate) fn rank(&self) -> u32 {
        (self.replica * self.stages + self.stage) as u32
    }
}
