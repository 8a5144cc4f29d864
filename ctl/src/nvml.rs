//! The driver's library, loaded here as `pfod` loads it. Nothing is set, and no wait for a GPU that
//! does not answer is long.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// `NVML_DEVICE_MIG_ENABLE`, which nvml-wrapper does not export.
const MIG_ENABLED: u32 = 1;

/// A healthy driver answers in milliseconds, after it was loaded in a second or two.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A library that answered.
pub(crate) struct Library {
    pub(crate) nvml: &'static Nvml,
    /// The driver's version.
    pub(crate) version: String,
    /// How many GPUs it lists.
    pub(crate) count: u32,
}

/// Loads a library, which stays loaded; none if it does not answer.
pub(crate) fn load(library: &Path) -> Option<Result<Library, NvmlError>> {
    let library = library.to_owned();
    in_time(move || {
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init()?;
        let (version, count) = (nvml.sys_driver_version()?, nvml.device_count()?);
        Ok(Library { nvml: Box::leak(Box::new(nvml)), version, count })
    })
}

/// The answer to a question, if it comes in time.
pub(crate) fn in_time<T: Send + 'static>(
    question: impl FnOnce() -> Result<T, NvmlError> + Send + 'static,
) -> Option<Result<T, NvmlError>> {
    let (answer, answered) = mpsc::channel();
    // A thread that hangs ends with the process.
    thread::spawn(move || answer.send(question()));
    answered.recv_timeout(PATIENCE).ok()
}

/// Whether MIG splits a GPU.
pub(crate) fn is_split(device: &Device<'_>) -> bool {
    device.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED)
}

/// The SM clocks that a GPU supports at its highest memory clock, in MHz, rising; none of more than
/// 128, which nvml-wrapper takes for zeros.
pub(crate) fn supported_sm_clocks(device: &Device<'_>) -> Result<Vec<u32>, NvmlError> {
    let memory = device.supported_memory_clocks()?.into_iter().max().unwrap_or_default();
    let mut supported = device.supported_graphics_clocks(memory)?;
    supported.retain(|mhz| *mhz > 0);
    supported.sort_unstable();
    Ok(supported)
}
