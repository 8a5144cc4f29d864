//! A neighbour of pfo on the same GPUs, as a monitor is: it reads what NVML has of each ten times a
//! second, and once a second sets a power limit that is set already.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use pfo_tests::Machine;

use crate::Result;

/// The argument that makes this program such a neighbour; the path of the library follows.
pub(crate) const OBSERVES: &str = "--observe";

const PERIOD: Duration = Duration::from_millis(100);
const READS_OF_A_SET: u32 = 10;

/// A running neighbour; it ends with this.
pub(super) struct Neighbour(Child);

impl Neighbour {
    pub(super) fn start(machine: &Machine) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(OBSERVES).arg(machine.library()).env("PFO_SIM_STATE", machine.state());
        Ok(Self(command.stdin(Stdio::null()).spawn()?))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Observes until the process is killed.
pub(crate) fn run(library: Option<&String>) -> Result<()> {
    let library = Path::new(library.ok_or("name the library of the driver")?);
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init()?;
    for round in 0_u32.. {
        for index in 0..nvml.device_count()? {
            observe(&nvml, index, round.is_multiple_of(READS_OF_A_SET))?;
        }
        sleep(PERIOD);
    }
    Ok(())
}

fn observe(nvml: &Nvml, index: u32, sets: bool) -> std::result::Result<(), NvmlError> {
    let mut gpu = nvml.device_by_index(index)?;
    gpu.power_usage()?;
    gpu.total_energy_consumption()?;
    gpu.clock_info(Clock::SM)?;
    gpu.clock_info(Clock::Memory)?;
    gpu.temperature(TemperatureSensor::Gpu)?;
    gpu.utilization_rates()?;
    gpu.memory_info()?;
    gpu.current_throttle_reasons()?;
    if sets {
        gpu.set_power_management_limit(gpu.power_management_limit()?)?;
    }
    Ok(())
}
