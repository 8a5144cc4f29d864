//! The driver: which GPUs there are and what they can do, read through NVML when it is loaded.
//!
//! Setting clocks is not here but in `clocks`, which only the thread of a rank calls.

use std::fmt;
use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, FieldIdScheme, Nvml};
use pfo_vocabulary::{GpuName, Mhz, Milliwatts, Pid, has_moved_fields};

use crate::device::{self, KeptDevice};
use crate::driver_error::DriverError;
use crate::driver_use::Asked;
use crate::gpu::GpuFacts;
use crate::power_limit::LimitRange;

/// A sick GPU can block a call for minutes; a healthy one answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// `NVML_DEVICE_MIG_ENABLE`, which nvml-wrapper does not export.
const MIG_ENABLED: u32 = 1;

/// What to do when a GPU does not answer any more. It must not block.
#[derive(Clone)]
pub struct OnLost(Arc<dyn Fn() + Send + Sync>);

impl OnLost {
    /// Calls `act` for every call that finds a GPU lost.
    pub fn new(act: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(act))
    }
}

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnLost")
    }
}

/// One GPU of the node, as the driver reaches it.
#[derive(Debug)]
pub struct Gpu {
    /// What it is.
    pub facts: Arc<GpuFacts>,
    /// What its driver is asked.
    pub asked: Asked,
    nvml: Arc<Nvml>,
    lost: OnLost,
}

impl Deref for Gpu {
    type Target = GpuFacts;

    fn deref(&self) -> &GpuFacts {
        &self.facts
    }
}

impl Gpu {
    fn list(nvml: &Arc<Nvml>, lost: &OnLost, index: u32) -> Result<Self, DriverError> {
        let failed = |call| {
            move |source| DriverError::Call { call, gpu: format!("with index {index}"), source }
        };
        let name = |source| DriverError::Name { index, source };
        let device = nvml.device_by_index(index).map_err(failed("finding it"))?;
        let uuid = device.uuid().map_err(failed("reading its UUID"))?;
        let pci = device.pci_info().map_err(failed("reading its PCI bus id"))?;
        // A driver's name need not be text. What pfo measured is kept by model.
        let model = match device.name() {
            Err(NvmlError::Utf8Error(_)) => format!("PCI device {:08X}", pci.pci_device_id),
            name => name.map_err(failed("reading its model"))?,
        };
        // A GPU whose clocks cannot be listed is still listed itself, and refused when it is
        // leased.
        let memory_clocks = device.supported_memory_clocks().ok();
        let memory_clock = memory_clocks.and_then(|clocks| clocks.into_iter().max()).map(Mhz);
        let listed = |memory| device::supported_sm_clocks(nvml, &device, memory).ok();
        let mut sm_clocks = memory_clock.and_then(listed).unwrap_or_default();
        sm_clocks.sort_unstable();
        let facts = GpuFacts {
            index,
            uuid: uuid.try_into().map_err(name)?,
            pci_bus_id: pci.bus_id.try_into().map_err(name)?,
            model,
            sm_clocks,
            memory_clock,
            power_limits: device.power_management_limit_constraints().ok().map(|set| LimitRange {
                lowest: Milliwatts(set.min_limit),
                highest: Milliwatts(set.max_limit),
            }),
            default_power_limit: device.power_management_limit_default().ok().map(Milliwatts),
            minor: device.minor_number().ok(),
        };
        let (nvml, lost) = (Arc::clone(nvml), lost.clone());
        Ok(Self { facts: Arc::new(facts), asked: Asked::default(), nvml, lost })
    }

    /// The driver's handle of this GPU.
    ///
    /// # Errors
    /// If the GPU is gone.
    pub(crate) fn device(&self) -> Result<Device<'_>, DriverError> {
        self.nvml
            .device_by_uuid(self.uuid.as_str())
            .map_err(|source| self.failed("finding it", source))
    }

    /// The driver's handle of this GPU, for a caller that keeps the driver loaded with it.
    ///
    /// # Errors
    /// If the GPU is gone.
    pub(crate) fn kept_device(&self) -> Result<KeptDevice, DriverError> {
        self.device().map(|device| KeptDevice::new(&self.nvml, &device))
    }

    /// Names the GPU in an error of one of its calls. If the GPU is lost, reports that to `lost`.
    pub(crate) fn failed(&self, call: &'static str, source: NvmlError) -> DriverError {
        let error = DriverError::Call { call, gpu: self.uuid.to_string(), source };
        if error.is_gpu_lost() {
            (self.lost.0)();
        }
        error
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

    /// The processes that compute on the GPU, those of an MPS server included.
    ///
    /// # Errors
    /// If the GPU is gone, or the driver does not report its processes.
    pub fn processes(&self) -> Result<Vec<Pid>, DriverError> {
        let device = self.device()?;
        let processes = self.asked.read(1, || device.running_compute_processes());
        let processes = processes.map_err(|source| self.failed("listing its processes", source))?;
        // Drivers before R510 cannot tell.
        let through_mps = device.mps_running_compute_processes().unwrap_or_default();
        Ok(processes.into_iter().chain(through_mps).map(|process| Pid(process.pid)).collect())
    }
}

/// Shows whether a released driver is still in use: the library stays loaded while a GPU of it is.
pub type LastUser = Weak<Nvml>;

/// A loaded driver and its GPUs.
#[derive(Debug)]
pub struct Driver {
    /// The driver's version.
    pub version: String,
    /// Every GPU that answers, in the driver's order.
    pub gpus: Vec<Arc<Gpu>>,
    /// Why GPUs are missing.
    pub missing: Vec<String>,
    nvml: Arc<Nvml>,
}

impl Driver {
    /// Loads NVML from `library` and lists the GPUs; `lost` is called when one is lost. The library
    /// stays loaded for as long as any GPU of it is in use.
    ///
    /// # Errors
    /// If the library cannot be loaded, or no GPU behind it answers.
    pub fn load(library: &Path, lost: &OnLost) -> Result<Self, DriverError> {
        let failed = |source| DriverError::Load { library: library.to_owned(), source };
        // A file system that hangs is to hang here: within `dlopen` this process could start no
        // other thread.
        let _ = fs::read(library);
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init().map_err(failed)?;
        let nvml = Arc::new(nvml);
        let version = nvml.sys_driver_version().map_err(failed)?;
        // The library takes a version that it cannot read for an old one, and would read settings as times.
        if (nvml.field_id_scheme() == FieldIdScheme::V13Update1) != has_moved_fields(&version) {
            return Err(DriverError::Numbering(version));
        }
        let (gpus, missing) = list(&nvml, lost, nvml.device_count().map_err(failed)?);
        if gpus.is_empty() {
            return Err(DriverError::NoGpu { version, missing: missing.join("; ") });
        }
        Ok(Self { version, gpus, missing, nvml })
    }

    /// The driver with GPUs that did not answer before and do now; `None` if there are no such GPUs.
    #[must_use]
    pub fn with_returned(&self, lost: &OnLost) -> Option<Self> {
        let (found, missing) = list(&self.nvml, lost, self.nvml.device_count().ok()?);
        let is_new = |gpu: &Arc<Gpu>| self.gpus.iter().all(|known| known.uuid != gpu.uuid);
        let mut new = found.into_iter().filter(is_new).peekable();
        new.peek()?;
        let mut gpus: Vec<_> = self.gpus.iter().cloned().chain(new).collect();
        gpus.sort_by_key(|gpu| gpu.index);
        Some(Self { version: self.version.clone(), gpus, missing, nvml: Arc::clone(&self.nvml) })
    }

    /// Tells, after this is dropped, whether the driver is still in use.
    #[must_use]
    pub fn last_user(&self) -> LastUser {
        Arc::downgrade(&self.nvml)
    }

    /// The GPU with that name.
    #[must_use]
    pub fn gpu(&self, name: &GpuName) -> Option<&Arc<Gpu>> {
        self.gpus.iter().find(|gpu| gpu.is_named(name))
    }
}

/// Lists the GPUs, each on a thread of its own: one that is sick or hangs does not affect the
/// others. Also returns why some are missing.
fn list(nvml: &Arc<Nvml>, lost: &OnLost, count: u32) -> (Vec<Arc<Gpu>>, Vec<String>) {
    let (mut gpus, mut missing) = (Vec::new(), Vec::new());
    let listings: Vec<_> = (0..count)
        .map(|index| {
            let (found, received) = mpsc::channel();
            let (nvml, lost) = (Arc::clone(nvml), lost.clone());
            let list = move || drop(found.send(Gpu::list(&nvml, &lost, index)));
            (index, received, thread::Builder::new().name("listing".into()).spawn(list))
        })
        .collect();
    let until = Instant::now().checked_add(PATIENCE);
    for (index, received, started) in listings {
        let left = until.map_or(PATIENCE, |until| until.saturating_duration_since(Instant::now()));
        match (started, received.recv_timeout(left)) {
            (Err(error), _) => missing.push(format!("cannot ask for GPU {index}: {error}")),
            (Ok(_), Ok(Ok(gpu))) => gpus.push(Arc::new(gpu)),
            (Ok(_), Ok(Err(error))) => missing.push(error.to_string()),
            (Ok(_), Err(_)) => missing.push(format!("GPU with index {index} does not answer")),
        }
    }
    (gpus, missing)
}
