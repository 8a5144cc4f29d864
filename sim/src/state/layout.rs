//! The bytes of the state file.
//!
//! All fields are atomics, so that a mapping shared with processes that write at the same time is
//! sound, and zeroed bytes are a valid start. A change here needs a new [`VERSION`].

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::curve::CurveSlot;
use crate::fault::FaultSlot;
use crate::model::FactsCell;
use crate::occupation::Occupation;
use crate::set_call::SetCallRing;
use crate::silicon::SiliconCell;
use crate::state::snapshot::SnapshotCell;

/// The first eight bytes of a state file.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"PFO-SIM\0");
/// Version of this layout.
pub(crate) const VERSION: u32 = 9;
/// Processes that can have the driver open at a time and be counted.
pub(crate) const CLIENTS: usize = 256;
/// Processes that can be on one GPU at a time.
pub(crate) const PROCESSES_PER_GPU: usize = 8;
/// Power curves that can be installed on one GPU at a time.
pub(crate) const CURVES_PER_GPU: usize = 16;
/// Faults that can be armed at a time.
pub(crate) const FAULTS: usize = 32;
/// Stands for "no uid" and "any GPU".
pub(crate) const NONE: u32 = u32::MAX;

/// The start of the file. GPUs follow at [`GPUS_OFFSET`].
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) gpu_count: AtomicU32,
    /// Size of a [`GpuBlock`]: a second guard against another layout.
    pub(crate) gpu_bytes: AtomicU64,
    /// Who may call setters beside root, or [`NONE`].
    pub(crate) owner_uid: AtomicU32,
    /// How often the driver was unloaded and loaded again: odd while it is not there.
    pub(crate) reloads: AtomicU32,
    /// Faults armed: zero lets a call skip the table.
    pub(crate) faults_armed: AtomicU32,
    /// [`DriverVersion`](crate::driver_version::DriverVersion).
    pub(crate) driver: AtomicU32,
    pub(crate) faults: [FaultSlot; FAULTS],
}

/// One GPU.
#[repr(C, align(64))]
pub(crate) struct GpuBlock {
    /// Number of the model.
    pub(crate) model: AtomicU32,
    /// Domain in the upper, bus in the lower half.
    pub(crate) pci: AtomicU32,
    /// Upper and lower half of the UUID.
    pub(crate) uuid: [AtomicU64; 2],
    pub(crate) serial: AtomicU64,
    /// The highest energy ever shown, in mJ: the counter never goes back behind it.
    pub(crate) energy_shown_mj: AtomicU64,
    /// Calls that reset the SM clock lock, and calls that set or reset the memory clock lock.
    pub(crate) reset_calls: AtomicU64,
    pub(crate) memory_calls: AtomicU64,
    pub(crate) silicon: SiliconCell,
    pub(crate) facts: FactsCell,
    pub(crate) occupation: Occupation,
    pub(crate) state: SnapshotCell,
    pub(crate) curves: [CurveSlot; CURVES_PER_GPU],
    pub(crate) set_calls: SetCallRing,
}

/// Where the first GPU is.
pub(crate) const GPUS_OFFSET: usize = 4096;

const _: () = assert!(size_of::<Header>() <= GPUS_OFFSET);

/// The size of a file with that many GPUs.
pub(crate) fn file_bytes(gpus: usize) -> usize {
    GPUS_OFFSET + gpus * size_of::<GpuBlock>()
}
