//! What GPUs draw while they only wait for a neighbour stage.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{GpuUuid, Mhz, Uid};

/// Where a P2P-blocking power comes from. The order is that of trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum P2pSource {
    /// The waits of a running job.
    Waits,
    /// Whole steps in which the GPU did nothing but wait.
    Receive,
    /// An administrator.
    Set,
}

/// A P2P-blocking power of one GPU, or of all of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct P2pPower {
    /// The model of the GPU.
    pub model: String,
    /// The GPU; none if the power is that of the model.
    pub gpu_uuid: Option<GpuUuid>,
    /// The SM clock that was asked for meanwhile, in MHz; none if no clock was.
    pub mhz: Option<Mhz>,
    /// The power, in watts.
    pub power_w: f64,
    /// Its standard error, in watts.
    pub error_w: f64,
    /// The number of measurements or waits behind it; 0 if it was not measured.
    pub count: u64,
    /// Where it comes from.
    pub source: P2pSource,
    /// Who had it measured, or set it.
    pub by_uid: Uid,
    /// When, in seconds since 1970.
    pub since_unix_s: u64,
}

/// What a P2P-blocking power belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum P2pTarget {
    /// One GPU of this node.
    Gpu(GpuUuid),
    /// Every GPU of a model.
    Model(String),
}
