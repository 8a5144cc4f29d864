//! `nvmlDeviceGetFieldValues`: the few fields that energy tools read this way, and for how long each
//! reason has kept the clock down.

use std::ffi::{c_int, c_uint};

use crate::driver::Gpu;
use crate::model::{Architecture, GpuModel};
use crate::nvml::abi::Handle;
use crate::nvml::power::{limit, power};
use crate::nvml::{Answer, device_call, play_faults};
use crate::nvml_result::NvmlResult;

/// `NVML_FI_DEV_…`.
const TOTAL_ENERGY: c_uint = 83;
const POWER_AVERAGE: c_uint = 185;
const POWER_INSTANT: c_uint = 186;
const POWER_MIN_LIMIT: c_uint = 187;
const POWER_MAX_LIMIT: c_uint = 188;
const POWER_DEFAULT_LIMIT: c_uint = 189;
const POWER_CURRENT_LIMIT: c_uint = 190;
const ENERGY: c_uint = 191;
const POWER_REQUESTED_LIMIT: c_uint = 192;

/// `NVML_FI_DEV_CLOCKS_EVENT_REASON_…`, in nanoseconds.
const SOFTWARE_POWER_CAP: c_uint = 74;
const SYNC_BOOST: c_uint = 76;

/// Three more of them, and where 23 fields begin that drivers since 580.82 number otherwise: five
/// that older ones have first come last, after the settings of power smoothing.
const SOFTWARE_THERMAL_SLOWDOWN: c_uint = 269;
const HARDWARE_THERMAL_SLOWDOWN: c_uint = 270;
const HARDWARE_POWER_BRAKE: c_uint = 271;
const RENUMBERED: c_uint = 251;
const SMOOTHING_FIELDS: c_uint = 18;
const MOVED_FIELDS: c_uint = 5;

/// `NVML_FI_PWR_SMOOTHING_…` of GPUs that can do it: settings, all off
/// here, where older drivers have counters.
const SMOOTHING_ENABLED: c_uint = 251;
const SMOOTHING_RAMPS_DOWN_AT_ONCE: c_uint = 253;

/// `nvmlPowerScopeType_t`.
const SCOPE_GPU: c_uint = 0;
const SCOPE_MODULE: c_uint = 1;

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

/// The number that drivers since 580.82 have for a field.
fn as_now_numbered(gpu: Gpu<'_>, field: c_uint) -> c_uint {
    if gpu.driver().version().renumbers_fields() {
        return field;
    }
    match field.checked_sub(RENUMBERED) {
        Some(place) if place < MOVED_FIELDS => field + SMOOTHING_FIELDS,
        Some(place) if place < MOVED_FIELDS + SMOOTHING_FIELDS => field - MOVED_FIELDS,
        _ => field,
    }
}

/// The power of what a scope names. Only a module with a processor has one beside the GPU's.
fn power_of(gpu: Gpu<'_>, scope: c_uint) -> Result<(c_uint, u64), NvmlResult> {
    let module = gpu.silicon().module;
    let beside = match scope {
        SCOPE_GPU => 0,
        SCOPE_MODULE if module.0 > 0 => module.0,
        _ => return Err(NvmlResult::NotSupported),
    };
    Ok((UNSIGNED_INT, (power(gpu)?.0 + beside).into()))
}

fn limit_of(milliwatts: u32) -> Result<(c_uint, u64), NvmlResult> {
    Ok((UNSIGNED_INT, milliwatts.into()))
}

/// The data centre's Ampere, whose power readings are no averages.
fn is_ga100(gpu: Gpu<'_>) -> bool {
    gpu.model() == GpuModel::A100
}

fn read(gpu: Gpu<'_>, field: c_uint, scope: c_uint) -> Result<(c_uint, u64), NvmlResult> {
    let facts = gpu.facts();
    match as_now_numbered(gpu, field) {
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
        SMOOTHING_ENABLED..=SMOOTHING_RAMPS_DOWN_AT_ONCE
            if facts.architecture >= Architecture::Blackwell =>
        {
            Ok((UNSIGNED_INT, 0))
        }
        POWER_AVERAGE if facts.architecture < Architecture::Ampere || is_ga100(gpu) => {
            Err(NvmlResult::NotSupported)
        }
        POWER_AVERAGE | POWER_INSTANT => power_of(gpu, scope),
        POWER_MIN_LIMIT => limit_of(facts.power_limit_w.0 * 1000),
        POWER_MAX_LIMIT => limit_of(facts.power_limit_w.2 * 1000),
        POWER_DEFAULT_LIMIT => limit_of(facts.default_power_limit().0),
        POWER_CURRENT_LIMIT | POWER_REQUESTED_LIMIT => limit_of(limit(gpu)?.0),
        _ => Err(NvmlResult::NotSupported),
    }
}

fn fill(gpu: Gpu<'_>, values: &mut [FieldValue]) -> Answer {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let timestamp_us = now.map_or(0, |since| since.as_micros() as i64);
    for value in values {
        value.timestamp_us = timestamp_us;
        value.latency_us = 0;
        match read(gpu, value.field, value.scope) {
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
