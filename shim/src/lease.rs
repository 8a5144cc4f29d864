//! What the daemon has granted.

use pfo_protocol::{GpuUuid, Welcome};

/// The lease of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The GPU.
    pub gpu_uuid: GpuUuid,
    /// Its model.
    pub gpu_model: String,
    /// The daemon and its version.
    pub daemon: String,
}

impl From<Welcome> for Lease {
    fn from(welcome: Welcome) -> Self {
        Self { gpu_uuid: welcome.gpu_uuid, gpu_model: welcome.gpu_model, daemon: welcome.daemon }
    }
}
