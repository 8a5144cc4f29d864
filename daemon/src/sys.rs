//! The places where the kernel or NVML hands over what no safe library wraps, and nothing else.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use tokio::io::unix::AsyncFd;

/// More SM clocks than any GPU has.
const MOST_CLOCKS: usize = 1024;

/// Groups asked for at first; the kernel says how many there are if that is too few.
const USUAL_GROUPS: usize = 64;

/// The supplementary groups of the process that connected a Unix socket.
///
/// # Errors
/// If the kernel does not tell.
pub(crate) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; USUAL_GROUPS];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the buffer is valid for `bytes` bytes, and the kernel writes no more than that.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// A descriptor for a process.
///
/// # Errors
/// If there is no such process any more, or the kernel has no such descriptors.
pub(crate) fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), 0) };
    match RawFd::try_from(fd) {
        // SAFETY: the kernel just made this descriptor for the caller alone.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A driver's handle of a GPU that keeps the driver loaded.
#[derive(Debug)]
pub(crate) struct KeptDevice {
    // Before the driver: fields are dropped in this order.
    device: Device<'static>,
    nvml: Arc<Nvml>,
}

impl KeptDevice {
    /// Keeps a handle of that driver.
    pub(crate) fn new(nvml: &Arc<Nvml>, device: &Device<'_>) -> Self {
        // SAFETY: what an `Arc` points to does not move, and is there as long as this clone of it,
        // which nobody can take away: the device leaves this only with a shorter life, by `get`.
        let device = unsafe { Device::new(device.handle(), &*Arc::as_ptr(nvml)) };
        Self { device, nvml: Arc::clone(nvml) }
    }

    /// The handle, to call the driver.
    pub(crate) fn get(&self) -> Device<'_> {
        // SAFETY: the handle is one of this very driver's.
        unsafe { Device::new(self.device.handle(), &self.nvml) }
    }
}

/// The SM clocks that a GPU supports at a memory clock, in MHz.
///
/// nvml-wrapper 0.13 asks for at most 128 and takes a longer list, such as a V100's, for zeros.
///
/// # Errors
/// As NVML says.
pub(crate) fn supported_sm_clocks(
    nvml: &Nvml,
    device: &Device<'_>,
    memory_mhz: u32,
) -> Result<Vec<u32>, NvmlError> {
    let list = nvml_sym(nvml.lib().nvmlDeviceGetSupportedGraphicsClocks.as_ref())?;
    let mut clocks = vec![0; MOST_CLOCKS];
    let mut count = MOST_CLOCKS as u32;
    // SAFETY: the handle is NVML's own, and there is room for `count` clocks.
    nvml_try(unsafe { list(device.handle(), memory_mhz, &raw mut count, clocks.as_mut_ptr()) })?;
    clocks.truncate(count as usize);
    Ok(clocks)
}

/// Takes over a descriptor that the service manager passed to this process.
pub(crate) fn take_passed(fd: RawFd) -> OwnedFd {
    // SAFETY: systemd passes each of these descriptors once, and the daemon asks for them once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Registers a descriptor with the runtime.
///
/// # Errors
/// If the runtime cannot wait for it.
pub(crate) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open, and the same descriptor, for as long as the `AsyncFd` owns it.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}

/// How the kernel runs the calling thread.
///
/// # Errors
/// If the kernel does not tell.
pub(crate) fn scheduling() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: numbers, of which zero is a valid one.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes no more than `size` bytes.
    match unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } {
        0 => Ok(attributes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets how long the calling thread may compute at once, in nanoseconds, 0 for what is usual.
///
/// # Errors
/// If the kernel does not let it.
pub(crate) fn set_slice(ns: u64) -> io::Result<()> {
    let attributes = libc::sched_attr { sched_runtime: ns, ..scheduling()? };
    // SAFETY: the kernel reads as many bytes as it has written that there are.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What makes a read that waits return. Nobody else sends it.
const INTERRUPTION: Signal = Signal::SIGUSR1;

/// Lets [`interrupt_thread`] end a read that waits, and nothing else.
///
/// # Errors
/// If the kernel does not take the handler.
pub(crate) fn allow_interruptions() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // The driver's calls are restarted. A read of a socket with a timeout never is.
    let flags = SaFlags::SA_RESTART;
    let action = SigAction::new(SigHandler::Handler(nothing), flags, SigSet::empty());
    // SAFETY: a handler that does nothing does nothing that a handler must not do.
    unsafe { sigaction(INTERRUPTION, &action) }.map(drop).map_err(io::Error::from)
}

/// Interrupts a thread of this process, by the kernel's number of it.
pub(crate) fn interrupt_thread(thread: i32) {
    // SAFETY: the call takes three numbers. A thread that is gone is none of this process any more.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, INTERRUPTION as libc::c_int);
    }
}
