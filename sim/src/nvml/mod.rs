//! NVML's C functions.
//!
//! Every function is `nvml…` with the signature of NVIDIA's header, and goes through one of the
//! ways in here: they catch panics, ask whether the library is initialised, resolve the handle and
//! play the scripted faults. What a function does with the machine is in [`crate::driver`].
#![allow(non_snake_case, reason = "the names are NVML's")]

mod abi;
mod clock_locks;
mod clocks;
mod condition;
mod devices;
mod field_values;
mod library;
mod power;
mod processes;
mod unsupported;

use std::ffi::c_uint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::unistd::geteuid;

use crate::driver::{Driver, Gpu};
use crate::error::SimError;
use crate::fault::FaultKind;
use crate::nvml_result::NvmlResult;
use abi::Handle;

type Answer = Result<(), NvmlResult>;

/// What a caller of NVML can be told of an error inside the simulator.
impl From<SimError> for NvmlResult {
    fn from(error: SimError) -> Self {
        match error {
            SimError::NoState { .. } => Self::DriverNotLoaded,
            SimError::StateForbidden { .. } => Self::NoPermission,
            SimError::OtherVersion { .. } | SimError::NotAState { .. } => {
                Self::LibRmVersionMismatch
            }
            SimError::NotOnThisModel { .. } => Self::NotSupported,
            _ => Self::Unknown,
        }
    }
}

/// No panic may cross into C.
fn guarded(body: impl FnOnce() -> Answer) -> c_uint {
    let answer = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(NvmlResult::Unknown));
    answer.err().unwrap_or(NvmlResult::Success).number()
}

/// A function that concerns no GPU.
fn system_call(name: &str, body: impl FnOnce(&Arc<Driver>) -> Answer) -> c_uint {
    guarded(|| {
        let driver = library::current()?;
        play_faults(&driver, name, None)?;
        body(&driver)
    })
}

/// A function on a GPU.
fn device_call(name: &str, device: Handle, body: impl FnOnce(Gpu<'_>) -> Answer) -> c_uint {
    guarded(|| {
        let driver = library::current()?;
        let gpu = device.resolve(&driver)?;
        play_faults(&driver, name, Some(gpu.index()))?;
        gpu.take_time_to_read(name);
        body(gpu)
    })
}

/// A function that changes a GPU: only for the privileged, and it takes its time once accepted.
fn setter_call(name: &str, device: Handle, body: impl FnOnce(Gpu<'_>) -> Answer) -> c_uint {
    guarded(|| {
        let driver = library::current()?;
        let gpu = device.resolve(&driver)?;
        change(&driver, name, gpu, body)
    })
}

fn change(
    driver: &Driver,
    name: &str,
    gpu: Gpu<'_>,
    body: impl FnOnce(Gpu<'_>) -> Answer,
) -> Answer {
    play_faults(driver, name, Some(gpu.index()))?;
    let caller = geteuid();
    if !caller.is_root() && driver.owner_uid() != Some(caller.as_raw()) {
        return Err(NvmlResult::NoPermission);
    }
    gpu.take_time_to_set(|| body(gpu))
}

/// How often a call that hangs looks whether it may go on.
const HANG_POLL: Duration = Duration::from_millis(2);

fn play_faults(driver: &Driver, name: &str, gpu: Option<usize>) -> Answer {
    let Some(fault) = driver.fault_for(name, gpu) else {
        return Ok(());
    };
    match fault.kind {
        FaultKind::Hang => {
            while fault.persists() {
                thread::sleep(HANG_POLL);
            }
            Ok(())
        }
        FaultKind::Crash => std::process::abort(),
        FaultKind::Latency(latency) => {
            thread::sleep(latency);
            Ok(())
        }
        FaultKind::Refuse(result) => Err(result),
        // The caller's own work is left out, and its answer is this one.
        FaultKind::Ignore => Err(NvmlResult::Success),
        // These change what is returned.
        FaultKind::Garble | FaultKind::Scaled(_) | FaultKind::Rate(_) | FaultKind::Wraps(_) => {
            Ok(())
        }
    }
}
