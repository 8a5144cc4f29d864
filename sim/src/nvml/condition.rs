//! How a GPU is: its modes, its load, its memory, its temperature.

use std::ffi::c_uint;

use crate::driver::Gpu;
use crate::gpu_state::Activity;
use crate::nvml::abi::{Handle, Memory, MemoryV2, Out, Utilization, put};
use crate::nvml::processes::bytes_per_process;
use crate::nvml::{device_call, setter_call};
use crate::nvml_result::NvmlResult;

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(
    device: Handle,
    current: Out<'_, c_uint>,
    pending: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetMigMode", device, |gpu| {
        if !gpu.facts().has_mig {
            return Err(NvmlResult::NotSupported);
        }
        let mode = gpu.view()?.mig.into();
        put(current, mode)?;
        put(pending, mode)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetMaxMigDeviceCount", device, |gpu| {
        put(count, if gpu.facts().has_mig { 7 } else { 0 })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_mig: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceIsMigDeviceHandle", device, |_| put(is_mig, 0))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetPersistenceMode", device, |gpu| {
        put(mode, gpu.view()?.persistence.into())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetPersistenceMode(device: Handle, mode: c_uint) -> c_uint {
    setter_call("nvmlDeviceSetPersistenceMode", device, |gpu| {
        if mode > 1 {
            return Err(NvmlResult::InvalidArgument);
        }
        Ok(gpu.set_persistence(mode == 1)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeMode(device: Handle, mode: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetComputeMode", device, |_| put(mode, 0))
}

/// A GPU that waits for a neighbour runs a kernel that spins, and so is fully used.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(
    device: Handle,
    utilization: Out<'_, Utilization>,
) -> c_uint {
    device_call("nvmlDeviceGetUtilizationRates", device, |gpu| {
        let load = match gpu.view()?.activity {
            Activity::Idle => Utilization { gpu: 0, memory: 0 },
            Activity::Blocked => Utilization { gpu: 100, memory: 0 },
            Activity::Computing(_) => Utilization { gpu: 100, memory: 50 },
        };
        put(utilization, load)
    })
}

/// `NVML_TEMPERATURE_GPU` is the only sensor.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperature(
    device: Handle,
    sensor: c_uint,
    celsius: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetTemperature", device, |gpu| {
        if sensor != 0 {
            return Err(NvmlResult::InvalidArgument);
        }
        put(celsius, gpu.view()?.warmth.degrees())
    })
}

/// `nvmlTemperature_t`.
#[repr(C)]
struct TemperatureV1 {
    version: c_uint,
    sensor: c_uint,
    celsius: c_uint,
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperatureV(
    device: Handle,
    reading: Option<&mut TemperatureV1>,
) -> c_uint {
    const VERSION: c_uint = size_of::<TemperatureV1>() as c_uint | 1 << 24;
    device_call("nvmlDeviceGetTemperatureV", device, |gpu| {
        let reading = reading.ok_or(NvmlResult::InvalidArgument)?;
        if reading.version != VERSION {
            return Err(NvmlResult::ArgumentVersionMismatch);
        }
        if reading.sensor != 0 {
            return Err(NvmlResult::InvalidArgument);
        }
        reading.celsius = gpu.view()?.warmth.degrees();
        Ok(())
    })
}

fn memory(gpu: Gpu<'_>) -> Result<Memory, NvmlResult> {
    let total = gpu.facts().memory_mib << 20;
    let used = bytes_per_process(gpu) * gpu.processes()?.len() as u64;
    Ok(Memory { total, free: total - used, used })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(device: Handle, info: Out<'_, Memory>) -> c_uint {
    device_call("nvmlDeviceGetMemoryInfo", device, |gpu| put(info, memory(gpu)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Handle, info: Option<&mut MemoryV2>) -> c_uint {
    /// Size of the struct, and its version in the upper byte.
    const VERSION: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;
    device_call("nvmlDeviceGetMemoryInfo_v2", device, |gpu| {
        let info = info.ok_or(NvmlResult::InvalidArgument)?;
        if info.version != VERSION {
            return Err(NvmlResult::ArgumentVersionMismatch);
        }
        let memory = memory(gpu)?;
        info.total = memory.total;
        info.reserved = 0;
        info.free = memory.free;
        info.used = memory.used;
        Ok(())
    })
}
