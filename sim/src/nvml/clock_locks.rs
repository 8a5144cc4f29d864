//! Locking and unlocking clocks.

use std::ffi::c_uint;
use std::sync::atomic::Ordering;

use crate::clock_table::ClockRange;
use crate::driver::Gpu;
use crate::model::Architecture;
use crate::nvml::abi::Handle;
use crate::nvml::{Answer, change, guarded, library, setter_call};
use crate::nvml_result::NvmlResult;
use crate::units::{Mhz, MonotonicNs};

/// `nvmlClockLimitId_t`: limits by name in place of a number.
const CLOCK_LIMIT_TDP: c_uint = 0xFFFF_FF01;
const CLOCK_LIMIT_UNLIMITED: c_uint = 0xFFFF_FF02;

/// The locked range that two arguments ask for. Numbers out of the board's range are accepted, and
/// taken as its nearest clock; named limits all mean the board's highest clock here.
fn range(min: c_uint, max: c_uint, highest: Mhz) -> Result<ClockRange, NvmlResult> {
    let is_named = |limit| matches!(limit, CLOCK_LIMIT_TDP | CLOCK_LIMIT_UNLIMITED);
    match (is_named(min), is_named(max)) {
        (true, true) => Ok(ClockRange::exactly(highest)),
        (false, false) if min <= max && max > 0 => Ok(ClockRange { min: Mhz(min), max: Mhz(max) }),
        _ => Err(NvmlResult::InvalidArgument),
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetGpuLockedClocks(device: Handle, min: c_uint, max: c_uint) -> c_uint {
    // First of all: this is where the way of an event from a trainer ends.
    let entered = MonotonicNs::now();
    guarded(|| {
        let driver = library::current()?;
        let gpu = device.resolve(&driver)?;
        let calls = &gpu.block().set_calls;
        let number = calls.enter(entered, Mhz(min), Mhz(max), std::process::id());
        let answer = change(&driver, "nvmlDeviceSetGpuLockedClocks", gpu, |gpu| {
            let range = range(min, max, gpu.facts().highest())?;
            Ok(gpu.lock_clocks(Some(range))?)
        });
        let result = answer.err().unwrap_or(NvmlResult::Success).number();
        calls.leave(number, MonotonicNs::now(), result);
        answer
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceResetGpuLockedClocks(device: Handle) -> c_uint {
    setter_call("nvmlDeviceResetGpuLockedClocks", device, |gpu| {
        gpu.block().reset_calls.fetch_add(1, Ordering::Relaxed);
        Ok(gpu.lock_clocks(None)?)
    })
}

/// Memory clocks can be locked from Ampere on.
fn lock_memory(gpu: Gpu<'_>, lock: Option<ClockRange>) -> Answer {
    if gpu.facts().architecture < Architecture::Ampere {
        return Err(NvmlResult::NotSupported);
    }
    gpu.block().memory_calls.fetch_add(1, Ordering::Relaxed);
    Ok(gpu.lock_memory_clocks(lock)?)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetMemoryLockedClocks(device: Handle, min: c_uint, max: c_uint) -> c_uint {
    setter_call("nvmlDeviceSetMemoryLockedClocks", device, |gpu| {
        let range = range(min, max, gpu.facts().highest_memory())?;
        lock_memory(gpu, Some(range))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceResetMemoryLockedClocks(device: Handle) -> c_uint {
    setter_call("nvmlDeviceResetMemoryLockedClocks", device, |gpu| lock_memory(gpu, None))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetApplicationsClocks(
    device: Handle,
    _memory: c_uint,
    _graphics: c_uint,
) -> c_uint {
    setter_call("nvmlDeviceSetApplicationsClocks", device, |_| Err(NvmlResult::NotSupported))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceResetApplicationsClocks(device: Handle) -> c_uint {
    setter_call("nvmlDeviceResetApplicationsClocks", device, |_| Err(NvmlResult::NotSupported))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_numbers_in_order_or_two_named_limits() {
        let highest = Mhz(1410);
        assert_eq!(range(900, 1200, highest).unwrap().max, Mhz(1200));
        assert_eq!(range(0, 9999, highest).unwrap().min, Mhz(0));
        assert_eq!(
            range(CLOCK_LIMIT_TDP, CLOCK_LIMIT_UNLIMITED, highest),
            Ok(ClockRange::exactly(highest))
        );
        for (min, max) in [(1200, 900), (0, 0), (900, CLOCK_LIMIT_TDP), (CLOCK_LIMIT_TDP, 900)] {
            assert_eq!(range(min, max, highest), Err(NvmlResult::InvalidArgument));
        }
    }
}
