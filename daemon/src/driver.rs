//! The driver: which GPUs there are and what they can do, read through NVML once it is loaded.
//!
//! Setting clocks is not here but in `clocks`, which only the thread of a rank calls.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use pfo_planner::Mhz;
use pfo_protocol::{GpuName, NameError};

use crate::gpu::GpuFacts;
use crate::reading::Reader;
use crate::sys;

/// `NVML_DEVICE_MIG_ENABLE`, which nvml-wrapper does not export.
const MIG_ENABLED: u32 = 1;

/// A driver that could not be loaded is tried again at most this often.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Why the driver did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// NVML could not be loaded or did not start.
    #[error("cannot use the driver library {library}: {source}")]
    Load {
        /// The library.
        library: PathBuf,
        /// Why.
        source: NvmlError,
    },
    /// A call failed.
    #[error("{call} failed on GPU {gpu}: {source}")]
    Call {
        /// What was called, in words.
        call: &'static str,
        /// The GPU, by UUID or by index while its UUID is unknown.
        gpu: String,
        /// Why.
        source: NvmlError,
    },
    /// The driver gave a name that is none.
    #[error("the driver gives GPU {index} a name that pfo does not understand: {source}")]
    Name {
        /// The driver's index.
        index: u32,
        /// What is wrong.
        source: NameError,
    },
}

impl DriverError {
    /// Whether the GPU is gone: nothing can be set or restored on it until it is back.
    #[must_use]
    pub fn is_gpu_lost(&self) -> bool {
        matches!(self, Self::Call { source: NvmlError::GpuLost | NvmlError::ResetRequired, .. })
    }

    /// Whether this GPU or driver does not have the function at all.
    #[must_use]
    pub fn is_not_supported(&self) -> bool {
        matches!(
            self,
            Self::Call {
                source: NvmlError::NotSupported
                    | NvmlError::FunctionNotFound
                    | NvmlError::FailedToLoadSymbol(_),
                ..
            }
        )
    }
}

/// One GPU of the node, as the driver reaches it.
#[derive(Debug)]
pub struct Gpu {
    /// What it is.
    pub facts: Arc<GpuFacts>,
    /// Asks what it does now.
    pub reader: Reader,
    nvml: &'static Nvml,
}

impl Deref for Gpu {
    type Target = GpuFacts;

    fn deref(&self) -> &GpuFacts {
        &self.facts
    }
}

impl Gpu {
    fn read(nvml: &'static Nvml, index: u32) -> Result<Self, DriverError> {
        let failed = |call| {
            move |source| DriverError::Call { call, gpu: format!("with index {index}"), source }
        };
        let name = |source| DriverError::Name { index, source };
        let device = nvml.device_by_index(index).map_err(failed("finding it"))?;
        let uuid = device.uuid().map_err(failed("reading its UUID"))?;
        let pci = device.pci_info().map_err(failed("reading its PCI bus id"))?;
        // A GPU whose clocks cannot be listed is still listed itself, and refused when it is leased.
        let memory_clock = device.supported_memory_clocks().ok().and_then(|c| c.into_iter().max());
        let mut sm_clocks = memory_clock
            .and_then(|memory| sys::supported_sm_clocks(nvml, &device, memory).ok())
            .unwrap_or_default();
        sm_clocks.sort_unstable();
        let facts = GpuFacts {
            index,
            uuid: uuid.try_into().map_err(name)?,
            pci_bus_id: pci.bus_id.try_into().map_err(name)?,
            model: device.name().map_err(failed("reading its model"))?,
            sm_clocks: sm_clocks.into_iter().map(Mhz).collect(),
            memory_clock: memory_clock.map(Mhz),
        };
        Ok(Self { facts: Arc::new(facts), reader: Reader::default(), nvml })
    }

    /// The driver's handle of this GPU.
    ///
    /// # Errors
    /// If the GPU is gone.
    pub fn device(&self) -> Result<Device<'static>, DriverError> {
        self.nvml
            .device_by_uuid(self.uuid.as_str())
            .map_err(|source| self.failed("finding it", source))
    }

    /// Names the GPU in an error of one of its calls.
    #[must_use]
    pub fn failed(&self, call: &'static str, source: NvmlError) -> DriverError {
        DriverError::Call { call, gpu: self.uuid.to_string(), source }
    }

    /// Whether MIG splits the GPU, so that its clocks belong to several users.
    ///
    /// # Errors
    /// If the GPU is gone.
    pub fn is_split_by_mig(&self) -> Result<bool, DriverError> {
        match self.device()?.mig_mode() {
            Ok(mode) => Ok(mode.current == MIG_ENABLED),
            Err(error) => match self.failed("reading its MIG mode", error) {
                error if error.is_not_supported() => Ok(false),
                error => Err(error),
            },
        }
    }

    /// Whether a process computes on the GPU.
    ///
    /// # Errors
    /// If the GPU is gone, or the driver does not tell.
    pub fn is_computed_on_by(&self, pid: u32) -> Result<bool, DriverError> {
        let processes = self.device()?.running_compute_processes();
        let processes = processes.map_err(|source| self.failed("listing its processes", source))?;
        Ok(processes.iter().any(|process| process.pid == pid))
    }
}

/// A loaded driver and its GPUs.
#[derive(Debug)]
pub struct Driver {
    /// The driver's version.
    pub version: String,
    /// Every GPU, in the driver's order.
    pub gpus: Vec<Arc<Gpu>>,
}

impl Driver {
    /// Loads NVML from `library` and lists the GPUs. The library stays loaded for the life of the
    /// process.
    ///
    /// # Errors
    /// If the library cannot be loaded, or the driver behind it does not answer.
    pub fn load(library: &Path) -> Result<Self, DriverError> {
        let failed = |source| DriverError::Load { library: library.to_owned(), source };
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init().map_err(failed)?;
        let nvml: &'static Nvml = Box::leak(Box::new(nvml));
        let gpus = (0..nvml.device_count().map_err(failed)?)
            .map(|index| Gpu::read(nvml, index).map(Arc::new))
            .collect::<Result<_, _>>()?;
        Ok(Self { version: nvml.sys_driver_version().map_err(failed)?, gpus })
    }

    /// The GPU with that name.
    #[must_use]
    pub fn gpu(&self, name: &GpuName) -> Option<&Arc<Gpu>> {
        self.gpus.iter().find(|gpu| gpu.is_named(name))
    }
}

/// The driver, loaded as soon as it can be: it may come later than the daemon.
#[derive(Debug)]
pub struct LateDriver {
    library: PathBuf,
    loaded: OnceLock<Driver>,
    refused: Mutex<Option<(Instant, String)>>,
}

impl LateDriver {
    /// A driver that is not loaded yet.
    #[must_use]
    pub fn new(library: &Path) -> Self {
        Self { library: library.to_owned(), loaded: OnceLock::new(), refused: Mutex::default() }
    }

    /// The driver, after trying to load it if that was not tried just now.
    ///
    /// # Errors
    /// Why it could not be loaded, in words.
    pub fn get(&self) -> Result<&Driver, String> {
        if let Some(driver) = self.loaded.get() {
            return Ok(driver);
        }
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, why)) = &*refused
            && when.elapsed() < RETRY_EVERY
        {
            return Err(why.clone());
        }
        match Driver::load(&self.library) {
            Ok(driver) => Ok(self.loaded.get_or_init(|| driver)),
            Err(error) => {
                let why = error.to_string();
                *refused = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }
}
