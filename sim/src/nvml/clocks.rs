//! Clocks as they are, and as they could be.

use std::ffi::c_uint;

use crate::driver::Gpu;
use crate::gpu_state::{Activity, HeldBack};
use crate::model::ModelFacts;
use crate::nvml::abi::{Handle, Out, put, put_items};
use crate::nvml::device_call;
use crate::nvml_result::NvmlResult;
use crate::units::{Mhz, MonotonicNs};

/// `nvmlClockType_t`.
const GRAPHICS: c_uint = 0;
const SM: c_uint = 1;
const MEMORY: c_uint = 2;
const VIDEO: c_uint = 3;

/// `nvmlClockId_t`.
const CURRENT: c_uint = 0;
const APPLICATION_TARGET: c_uint = 1;
const APPLICATION_DEFAULT: c_uint = 2;
const BOOST_MAX: c_uint = 3;

fn current(gpu: Gpu<'_>, kind: c_uint) -> Result<c_uint, NvmlResult> {
    let state = gpu.view()?;
    match kind {
        GRAPHICS | SM => Ok(state.clock_at(gpu.board(), MonotonicNs::now()).0),
        MEMORY => Ok(state.memory_clock(gpu.facts()).0),
        VIDEO => Err(NvmlResult::NotSupported),
        _ => Err(NvmlResult::InvalidArgument),
    }
}

fn highest(facts: &ModelFacts, kind: c_uint) -> Result<c_uint, NvmlResult> {
    match kind {
        GRAPHICS | SM => Ok(facts.highest().0),
        MEMORY => Ok(facts.highest_memory().0),
        VIDEO => Err(NvmlResult::NotSupported),
        _ => Err(NvmlResult::InvalidArgument),
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetClockInfo(
    device: Handle,
    kind: c_uint,
    clock: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetClockInfo", device, |gpu| put(clock, current(gpu, kind)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxClockInfo(
    device: Handle,
    kind: c_uint,
    clock: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetMaxClockInfo", device, |gpu| put(clock, highest(gpu.facts(), kind)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxCustomerBoostClock(
    device: Handle,
    kind: c_uint,
    clock: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetMaxCustomerBoostClock", device, |gpu| {
        put(clock, highest(gpu.facts(), kind)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetClock(
    device: Handle,
    kind: c_uint,
    id: c_uint,
    clock: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetClock", device, |gpu| match id {
        CURRENT => put(clock, current(gpu, kind)?),
        BOOST_MAX => put(clock, highest(gpu.facts(), kind)?),
        APPLICATION_TARGET | APPLICATION_DEFAULT => Err(NvmlResult::NotSupported),
        _ => Err(NvmlResult::InvalidArgument),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetApplicationsClock(
    device: Handle,
    _kind: c_uint,
    _clock: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetApplicationsClock", device, |_| Err(NvmlResult::NotSupported))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetDefaultApplicationsClock(
    device: Handle,
    _kind: c_uint,
    _clock: Out<'_, c_uint>,
) -> c_uint {
    device_call("nvmlDeviceGetDefaultApplicationsClock", device, |_| Err(NvmlResult::NotSupported))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedMemoryClocks(
    device: Handle,
    count: Option<&mut c_uint>,
    clocks: *mut c_uint,
) -> c_uint {
    device_call("nvmlDeviceGetSupportedMemoryClocks", device, |gpu| {
        // SAFETY: NVML's callers pass an array and the number of its items.
        unsafe { put_items(count, clocks, gpu.facts().memory_mhz) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedGraphicsClocks(
    device: Handle,
    memory: c_uint,
    count: Option<&mut c_uint>,
    clocks: *mut c_uint,
) -> c_uint {
    device_call("nvmlDeviceGetSupportedGraphicsClocks", device, |gpu| {
        let supported = gpu.facts().sm_clocks_at(Mhz(memory)).ok_or(NvmlResult::NotFound)?;
        let supported: Vec<c_uint> = supported.into_iter().map(|clock| clock.0).collect();
        // SAFETY: NVML's callers pass an array and the number of its items.
        unsafe { put_items(count, clocks, &supported) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPerformanceState(device: Handle, state: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetPerformanceState", device, |gpu| put(state, performance_state(gpu)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerState(device: Handle, state: Out<'_, c_uint>) -> c_uint {
    device_call("nvmlDeviceGetPowerState", device, |gpu| put(state, performance_state(gpu)?))
}

/// P0 at full memory clock, P8 at a lower one.
fn performance_state(gpu: Gpu<'_>) -> Result<c_uint, NvmlResult> {
    let full = gpu.facts().highest_memory().0;
    Ok(if current(gpu, MEMORY)? == full { 0 } else { 8 })
}

/// `nvmlClocksEventReason…`.
const GPU_IDLE: u64 = 1;
const SOFTWARE_POWER_CAP: u64 = 4;
const HARDWARE_SLOWDOWN: u64 = 8;
const SOFTWARE_THERMAL_SLOWDOWN: u64 = 0x20;
const HARDWARE_THERMAL_SLOWDOWN: u64 = 0x40;
const SUPPORTED: u64 = GPU_IDLE
    | SOFTWARE_POWER_CAP
    | HARDWARE_SLOWDOWN
    | SOFTWARE_THERMAL_SLOWDOWN
    | HARDWARE_THERMAL_SLOWDOWN;

/// Why the clock is not as high as it could be. NVML does not count a lock among the reasons.
fn reasons(gpu: Gpu<'_>) -> Result<u64, NvmlResult> {
    let (state, now) = (gpu.view()?, MonotonicNs::now());
    if state.activity == Activity::Idle {
        let locked = state.timeline.at(now).lock.is_some();
        return Ok(if locked { 0 } else { GPU_IDLE });
    }
    let HeldBack { by_power, by_software, by_hardware } = state.held_back(gpu.board(), now);
    let when = |held_back, reasons| if held_back { reasons } else { 0 };
    Ok(when(by_power, SOFTWARE_POWER_CAP)
        | when(by_software, SOFTWARE_THERMAL_SLOWDOWN)
        | when(by_hardware, HARDWARE_SLOWDOWN | HARDWARE_THERMAL_SLOWDOWN))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: Handle,
    mask: Out<'_, u64>,
) -> c_uint {
    device_call("nvmlDeviceGetCurrentClocksThrottleReasons", device, |gpu| put(mask, reasons(gpu)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrentClocksEventReasons(device: Handle, mask: Out<'_, u64>) -> c_uint {
    device_call("nvmlDeviceGetCurrentClocksEventReasons", device, |gpu| put(mask, reasons(gpu)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSupportedClocksThrottleReasons(
    device: Handle,
    mask: Out<'_, u64>,
) -> c_uint {
    device_call("nvmlDeviceGetSupportedClocksThrottleReasons", device, |_| put(mask, SUPPORTED))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSupportedClocksEventReasons(
    device: Handle,
    mask: Out<'_, u64>,
) -> c_uint {
    device_call("nvmlDeviceGetSupportedClocksEventReasons", device, |_| put(mask, SUPPORTED))
}
