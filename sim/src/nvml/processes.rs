//! Which processes are on a GPU.

use std::ffi::c_uint;

use crate::driver::Gpu;
use crate::nvml::abi::{Handle, ProcessInfo, ProcessInfoV1, put_items};
use crate::nvml::device_call;
use crate::nvml_result::NvmlResult;

/// "Not part of a MIG instance".
const NO_INSTANCE: c_uint = u32::MAX;
/// The share of a GPU's memory that a process is said to use: one of this many parts.
const MEMORY_PARTS: u64 = 16;

/// Bytes that each process is said to use.
pub(super) fn bytes_per_process(gpu: Gpu<'_>) -> u64 {
    (gpu.facts().memory_mib << 20) / MEMORY_PARTS
}

fn processes(gpu: Gpu<'_>) -> Result<Vec<ProcessInfo>, NvmlResult> {
    let used_gpu_memory = bytes_per_process(gpu);
    let info = |pid| ProcessInfo {
        pid,
        used_gpu_memory,
        gpu_instance_id: NO_INSTANCE,
        compute_instance_id: NO_INSTANCE,
    };
    Ok(gpu.processes()?.into_iter().map(|process| info(process.pid)).collect())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    device: Handle,
    count: Option<&mut c_uint>,
    infos: *mut ProcessInfoV1,
) -> c_uint {
    device_call("nvmlDeviceGetComputeRunningProcesses", device, |gpu| {
        let all: Vec<_> = processes(gpu)?
            .into_iter()
            .map(|info| ProcessInfoV1 { pid: info.pid, used_gpu_memory: info.used_gpu_memory })
            .collect();
        // SAFETY: NVML's callers pass an array and the number of its items.
        unsafe { put_items(count, infos, &all) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: Handle,
    count: Option<&mut c_uint>,
    infos: *mut ProcessInfo,
) -> c_uint {
    device_call("nvmlDeviceGetComputeRunningProcesses_v2", device, |gpu| {
        // SAFETY: NVML's callers pass an array and the number of its items.
        unsafe { put_items(count, infos, &processes(gpu)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Handle,
    count: Option<&mut c_uint>,
    infos: *mut ProcessInfo,
) -> c_uint {
    device_call("nvmlDeviceGetComputeRunningProcesses_v3", device, |gpu| {
        // SAFETY: NVML's callers pass an array and the number of its items.
        unsafe { put_items(count, infos, &processes(gpu)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Handle,
    count: Option<&mut c_uint>,
    infos: *mut ProcessInfo,
) -> c_uint {
    device_call("nvmlDeviceGetGraphicsRunningProcesses_v3", device, |_| {
        // SAFETY: NVML's callers pass an array and the number of its items.
        unsafe { put_items(count, infos, &[]) }
    })
}
