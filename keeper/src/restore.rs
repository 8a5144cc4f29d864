//! Undoing locks and power limits: at the end of a lease, and after a predecessor that did not.
//!
//! Only what the ledger names is touched. A GPU that cannot be restored keeps its entry.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::GpuLockedClocksSetting;
use nvml_wrapper::error::NvmlError;
use pfo_vocabulary::{GpuName, Mhz};

use crate::base_clock::BaseClock;
use crate::driver::{Driver, Gpu};
use crate::driver_error::DriverError;
use crate::ledger::{Entry, Ledger, LedgerError};
use crate::power_limit;

/// Why a GPU's clocks are still locked, or not known to be free.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The ledger could not be written; the clocks are restored.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The GPU of the entry is missing.
    #[error("GPU {0} is not there; its clocks are restored as soon as it is back")]
    Absent(String),
}

/// Undoes what `entry` says is locked or limited, then removes it from the ledger.
///
/// # Errors
/// If the driver refuses; the entry then stays.
pub(crate) fn restore(
    device: &mut Device<'_>,
    gpu: &Gpu,
    entry: &Entry,
    ledger: &Ledger,
) -> Result<(), RestoreError> {
    // All are tried even if one fails: half a restore is better than none.
    let sm = if entry.sm { restore_sm(device, gpu, entry.restore_to_mhz) } else { Ok(()) };
    let memory = if entry.memory { reset_memory(device, gpu) } else { Ok(()) };
    let power_limit =
        entry.power_limit.map_or(Ok(()), |owed| power_limit::put_back(device, gpu, owed));
    sm?;
    memory?;
    power_limit?;
    Ok(ledger.clear(&entry.gpu_uuid)?)
}

/// Sets the SM clock to what it is to be restored to. If the driver refuses the administrator's
/// lock, the clock is freed: a lock of pfo must not stay.
///
/// # Errors
/// If the driver refuses.
pub(crate) fn restore_sm(
    device: &mut Device<'_>,
    gpu: &Gpu,
    base: BaseClock,
) -> Result<(), DriverError> {
    let BaseClock::Locked { min, max } = base else {
        return reset_sm(device, gpu);
    };
    let range = GpuLockedClocksSetting::Numeric { min_clock_mhz: min.0, max_clock_mhz: max.0 };
    match gpu.set(device, "restoring its SM clock", |device| device.set_gpu_locked_clocks(range)) {
        Err(DriverError::Call {
            source: NvmlError::InvalidArg | NvmlError::NotSupported, ..
        }) => {
            tracing::warn!(
                gpu_uuid = %gpu.uuid,
                "the driver does not take restore_to_mhz = [{}, {}]: reset instead", min.0, max.0
            );
            reset_sm(device, gpu)
        }
        result => result,
    }
}

/// Frees the SM clock.
///
/// # Errors
/// If the driver refuses.
fn reset_sm(device: &mut Device<'_>, gpu: &Gpu) -> Result<(), DriverError> {
    gpu.set(device, "resetting its SM clock", Device::reset_gpu_locked_clocks)
}

/// Frees the memory clock.
///
/// # Errors
/// If the driver refuses. A GPU without memory locks has nothing to free.
pub(crate) fn reset_memory(device: &mut Device<'_>, gpu: &Gpu) -> Result<(), DriverError> {
    match gpu.set(device, "resetting its memory clock", Device::reset_mem_locked_clocks) {
        Err(error) if error.is_not_supported() => Ok(()),
        result => result,
    }
}

/// The SM clock that a GPU runs at, for the journal.
#[must_use]
fn sm_clock(gpu: &Gpu) -> Option<Mhz> {
    gpu.device().ok()?.clock_info(Clock::SM).ok().map(Mhz)
}

/// Restores one GPU from its ledger entry. Returns the SM clock that it ran at until then, if that
/// was or may have been locked, because the ledger does not record the clock.
///
/// # Errors
/// If the GPU is missing or the driver refuses; the entry then stays.
pub fn restore_entry(
    driver: &Driver,
    entry: &Entry,
    ledger: &Ledger,
) -> Result<Option<Mhz>, RestoreError> {
    let gpu = driver.gpu(&GpuName::Uuid(entry.gpu_uuid.clone()));
    let gpu = gpu.ok_or_else(|| RestoreError::Absent(entry.gpu_uuid.to_string()))?;
    let old_clock = sm_clock(gpu).filter(|_| entry.sm);
    restore(&mut gpu.device()?, gpu, entry, ledger)?;
    Ok(old_clock)
}

/// Resets the clocks of a GPU, including locks that pfo did not set. The caller holds the GPU, so
/// that no session sets it. Returns the SM clock that it ran at until then.
///
/// # Errors
/// If the GPU is gone or the driver refuses.
pub fn reset(gpu: &Gpu) -> Result<Option<Mhz>, DriverError> {
    let old_clock = sm_clock(gpu);
    let mut device = gpu.device()?;
    reset_sm(&mut device, gpu)?;
    reset_memory(&mut device, gpu)?;
    Ok(old_clock)
}
