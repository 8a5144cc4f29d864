//! The simulated machine of a test: its GPUs as the hardware knows them, from behind the driver.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nvidia_ml::attachment::Attachment;
use nvidia_ml::clock_table::ClockRange;
use nvidia_ml::curve::CurveIndex;
use nvidia_ml::driver::{Driver, Gpu};
use nvidia_ml::fault::Fault;
use nvidia_ml::gpu_state::Activity;
use nvidia_ml::machine::{self, MachinePlan};
use nvidia_ml::set_call::SetCall;
use nvidia_ml::units::{Mhz, Milliwatts, MonotonicNs};
use pfo_protocol::{GpuUuid, Pid};

use crate::identity::{self, Identity};
use crate::programs;

/// The name that NVML is loaded by.
pub(crate) const LIBRARY: &str = "libnvidia-ml.so.1";

/// The state file of a machine in its directory.
pub(crate) const STATE: &str = "gpus.state";

/// What to make a machine of.
#[derive(Clone, Debug)]
pub struct MachineSetup {
    /// Its GPUs.
    pub gpus: &'static str,
    /// How long a set call blocks.
    pub set_latency_ms: u64,
    /// From a set call to the new clock.
    pub settle_ms: u64,
    /// What else the machine has, beside being ideal.
    pub made: fn(MachinePlan) -> MachinePlan,
}

/// A machine whose GPUs are as real ones, in place of an ideal one.
#[must_use]
pub fn honest(plan: MachinePlan) -> MachinePlan {
    MachinePlan { ideal: false, set_latency: None, settle: None, ..plan }
}

impl Default for MachineSetup {
    fn default() -> Self {
        Self { gpus: "4xA40", set_latency_ms: 0, settle_ms: 1, made: |plan| plan }
    }
}

/// A simulated machine.
pub struct Machine {
    state: PathBuf,
    library_directory: PathBuf,
    driver: Arc<Driver>,
}

impl Machine {
    /// Makes one in a directory. Its driver library is not installed yet.
    pub fn create(directory: &Path, setup: &MachineSetup) -> Self {
        let state = directory.join(STATE);
        let plan = MachinePlan {
            owner_uid: (!identity::is_root()).then_some(Identity::own().uid.0),
            set_latency: Some(Duration::from_millis(setup.set_latency_ms)),
            settle: Some(Duration::from_millis(setup.settle_ms)),
            ..MachinePlan::ideal(setup.gpus.parse().unwrap())
        };
        (setup.made)(plan).create(&state).unwrap();
        let library_directory = directory.join("lib");
        fs::create_dir(&library_directory).unwrap();
        let driver = Arc::new(Driver::open(&state).unwrap());
        Self { state, library_directory, driver }
    }

    /// Installs the driver library.
    pub fn install_library(&self) {
        symlink(programs::library("libnvidia_ml.so"), self.library()).unwrap();
    }

    /// Where the driver library is or will be.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.library_directory.join(LIBRARY)
    }

    /// The directory for `LD_LIBRARY_PATH`.
    #[must_use]
    pub fn library_directory(&self) -> &Path {
        &self.library_directory
    }

    /// The file that all processes of the machine share.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The directory of its device files.
    #[must_use]
    pub fn devices(&self) -> PathBuf {
        machine::devices(&self.state)
    }

    /// The device file of a GPU.
    #[must_use]
    pub fn device(&self, index: usize) -> PathBuf {
        self.devices().join(format!("nvidia{}", self.gpu(index).minor()))
    }

    /// Takes the device file of a GPU away from every user but root, or gives it back.
    pub fn forbid_device(&self, index: usize, forbidden: bool) {
        let mode = if forbidden { 0o600 } else { 0o666 };
        fs::set_permissions(self.device(index), Permissions::from_mode(mode)).unwrap();
    }

    /// One of its GPUs.
    #[must_use]
    pub fn gpu(&self, index: usize) -> Gpu<'_> {
        self.driver.gpu(index).unwrap()
    }

    /// How many GPUs it has.
    #[must_use]
    pub fn gpu_count(&self) -> usize {
        self.driver.gpus().len()
    }

    /// The name of a GPU.
    #[must_use]
    pub fn uuid(&self, index: usize) -> GpuUuid {
        self.gpu(index).uuid().to_string().parse().unwrap()
    }

    /// The SM clock that a GPU is locked at, in MHz.
    #[must_use]
    pub fn sm_lock(&self, index: usize) -> Option<u32> {
        self.gpu(index).view().unwrap().timeline.last().lock.map(|range| range.max.0)
    }

    /// The memory clock that a GPU is locked at, in MHz.
    #[must_use]
    pub fn memory_lock(&self, index: usize) -> Option<u32> {
        self.gpu(index).view().unwrap().memory_lock.map(|range| range.max.0)
    }

    /// The power limit of a GPU, in watts.
    #[must_use]
    pub fn power_limit_w(&self, index: usize) -> f64 {
        let cap = self.gpu(index).view().unwrap().timeline.last().power_cap;
        cap.map_or_else(|| self.default_power_limit_w(index), Milliwatts::watts)
    }

    /// What that is unless somebody has set another one, in watts.
    #[must_use]
    pub fn default_power_limit_w(&self, index: usize) -> f64 {
        self.gpu(index).model().facts().default_power_limit().watts()
    }

    /// Limits the power of a GPU.
    pub fn limit_power(&self, index: usize, watts: f64) {
        self.gpu(index).cap_power(Some(Milliwatts::from_watts(watts))).unwrap();
    }

    /// The living processes on a GPU.
    #[must_use]
    pub fn processes(&self, index: usize) -> Vec<Pid> {
        self.gpu(index).processes().unwrap().iter().map(|process| Pid(process.pid)).collect()
    }

    /// Every call that locked a GPU's SM clock.
    #[must_use]
    pub fn calls(&self, index: usize) -> Vec<SetCall> {
        self.gpu(index).set_calls_since(0)
    }

    /// The clocks of these calls, in MHz.
    #[must_use]
    pub fn clocks_set(&self, index: usize) -> Vec<u32> {
        self.calls(index).iter().map(|call| call.max.0).collect()
    }

    /// What a GPU draws now, in watts.
    #[must_use]
    pub fn power_w(&self, index: usize) -> f64 {
        let gpu = self.gpu(index);
        gpu.view().unwrap().power_at(gpu.board(), MonotonicNs::now()).watts()
    }

    /// The energy counter of a GPU, in joules.
    #[must_use]
    pub fn energy_j(&self, index: usize) -> f64 {
        self.gpu(index).energy_mj().unwrap() as f64 / 1e3
    }

    /// Sets a GPU computing, in the name of this process, until the result is dropped.
    #[must_use]
    pub fn compute(&self, index: usize) -> Attachment {
        let attachment = Attachment::new(Arc::clone(&self.driver), index).unwrap();
        let curve = CurveIndex::new(0).unwrap();
        attachment.set_activity(Activity::Computing(curve)).unwrap();
        attachment
    }

    /// Locks a GPU's SM clock.
    pub fn lock(&self, index: usize, mhz: u32) {
        self.gpu(index).lock_clocks(Some(ClockRange::exactly(Mhz(mhz)))).unwrap();
    }

    /// Lets calls of one of NVML's functions go wrong. `kind` is as `pfo-sim fault` takes it.
    pub fn fault(&self, function: &str, kind: &str, gpu: Option<usize>) {
        self.fault_for(None, function, kind, gpu);
    }

    /// As [`fault`](Self::fault), for the next call only.
    pub fn fault_once(&self, function: &str, kind: &str, gpu: Option<usize>) {
        self.fault_for(Some(1), function, kind, gpu);
    }

    fn fault_for(&self, calls: Option<u64>, function: &str, kind: &str, gpu: Option<usize>) {
        let fault = Fault {
            function: function.parse().unwrap(),
            kind: kind.parse().unwrap(),
            gpu,
            remaining: calls,
        };
        self.driver.arm_fault(&fault).unwrap();
    }

    /// Ends all faults; calls that hang continue.
    pub fn clear_faults(&self) {
        self.driver.clear_faults().unwrap();
    }

    /// Unloads the driver or loads it again while processes use it.
    pub fn set_driver_loaded(&self, loaded: bool) {
        self.driver.set_loaded(loaded).unwrap();
    }
}
