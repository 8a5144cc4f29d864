//! Asks CUDA itself which GPU an ordinal means, if the process has CUDA loaded and initialized.
//!
//! That is exact under Slurm's device cgroups and in containers too.

use std::ffi::{CStr, c_int, c_uint};

use pfo_protocol::GpuUuid;

use crate::cuda_library::CudaLibrary;
use crate::problem::Problem;

/// From `cuda.h`: the driver API's device handle, 16 bytes of UUID, and the code of success.
type Device = c_int;
type Uuid = [u8; 16];
const SUCCESS: c_int = 0;
const NOT_INITIALIZED: c_int = 3;
const INVALID_DEVICE: c_int = 101;

type GetCount = unsafe extern "C" fn(*mut c_int) -> c_int;
type ContextState = unsafe extern "C" fn(Device, *mut c_uint, *mut c_int) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut Device, c_int) -> c_int;
type DeviceGetUuid = unsafe extern "C" fn(*mut Uuid, Device) -> c_int;

/// The GPU of a CUDA ordinal; `None` if CUDA is not there to be asked.
pub(crate) fn gpu(ordinal: u32) -> Result<Option<GpuUuid>, Problem> {
    let Some(cuda) = CudaLibrary::find() else {
        return Ok(None);
    };
    let device = match cuda.device(ordinal) {
        Ok(device) => device,
        Err(INVALID_DEVICE) => {
            return Err(Problem::unresolved(
                format!("CUDA has no device cuda:{ordinal}"),
                "give the ordinal that the trainer passes to CUDA, or a UUID (PFO_GPU=GPU-…)",
            ));
        }
        // Not initialized yet (or initialized in a parent, before the fork), or worse.
        Err(_) => return Ok(None),
    };
    // The older function names the whole GPU, the newer one the MIG instance on it.
    let whole = cuda.uuid(c"cuDeviceGetUuid", device);
    let instance = cuda.uuid(c"cuDeviceGetUuid_v2", device);
    match (whole, instance) {
        (Some(whole), Some(instance)) if whole != instance => Err(Problem::unresolved(
            format!("cuda:{ordinal} is a MIG instance, whose clocks belong to all of its GPU"),
            "use whole GPUs",
        )),
        (Some(uuid), _) | (None, Some(uuid)) => Ok(text(&uuid).parse().ok()),
        (None, None) => Ok(None),
    }
}

/// How many devices there are; `None` if CUDA is not there to be asked.
pub(crate) fn count() -> Option<u32> {
    CudaLibrary::find().map(|cuda| cuda.devices()).filter(|devices| *devices > 0)
}

/// The ordinal of the only device on which this process has its context; `None` if there is none, or if
/// there are several.
pub(crate) fn only_context() -> Option<u32> {
    let cuda = CudaLibrary::find()?;
    let mut active = (0..cuda.devices()).filter(|ordinal| cuda.has_context(*ordinal));
    active.next().filter(|_| active.next().is_none())
}

/// The way that NVML prints a UUID.
fn text(uuid: &Uuid) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[allow(unsafe_code)]
impl CudaLibrary {
    /// How many devices there are; 0 as long as CUDA is not initialized.
    pub(crate) fn devices(&self) -> u32 {
        // SAFETY: `cuDeviceGetCount` has this type in every version of `cuda.h`.
        let Some(count) = (unsafe { self.function::<GetCount>(c"cuDeviceGetCount") }) else {
            return 0;
        };
        let mut devices = 0;
        // SAFETY: the library stays loaded while `self` lives, and writes one number.
        let result = unsafe { count(&raw mut devices) };
        if result == SUCCESS { devices.try_into().unwrap_or(0) } else { 0 }
    }

    /// The ordinal of a GPU.
    pub(crate) fn ordinal(&self, gpu: &GpuUuid) -> Option<u32> {
        (0..self.devices()).find(|ordinal| {
            let uuid =
                self.device(*ordinal).ok().and_then(|device| self.uuid(c"cuDeviceGetUuid", device));
            uuid.is_some_and(|uuid| text(&uuid) == gpu.as_str())
        })
    }

    /// Whether the process has made the primary context of a device, which is the one that the runtime,
    /// and with it every framework, works in.
    pub(crate) fn has_context(&self, ordinal: u32) -> bool {
        // SAFETY: `cuDevicePrimaryCtxGetState` has this type in every version of `cuda.h`.
        let state = unsafe { self.function::<ContextState>(c"cuDevicePrimaryCtxGetState") };
        let (Some(state), Ok(device)) = (state, self.device(ordinal)) else {
            return false;
        };
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the library stays loaded while `self` lives, and writes two numbers.
        let result = unsafe { state(device, &raw mut flags, &raw mut active) };
        result == SUCCESS && active != 0
    }

    pub(crate) fn device(&self, ordinal: u32) -> Result<Device, c_int> {
        let ordinal = c_int::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        // SAFETY: `cuDeviceGet` has this type in every version of `cuda.h`.
        let get: Option<DeviceGet> = unsafe { self.function(c"cuDeviceGet") };
        let get = get.ok_or(NOT_INITIALIZED)?;
        let mut device = 0;
        // SAFETY: the library stays loaded while `self` lives, and writes one handle.
        match unsafe { get(&raw mut device, ordinal) } {
            SUCCESS => Ok(device),
            error => Err(error),
        }
    }

    fn uuid(&self, function: &CStr, device: Device) -> Option<Uuid> {
        // SAFETY: both functions have this type in every version of `cuda.h`.
        let get: DeviceGetUuid = unsafe { self.function(function)? };
        let mut uuid = [0; 16];
        // SAFETY: the library stays loaded while `self` lives, and writes 16 bytes.
        (unsafe { get(&raw mut uuid, device) } == SUCCESS).then_some(uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_as_the_driver_prints_it() {
        let uuid = std::array::from_fn(|index| 0x10 * index as u8 + 0xa);
        assert_eq!(text(&uuid), "GPU-0a1a2a3a-4a5a-6a7a-8a9a-aabacadaeafa");
    }

    #[test]
    fn a_process_without_cuda_has_no_answer() {
        assert_eq!(gpu(0), Ok(None));
    }
}
