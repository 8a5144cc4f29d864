//! Finding GPUs, and what they are.

use std::ffi::{c_char, c_int, c_uint};

use crate::fault::FaultKind;
use crate::identity::PciBusId;
use crate::nvml::abi::{Handle, Out, PciInfo, fixed_text, put, put_text, text};
use crate::nvml::{device_call, system_call};
use crate::nvml_result::NvmlResult;

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount(count: Out<'_, c_uint>) -> c_uint {
    system_call("nvmlDeviceGetCount", |driver| put(count, driver.gpus().len() as c_uint))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: Out<'_, c_uint>) -> c_uint {
    system_call("nvmlDeviceGetCount_v2", |driver| put(count, driver.gpus().len() as c_uint))
}

fn handle_by_index(name: &str, index: c_uint, device: Out<'_, Handle>) -> c_uint {
    system_call(name, |driver| {
        let gpu = driver.gpu(index as usize).map_err(|_| NvmlResult::InvalidArgument)?;
        put(device, Handle::of(gpu.index()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<'_, Handle>) -> c_uint {
    handle_by_index("nvmlDeviceGetHandleByIndex", index, device)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<'_, Handle>) -> c_uint {
    handle_by_index("nvmlDeviceGetHandleByIndex_v2", index, device)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: Out<'_, Handle>,
) -> c_uint {
    system_call("nvmlDeviceGetHandleByUUID", |driver| {
        // SAFETY: NVML's callers pass a string.
        let wanted = unsafe { text(uuid) }?;
        let gpu = driver.gpus().find(|gpu| gpu.uuid().to_string() == wanted);
        put(device, Handle::of(gpu.ok_or(NvmlResult::NotFound)?.index()))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleBySerial(
    serial: *const c_char,
    device: Out<'_, Handle>,
) -> c_uint {
    system_call("nvmlDeviceGetHandleBySerial", |driver| {
        // SAFETY: NVML's callers pass a string.
        let wanted = unsafe { text(serial) }?;
        let gpu = driver.gpus().find(|gpu| gpu.serial().to_string() == wanted);
        put(device, Handle::of(gpu.ok_or(NvmlResult::NotFound)?.index()))
    })
}

unsafe fn handle_by_bus_id(name: &str, id: *const c_char, device: Out<'_, Handle>) -> c_uint {
    system_call(name, |driver| {
        // SAFETY: the caller passes on what it was given: a string.
        let wanted: PciBusId =
            unsafe { text(id) }?.parse().map_err(|_| NvmlResult::InvalidArgument)?;
        let gpu = driver.gpus().find(|gpu| gpu.pci() == wanted);
        put(device, Handle::of(gpu.ok_or(NvmlResult::NotFound)?.index()))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId(
    id: *const c_char,
    device: Out<'_, Handle>,
) -> c_uint {
    // SAFETY: NVML's callers pass a string.
    unsafe { handle_by_bus_id("nvmlDeviceGetHandleByPciBusId", id, device) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    id: *const c_char,
    device: Out<'_, Handle>,
) -> c_uint {
    // SAFETY: NVML's callers pass a string.
    unsafe { handle_by_bus_id("nvmlDeviceGetHandleByPciBusId_v2", id, device) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(
    device: Handle,
    uuid: *mut c_char,
    length: c_uint,
) -> c_uint {
    device_call("nvmlDeviceGetUUID", device, |gpu| {
        // SAFETY: NVML's callers pass a buffer and its length.
        unsafe { put_text(uuid, length, gpu.uuid().to_string()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(
    device: Handle,
    name: *mut c_char,
    length: c_uint,
) -> c_uint {
    device_call("nvmlDeviceGetName", device, |gpu| {
        let is_garbled = gpu.driver().faults().iter().any(|fault| {
            fault.kind == FaultKind::Garble && fault.gpu.is_none_or(|index| index == gpu.index())
        });
        let text = if is_garbled { &b"NVIDIA \xC3\x28"[..] } else { gpu.facts().name.as_bytes() };
        // SAFETY: NVML's callers pass a buffer and its length.
        unsafe { put_text(name, length, text) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSerial(
    device: Handle,
    serial: *mut c_char,
    length: c_uint,
) -> c_uint {
    device_call("nvmlDeviceGetSerial", device, |gpu| {
        // SAFETY: NVML's callers pass a buffer and its length.
        unsafe { put_text(serial, length, gpu.serial().to_string()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetVbiosVersion(
    device: Handle,
    version: *mut c_char,
    length: c_uint,
) -> c_uint {
    device_call("nvmlDeviceGetVbiosVersion", device, |_| {
        // SAFETY: NVML's callers pass a buffer and its length.
        unsafe { put_text(version, length, "00.00.00.00.00") }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(device: Handle, index: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetIndex", device, |gpu| put(index, gpu.index() as c_uint))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(device: Handle, minor: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetMinorNumber", device, |gpu| put(minor, gpu.minor()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetBoardId(device: Handle, board: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetBoardId", device, |gpu| put(board, gpu.pci().to_word()))
}

fn pci_info(name: &str, device: Handle, info: Out<'_, PciInfo>) -> c_uint {
    device_call(name, device, |gpu| {
        let id = gpu.pci();
        let info_of_gpu = PciInfo {
            bus_id_legacy: fixed_text(&id.short()),
            domain: id.domain.into(),
            bus: id.bus.into(),
            device: id.device.into(),
            pci_device_id: gpu.facts().pci_device_id,
            pci_subsystem_id: gpu.facts().pci_device_id,
            bus_id: fixed_text(&id.to_string()),
        };
        put(info, info_of_gpu)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v2(device: Handle, info: Out<'_, PciInfo>) -> c_uint {
    pci_info("nvmlDeviceGetPciInfo_v2", device, info)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: Handle, info: Out<'_, PciInfo>) -> c_uint {
    pci_info("nvmlDeviceGetPciInfo_v3", device, info)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetArchitecture(device: Handle, arch: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetArchitecture", device, |gpu| {
        put(arch, gpu.facts().architecture as c_uint)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Handle,
    major: Out<'_, c_int>,
    minor: Out<'_, c_int>,
) -> c_uint {
    device_call("nvmlDeviceGetCudaComputeCapability", device, |gpu| {
        let capability = gpu.facts().compute_capability;
        put(major, capability.0)?;
        put(minor, capability.1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNumGpuCores(device: Handle, cores: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetNumGpuCores", device, |gpu| put(cores, gpu.facts().cores))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryBusWidth(device: Handle, bits: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetMemoryBusWidth", device, |gpu| put(bits, gpu.facts().memory_bus_bits))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetBrand(device: Handle, brand: Out<'_, c_uint>) -> c_uint {
    /// `NVML_BRAND_NVIDIA`.
    const NVIDIA: c_uint = 14;
    device_call("nvmlDeviceGetBrand", device, |_| put(brand, NVIDIA))
}
