//! The simulated GPUs below the daemon, seen from behind the driver.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, fs};

use nvidia_ml::driver::{Driver, Gpu};
use nvidia_ml::fault::{Fault, FaultKind};
use nvidia_ml::machine::MachinePlan;
use nvidia_ml::nvml_result::NvmlResult;
use nvidia_ml::{STATE_VARIABLE, state_path};
use pfo_protocol::{GpuUuid, Mhz};

use crate::input::Input;

/// Names the driver library, if it is not beside the program.
const LIBRARY_VARIABLE: &str = "PFO_FUZZ_NVML";

const LIBRARY: &str = "libnvidia_ml.so";

pub(super) const GPUS: usize = 3;

/// Functions that may fail, and how. That a function is not supported is no failure.
const FUNCTIONS: [&str; 9] = [
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceResetGpuLockedClocks",
    "nvmlDeviceSetMemoryLockedClocks",
    "nvmlDeviceResetMemoryLockedClocks",
    "nvmlDeviceSetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetHandleByUUID",
    "*",
];
const RESULTS: [NvmlResult; 5] = [
    NvmlResult::GpuIsLost,
    NvmlResult::Unknown,
    NvmlResult::NoPermission,
    NvmlResult::Timeout,
    NvmlResult::ResetRequired,
];

/// What is set on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) sm: Option<Mhz>,
    pub(super) memory: bool,
    pub(super) power_limit: bool,
}

/// The GPUs, whose calls take no time.
pub(super) struct Machine {
    driver: Driver,
    pub(super) library: PathBuf,
    pub(super) uuids: [GpuUuid; GPUS],
}

impl Machine {
    /// The machine of this process, made at the first call.
    pub(super) fn get() -> &'static Self {
        static MACHINE: OnceLock<Machine> = OnceLock::new();
        MACHINE.get_or_init(Self::make)
    }

    fn make() -> Self {
        assert!(env::var_os(STATE_VARIABLE).is_some(), "{STATE_VARIABLE} is to name a file");
        let plan = MachinePlan {
            owner_uid: Some(nix::unistd::geteuid().as_raw()),
            set_latency: Some(Duration::ZERO),
            settle: Some(Duration::ZERO),
            energy_refresh: Some(Duration::from_millis(1)),
            ..MachinePlan::ideal(format!("{GPUS}xA40").parse().expect("a list of GPUs"))
        };
        plan.create(&state_path()).expect("a machine");
        let driver = Driver::open(&state_path()).expect("a machine");
        let uuids = std::array::from_fn(|gpu| {
            let uuid = driver.gpu(gpu).expect("a GPU").uuid();
            uuid.to_string().parse().expect("a UUID")
        });
        Self { driver, library: library(), uuids }
    }

    /// What is set on each GPU.
    pub(super) fn set(&self) -> [Set; GPUS] {
        std::array::from_fn(|gpu| {
            let state = self.driver.gpu(gpu).and_then(Gpu::view).expect("a state");
            let last = state.timeline.last();
            Set {
                sm: last.lock.map(|range| Mhz(range.max.0)),
                memory: state.memory_lock.is_some(),
                power_limit: last.power_cap.is_some(),
            }
        })
    }

    /// Lets calls fail for one of the GPUs that are not the first.
    pub(super) fn fail(&self, input: &mut Input<'_>) {
        let fault = Fault {
            function: input.pick(&FUNCTIONS).parse().expect("a function"),
            kind: FaultKind::Refuse(input.pick(&RESULTS)),
            gpu: Some(1 + usize::from(input.below(GPUS as u8 - 1))),
            remaining: input.optional(|input| u64::from(1 + input.below(3))),
        };
        // There is room for a few at once.
        let _ = self.driver.arm_fault(&fault);
    }

    pub(super) fn recover(&self) {
        self.driver.clear_faults().expect("a machine");
    }
}

/// The driver library, as it was built.
fn library() -> PathBuf {
    if let Some(library) = env::var_os(LIBRARY_VARIABLE) {
        return library.into();
    }
    let program = env::current_exe().expect("a program");
    let beside = program.parent().expect("a directory");
    let places = [beside.join("deps"), beside.to_owned()];
    let mut libraries = places.iter().map(|place| place.join(LIBRARY));
    let found = libraries.find(|library| library.exists());
    fs::canonicalize(found.expect("a driver library beside the program")).expect("a file")
}
