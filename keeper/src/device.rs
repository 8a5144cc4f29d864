//! The driver's handles of GPUs: the places where NVML hands over what its safe wrapper does not,
//! and nothing else.
#![allow(unsafe_code)]

use std::sync::Arc;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use pfo_vocabulary::Mhz;

/// More SM clocks than any GPU has.
const MOST_CLOCKS: usize = 1024;

/// A handle of a GPU that keeps the driver loaded.
#[derive(Debug)]
pub(crate) struct KeptDevice {
    // Before the driver: fields are dropped in this order.
    device: Device<'static>,
    nvml: Arc<Nvml>,
}

impl KeptDevice {
    /// Creates a handle of that driver.
    pub(crate) fn new(nvml: &Arc<Nvml>, device: &Device<'_>) -> Self {
        // SAFETY: what an `Arc` points to does not move, and lives as long as this clone of it,
        // which no code can take away: the device leaves this only with a shorter life, by `get`.
        let device = unsafe { Device::new(device.handle(), &*Arc::as_ptr(nvml)) };
        Self { device, nvml: Arc::clone(nvml) }
    }

    /// The handle, to call the driver.
    pub(crate) fn get(&self) -> Device<'_> {
        // SAFETY: the handle belongs to this very driver.
        unsafe { Device::new(self.device.handle(), &self.nvml) }
    }
}

/// The SM clocks that a GPU supports at a memory clock.
///
/// nvml-wrapper 0.13 asks for at most 128 and takes a longer list, such as a V100's, for zeros.
///
/// # Errors
/// NVML's error.
pub(crate) fn supported_sm_clocks(
    nvml: &Nvml,
    device: &Device<'_>,
    memory: Mhz,
) -> Result<Vec<Mhz>, NvmlError> {
    let list = nvml_sym(nvml.lib().nvmlDeviceGetSupportedGraphicsClocks.as_ref())?;
    let mut clocks = vec![0; MOST_CLOCKS];
    let mut count = MOST_CLOCKS as u32;
    // SAFETY: the handle is NVML's own, and there is room for `count` clocks.
    nvml_try(unsafe { list(device.handle(), memory.0, &raw mut count, clocks.as_mut_ptr()) })?;
    clocks.truncate(count as usize);
    Ok(clocks.into_iter().map(Mhz).collect())
}
