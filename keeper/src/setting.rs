//! The one place from which setters of the driver are called, and the latch that closes it for good.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nvml_wrapper::{Device, error::NvmlError};

use crate::driver::Gpu;
use crate::driver_error::DriverError;

static OBSERVES: AtomicBool = AtomicBool::new(false);

/// If so, this process asks no driver for a change from now on, not even to undo one.
pub fn only_observe(so: bool) {
    OBSERVES.fetch_or(so, Relaxed);
}

/// Whether it asks for none.
#[must_use]
pub fn only_observes() -> bool {
    OBSERVES.load(Relaxed)
}

impl Gpu {
    /// Calls a setter.
    ///
    /// # Errors
    /// If the driver refuses, or is not to be asked.
    pub(crate) fn set<'d>(
        &self,
        device: &mut Device<'d>,
        call: &'static str,
        setter: impl FnOnce(&mut Device<'d>) -> Result<(), NvmlError>,
    ) -> Result<(), DriverError> {
        let set = || setter(device).map_err(|source| self.failed(call, source));
        if only_observes() { Err(DriverError::OnlyObserved) } else { set() }
    }
}
