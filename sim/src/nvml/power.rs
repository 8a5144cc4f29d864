//! Power, energy and the power limit.

use std::ffi::{c_uint, c_ulonglong};

use crate::driver::Gpu;
use crate::nvml::abi::{Handle, Out, put};
use crate::nvml::{device_call, setter_call};
use crate::nvml_result::NvmlResult;
use crate::units::{Milliwatts, MonotonicNs};

/// Power now.
pub(super) fn power(gpu: Gpu<'_>) -> Result<Milliwatts, NvmlResult> {
    Ok(gpu.view()?.power_at(gpu.board(), MonotonicNs::now()))
}

/// The power limit in force.
pub(super) fn limit(gpu: Gpu<'_>) -> Result<Milliwatts, NvmlResult> {
    let cap = gpu.view()?.timeline.at(MonotonicNs::now()).power_cap;
    Ok(cap.unwrap_or(gpu.facts().default_power_limit()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerUsage(device: Handle, milliwatts: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetPowerUsage", device, |gpu| put(milliwatts, power(gpu)?.0))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: Handle,
    millijoules: Out<'_, c_ulonglong>,
) -> c_uint {
    device_call("nvmlDeviceGetTotalEnergyConsumption", device, |gpu| {
        put(millijoules, gpu.energy_mj()?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerManagementMode(device: Handle, mode: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetPowerManagementMode", device, |_| put(mode, 1))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerManagementLimit(
    device: Handle,
    milliwatts: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetPowerManagementLimit", device, |gpu| put(milliwatts, limit(gpu)?.0))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEnforcedPowerLimit(
    device: Handle,
    milliwatts: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetEnforcedPowerLimit", device, |gpu| put(milliwatts, limit(gpu)?.0))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerManagementDefaultLimit(
    device: Handle,
    milliwatts: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetPowerManagementDefaultLimit", device, |gpu| {
        put(milliwatts, gpu.facts().default_power_limit().0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: Handle,
    min: Out<'_, c_uint>,
    max: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetPowerManagementLimitConstraints", device, |gpu| {
        let (lowest, _, highest) = gpu.facts().power_limit_w;
        put(min, lowest * 1000)?;
        put(max, highest * 1000)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetPowerManagementLimit(device: Handle, milliwatts: c_uint) -> c_uint {
    setter_call("nvmlDeviceSetPowerManagementLimit", device, |gpu| {
        let (lowest, _, highest) = gpu.facts().power_limit_w;
        if !(lowest * 1000..=highest * 1000).contains(&milliwatts) {
            return Err(NvmlResult::InvalidArgument);
        }
        Ok(gpu.cap_power(Some(Milliwatts(milliwatts)))?)
    })
}
