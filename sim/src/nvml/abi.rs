//! The types of NVML's C interface, and the ways to write through a caller's pointers.
//!
//! Layouts follow `nvml.h`; the bindings of `nvml-wrapper-sys` are what they were checked against.

use std::ffi::{CStr, c_char, c_uint, c_ulonglong};
use std::mem::MaybeUninit;
use std::slice;

use crate::driver::{Driver, Gpu};
use crate::nvml_result::NvmlResult;

/// A place for a result, null if the caller passed none. C sees a plain pointer.
pub(super) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes a result.
pub(super) fn put<T>(out: Out<'_, T>, value: T) -> Result<(), NvmlResult> {
    out.ok_or(NvmlResult::InvalidArgument)?.write(value);
    Ok(())
}

/// `nvmlDevice_t`: to its users a pointer, which nobody follows.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Handle(usize);

/// Any number far from null that makes a stray pointer unlikely to be taken for a handle.
const FIRST_HANDLE: usize = 0x5046_4F00;

impl Handle {
    pub(super) fn of(gpu: usize) -> Self {
        Self(FIRST_HANDLE + gpu)
    }

    pub(super) fn resolve(self, driver: &Driver) -> Result<Gpu<'_>, NvmlResult> {
        let index = self.0.checked_sub(FIRST_HANDLE).ok_or(NvmlResult::InvalidArgument)?;
        driver.gpu(index).map_err(|_| NvmlResult::InvalidArgument)
    }
}

/// Copies text with its final zero into a caller's buffer.
///
/// # Safety
/// `buffer` is null or has room for `length` bytes.
pub(super) unsafe fn put_text(
    buffer: *mut c_char,
    length: c_uint,
    text: impl AsRef<[u8]>,
) -> Result<(), NvmlResult> {
    let text = text.as_ref();
    if buffer.is_null() {
        return Err(NvmlResult::InvalidArgument);
    }
    if length as usize <= text.len() {
        return Err(NvmlResult::InsufficientSize);
    }
    // SAFETY: not null, and the caller promises `length` bytes.
    let buffer = unsafe { slice::from_raw_parts_mut(buffer.cast::<u8>(), length as usize) };
    buffer[..text.len()].copy_from_slice(text);
    buffer[text.len()] = 0;
    Ok(())
}

/// A caller's text; what is not UTF-8 cannot name anything here.
///
/// # Safety
/// `text` is null or points to a zero-terminated string that outlives `'a`.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, NvmlResult> {
    if text.is_null() {
        return Err(NvmlResult::InvalidArgument);
    }
    // SAFETY: not null, and the caller promises a string.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| NvmlResult::NotFound)
}

/// Fills a caller's array in NVML's way: `count` comes in as the room and goes out as the number of
/// items; too little room is `INSUFFICIENT_SIZE` with that number.
///
/// # Safety
/// `items` is null or has room for `*count` items.
pub(super) unsafe fn put_items<T: Copy>(
    count: Option<&mut c_uint>,
    items: *mut T,
    values: &[T],
) -> Result<(), NvmlResult> {
    let count = count.ok_or(NvmlResult::InvalidArgument)?;
    let room = *count as usize;
    *count = values.len() as c_uint;
    if room < values.len() {
        return Err(NvmlResult::InsufficientSize);
    }
    if values.is_empty() {
        return Ok(());
    }
    if items.is_null() {
        return Err(NvmlResult::InvalidArgument);
    }
    // SAFETY: not null, and the caller promises room for `room >= values.len()` items.
    unsafe { items.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Ok(())
}

/// `nvmlPciInfo_t`.
#[repr(C)]
pub(super) struct PciInfo {
    pub(super) bus_id_legacy: [c_char; 16],
    pub(super) domain: c_uint,
    pub(super) bus: c_uint,
    pub(super) device: c_uint,
    pub(super) pci_device_id: c_uint,
    pub(super) pci_subsystem_id: c_uint,
    pub(super) bus_id: [c_char; 32],
}

/// Text in a field of fixed size, zero-terminated, cut if need be.
pub(super) fn fixed_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (place, byte) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    field
}

/// `nvmlProcessInfo_v1_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProcessInfoV1 {
    pub(super) pid: c_uint,
    pub(super) used_gpu_memory: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, which is `nvmlProcessInfo_t` as well.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProcessInfo {
    pub(super) pid: c_uint,
    pub(super) used_gpu_memory: c_ulonglong,
    pub(super) gpu_instance_id: c_uint,
    pub(super) compute_instance_id: c_uint,
}

/// `nvmlMemory_t`.
#[repr(C)]
pub(super) struct Memory {
    pub(super) total: c_ulonglong,
    pub(super) free: c_ulonglong,
    pub(super) used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub(super) struct MemoryV2 {
    pub(super) version: c_uint,
    pub(super) total: c_ulonglong,
    pub(super) reserved: c_ulonglong,
    pub(super) free: c_ulonglong,
    pub(super) used: c_ulonglong,
}

/// `nvmlUtilization_t`.
#[repr(C)]
pub(super) struct Utilization {
    pub(super) gpu: c_uint,
    pub(super) memory: c_uint,
}

const _: () = assert!(size_of::<PciInfo>() == 68);
const _: () = assert!(size_of::<ProcessInfo>() == 24);
const _: () = assert!(size_of::<MemoryV2>() == 40);
