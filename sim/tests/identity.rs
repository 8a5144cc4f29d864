//! Finding GPUs and asking what they are, through the unchanged Rust wrapper of NVML.

use crate::machine::{library, test_on};
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::error::NvmlError;
use std::process::Command;

#[test]
fn a_gpu_is_found_by_index_uuid_and_bus_id_and_is_always_the_same() {
    test_on(&["--ideal", "--gpus", "2xA100,1xV100"], |machine, _| {
        let nvml = machine.nvml();
        for gpu in 0..3 {
            let device = nvml.device_by_index(gpu).unwrap();
            let (uuid, pci) = (device.uuid().unwrap(), device.pci_info().unwrap());
            assert_eq!(device.index().unwrap(), gpu);
            assert_eq!(nvml.device_by_uuid(uuid.as_str()).unwrap().index().unwrap(), gpu);
            let by_bus = nvml.device_by_pci_bus_id(pci.bus_id.to_lowercase()).unwrap();
            assert_eq!(by_bus.index().unwrap(), gpu);
            assert_eq!(machine.driver().gpu(gpu as usize).unwrap().uuid().to_string(), uuid);
        }
        let first = nvml.device_by_index(0).unwrap();
        assert_eq!(first.name().unwrap(), "NVIDIA A100-SXM4-40GB");
        assert_eq!(first.pci_info().unwrap().bus_id, "00000000:17:00.0");
        let minors =
            [0, 1, 2].map(|gpu| nvml.device_by_index(gpu).unwrap().minor_number().unwrap());
        assert_eq!(minors, [1, 2, 0]);
        assert_eq!(first.architecture().unwrap(), DeviceArchitecture::Ampere);
        assert_eq!(first.memory_info().unwrap().total, 40 << 30);
    });
}

#[test]
fn what_does_not_exist_is_told_apart_from_what_makes_no_sense() {
    test_on(&["--ideal", "--gpus", "A100"], |machine, _| {
        let nvml = machine.nvml();
        let uuid = "GPU-00000000-0000-0000-0000-000000000000";
        assert!(matches!(nvml.device_by_uuid(uuid), Err(NvmlError::NotFound)));
        assert!(matches!(nvml.device_by_pci_bus_id("0000:FF:00.0"), Err(NvmlError::NotFound)));
        assert!(matches!(nvml.device_by_pci_bus_id("nonsense"), Err(NvmlError::InvalidArg)));
        assert!(matches!(nvml.device_by_index(1), Err(NvmlError::InvalidArg)));
    });
}

#[test]
fn mig_mode_is_off_where_there_is_mig_and_unknown_elsewhere() {
    test_on(&["--ideal", "--gpus", "A100,V100,A40,H100"], |machine, _| {
        let nvml = machine.nvml();
        let mode = |gpu| nvml.device_by_index(gpu).unwrap().mig_mode();
        assert_eq!(mode(0).unwrap().current, 0);
        assert_eq!(mode(3).unwrap().current, 0);
        assert!(matches!(mode(1), Err(NvmlError::NotSupported)));
        assert!(matches!(mode(2), Err(NvmlError::NotSupported)));
        assert!(machine.pfo_sim(&["mig", "--gpu", "0", "on"]).status.success());
        assert_eq!(mode(0).unwrap().current, 1);
        let refused = machine.pfo_sim(&["mig", "--gpu", "1", "on"]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("V100"));
    });
}

#[test]
fn nobody_gets_a_driver_without_a_machine() {
    test_on(&["--ideal", "--gpus", "A100"], |machine, _| {
        std::fs::remove_file(&machine.state).unwrap();
        let error = nvml_wrapper::Nvml::builder().lib_path(library().as_os_str()).init();
        assert!(matches!(error, Err(NvmlError::DriverNotLoaded)));
    });
}

#[test]
fn the_library_has_the_soname_that_programs_linked_against_nvml_ask_for() {
    let Ok(output) = Command::new("readelf").arg("-d").arg(library()).output() else {
        return println!("skipped: no readelf");
    };
    let dynamic = String::from_utf8_lossy(&output.stdout);
    let soname = dynamic.lines().find(|line| line.contains("SONAME")).unwrap_or_default();
    assert!(
        soname.contains("[libnvidia-ml.so.1]"),
        "{soname}: a build script of a dependency gives its own `rustc-cdylib-link-arg` to every \
         cdylib above it; it must use `rustc-link-arg`"
    );
}
