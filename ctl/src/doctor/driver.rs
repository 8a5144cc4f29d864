//! The driver's library: whether it works, and the state of its GPUs.

use std::path::{Path, PathBuf};

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use pfo_protocol::Mhz;
use serde::Deserialize;

use super::finding::Finding;
use super::gpu::Condition;
use super::root::Root;
use crate::nvml::{self, Library, in_time, is_split};

const CHECK: &str = "driver";
const CONFIG: &str = "/etc/pfo/pfod.toml";

/// What the driver reported.
pub(crate) struct Driver {
    /// Findings about the driver as a whole, and about GPUs that did not answer.
    pub(crate) findings: Vec<Finding>,
    /// The GPUs that answered.
    pub(crate) gpus: Vec<Condition>,
}

/// The library that `pfod` loads, if this user may read its configuration.
pub(crate) fn library(root: &Root, config: Option<&str>) -> PathBuf {
    let text = root.read(config.unwrap_or(CONFIG)).unwrap_or_default();
    let config: Config = toml::from_str(&text).unwrap_or_default();
    config.driver.library.unwrap_or_else(|| PathBuf::from("libnvidia-ml.so.1"))
}

/// The part of pfod's configuration that is read; the rest is pfod's business.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    driver: DriverConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DriverConfig {
    library: Option<PathBuf>,
}

/// Loads the library and asks every GPU.
pub(crate) fn ask(library: &Path) -> Driver {
    let Library { nvml, version, count } = match nvml::load(library) {
        Some(Ok(loaded)) => loaded,
        Some(Err(error)) => {
            return Driver { findings: vec![not_loaded(library, &error)], gpus: vec![] };
        }
        None => {
            let message = format!("{} does not answer", library.display());
            let finding = Finding::wrong(CHECK, message, "the kernel's log (`dmesg`) says why");
            return Driver { findings: vec![finding], gpus: Vec::new() };
        }
    };
    let mut driver = Driver { findings: vec![listed(library, &version, count)], gpus: Vec::new() };
    for index in 0..count {
        match in_time(move || condition(nvml, index)) {
            Some(Ok(condition)) => driver.gpus.push(condition),
            Some(Err(error)) => driver.findings.push(silent(index, &error.to_string())),
            None => driver.findings.push(silent(index, "it does not answer")),
        }
    }
    driver
}

fn not_loaded(library: &Path, error: &NvmlError) -> Finding {
    let library = library.display();
    let remedy = match error {
        NvmlError::LibloadingError(_) => {
            "install the driver's library (libnvidia-ml1 or nvidia-driver-cuda-libs), or name it \
             with --nvml and driver.library"
        }
        NvmlError::DriverNotLoaded => "`modprobe nvidia`, and see `dmesg` if that fails",
        NvmlError::LibRmVersionMismatch => {
            "the kernel module is of another version than the library: reboot after an upgrade"
        }
        _ => "see `nvidia-smi` and `dmesg`",
    };
    Finding::wrong(CHECK, format!("{library} cannot be used: {error}"), remedy)
}

fn listed(library: &Path, version: &str, count: u32) -> Finding {
    let library = library.display();
    match count {
        0 => Finding::wrong(
            CHECK,
            format!("{library} {version} lists no GPU"),
            "see `dmesg`, and whether this process may open /dev/nvidia0",
        ),
        count => Finding::ok(CHECK, format!("{library} {version} lists {count} GPUs")),
    }
}

fn silent(index: u32, why: &str) -> Finding {
    let remedy = format!("`nvidia-smi -i {index}` and the kernel's log (Xid) say more");
    Finding::wrong("gpu", format!("GPU {index}: {why}"), remedy)
}

fn condition(nvml: &Nvml, index: u32) -> Result<Condition, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
    let limit = device.power_management_limit().ok().map(watts);
    let default = device.power_management_limit_default().ok().map(watts);
    let application = device.applications_clock(Clock::SM).ok();
    let application_default = device.default_applications_clock(Clock::SM).ok();
    Ok(Condition {
        index,
        uuid: device.uuid()?,
        model: device.name()?,
        mig: is_split(&device),
        persistent: device.is_in_persistent_mode().ok(),
        sm_mhz: sm_clocks(&device),
        busy: device.utilization_rates().ok().and_then(|rates| is_busy(rates.gpu)),
        power_limit_w: limit.zip(default).map(|(limit, default)| [limit, default]),
        reasons: device.current_throttle_reasons().ok(),
        lacks_energy_counter: matches!(
            device.total_energy_consumption(),
            Err(NvmlError::NotSupported)
        ),
        application_mhz: application
            .zip(application_default)
            .map(|(set, default)| [set, default].map(Mhz)),
    })
}

/// In between, a GPU may run at any clock for reasons of its own.
fn is_busy(percent: u32) -> Option<bool> {
    match percent {
        0 => Some(false),
        90.. => Some(true),
        _ => None,
    }
}

fn sm_clocks(device: &Device<'_>) -> Option<[Mhz; 3]> {
    let now = device.clock_info(Clock::SM).ok()?;
    let supported = nvml::supported_sm_clocks(device).ok()?;
    let [lowest, highest] = match (supported.first(), supported.last()) {
        (Some(lowest), Some(highest)) => [*lowest, *highest],
        // More than can be listed here. That a GPU idles above its lowest clock cannot be told then.
        _ => [now, device.max_clock_info(Clock::SM).ok()?],
    };
    Some([now, lowest, highest].map(Mhz))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_library_is_the_one_of_the_configuration_wherever_and_whatever_that_is() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path().to_owned());
        let usual = Path::new("libnvidia-ml.so.1");
        assert_eq!(library(&root, None), usual);
        fs::create_dir_all(root.path("/etc/pfo")).unwrap();
        let write = |name: &str, text: &str| fs::write(root.path(name), text).unwrap();
        write(CONFIG, "[driver]\nlibrary = '/opt/nvml.so'\n[lease]\nmin_mhz = 3\n");
        write("/etc/other.toml", "[driver]\nlibrary = '/other.so'\n");
        assert_eq!(library(&root, None), Path::new("/opt/nvml.so"));
        assert_eq!(library(&root, Some("/etc/other.toml")), Path::new("/other.so"));
        write(CONFIG, "not TOML");
        assert_eq!(library(&root, None), usual);
    }
}
