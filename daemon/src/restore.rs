//! Undoing locks: at the end of a lease, and after a predecessor that could not.
//!
//! Only what the ledger names is touched. A GPU that cannot be restored keeps its entry.

use nvml_wrapper::Device;

use crate::driver::{Driver, DriverError, Gpu};
use crate::ledger::{Entry, Ledger, LedgerError};

/// Why a GPU's clocks are still locked, or not known to be free.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The ledger could not be written; the clocks are restored.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The GPU of the entry is not there.
    #[error("GPU {0} is not there; its clocks are restored as soon as it is back")]
    Absent(String),
}

/// Resets what `entry` says is locked, then takes it out of the ledger.
///
/// # Errors
/// If the driver refuses; the entry then stays.
pub fn restore(
    device: &mut Device<'static>,
    gpu: &Gpu,
    entry: &Entry,
    ledger: &Ledger,
) -> Result<(), RestoreError> {
    // Both are tried even if one fails: half a restore is better than none.
    let sm = if entry.sm { reset_sm(device, gpu) } else { Ok(()) };
    let memory = if entry.memory { reset_memory(device, gpu) } else { Ok(()) };
    sm?;
    memory?;
    Ok(ledger.clear(&entry.gpu_uuid)?)
}

/// Frees the SM clock.
///
/// # Errors
/// If the driver refuses.
pub fn reset_sm(device: &mut Device<'static>, gpu: &Gpu) -> Result<(), DriverError> {
    device.reset_gpu_locked_clocks().map_err(|source| gpu.failed("resetting its SM clock", source))
}

/// Frees the memory clock.
///
/// # Errors
/// If the driver refuses; a GPU that knows no memory locks has none.
pub fn reset_memory(device: &mut Device<'static>, gpu: &Gpu) -> Result<(), DriverError> {
    match device.reset_mem_locked_clocks() {
        Ok(()) => Ok(()),
        Err(source) => match gpu.failed("resetting its memory clock", source) {
            error if error.is_not_supported() => Ok(()),
            error => Err(error),
        },
    }
}

/// Restores one GPU from its ledger entry.
///
/// # Errors
/// If the GPU is not there or the driver refuses; the entry then stays.
pub fn restore_entry(driver: &Driver, entry: &Entry, ledger: &Ledger) -> Result<(), RestoreError> {
    let gpu = driver
        .gpus
        .iter()
        .find(|gpu| gpu.uuid == entry.gpu_uuid)
        .ok_or_else(|| RestoreError::Absent(entry.gpu_uuid.to_string()))?;
    restore(&mut gpu.device()?, gpu, entry, ledger)
}
