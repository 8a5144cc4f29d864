//! `nvmlDeviceGetFieldValues`: the few fields that energy tools read this way, and for how long each
//! reason has kept the clock down.

use std::ffi::{c_int, c_uint};

use crate::driver::Gpu;
use crate::nvml::abi::Handle;
use crate::nvml::power::power;
use crate::nvml::{Answer, device_call, play_faults};
use crate::nvml_result::NvmlResult;

/// `NVML_FI_DEV_…`.
const TOTAL_ENERGY: c_uint = 83;
const ENERGY: c_uint = 191;
const POWER_AVERAGE: c_uint = 185;
const POWER_INSTANT: c_uint = 186;

/// `NVML_FI_DEV_CLOCKS_EVENT_REASON_…`, in nanoseconds; the last three as drivers before 580.82
/// number them.
const SOFTWARE_POWER_CAP: c_uint = 74;
const SYNC_BOOST: c_uint = 76;
const SOFTWARE_THERMAL_SLOWDOWN: c_uint = 251;
const HARDWARE_THERMAL_SLOWDOWN: c_uint = 252;
const HARDWARE_POWER_BRAKE: c_uint = 253;

/// `nvmlValueType_t`.
const UNSIGNED_INT: c_uint = 1;
const UNSIGNED_LONG_LONG: c_uint = 3;

/// `nvmlFieldValue_t`.
#[repr(C)]
pub(super) struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp_us: i64,
    latency_us: i64,
    value_type: c_uint,
    result: c_uint,
    value: u64,
}

const _: () = assert!(size_of::<FieldValue>() == 40);

fn read(gpu: Gpu<'_>, field: c_uint) -> Result<(c_uint, u64), NvmlResult> {
    match field {
        TOTAL_ENERGY | ENERGY => {
            gpu.take_time_to_read("nvmlDeviceGetTotalEnergyConsumption");
            // What has no counter has none behind any function.
            play_faults(gpu.driver(), "nvmlDeviceGetTotalEnergyConsumption", Some(gpu.index()))?;
            Ok((UNSIGNED_LONG_LONG, gpu.energy_mj()?))
        }
        SOFTWARE_POWER_CAP => Ok((UNSIGNED_LONG_LONG, gpu.view()?.power_capped_ns)),
        SOFTWARE_THERMAL_SLOWDOWN => Ok((UNSIGNED_LONG_LONG, gpu.view()?.software_slowed_ns)),
        HARDWARE_THERMAL_SLOWDOWN => Ok((UNSIGNED_LONG_LONG, gpu.view()?.hardware_slowed_ns)),
        SYNC_BOOST | HARDWARE_POWER_BRAKE => Ok((UNSIGNED_LONG_LONG, 0)),
        POWER_AVERAGE | POWER_INSTANT => Ok((UNSIGNED_INT, power(gpu)?.0.into())),
        _ => Err(NvmlResult::NotSupported),
    }
}

fn fill(gpu: Gpu<'_>, values: &mut [FieldValue]) -> Answer {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let timestamp_us = now.map_or(0, |since| since.as_micros() as i64);
    for value in values {
        value.timestamp_us = timestamp_us;
        value.latency_us = 0;
        match read(gpu, value.field) {
            Ok((value_type, number)) => {
                value.value_type = value_type;
                value.value = number;
                value.result = NvmlResult::Success.number();
            }
            Err(error) => value.result = error.number(),
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: Handle,
    count: c_int,
    values: *mut FieldValue,
) -> c_uint {
    device_call("nvmlDeviceGetFieldValues", device, |gpu| {
        if values.is_null() || count <= 0 {
            return Err(NvmlResult::InvalidArgument);
        }
        // SAFETY: not null, and NVML's callers pass an array with the number of its items, whose
        // `field`s they have set; no bit pattern of the other members is invalid.
        let values = unsafe { std::slice::from_raw_parts_mut(values, count as usize) };
        fill(gpu, values)
    })
}
