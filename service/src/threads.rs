//! What the kernel offers for threads and no safe library wraps, and nothing else.
#![allow(unsafe_code)]

use std::io;

use nix::sys::signal::Signal;

use crate::sys::notice;

/// How the kernel schedules the calling thread.
///
/// # Errors
/// If the kernel does not report it.
pub fn scheduling() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: the structure holds only numbers, for which zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes no more than `size` bytes.
    match unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } {
        0 => Ok(attributes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets how the kernel schedules the calling thread.
///
/// # Errors
/// If the kernel refuses.
pub fn set_scheduling(attributes: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the structure's size field says it has.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The signal that makes a blocked read return. No other code sends it.
const INTERRUPTION: Signal = Signal::SIGUSR1;

/// Lets [`interrupt_thread`] end a blocked read, and nothing else.
///
/// # Errors
/// If the kernel refuses the handler.
pub fn allow_interruptions() -> io::Result<()> {
    // The driver's calls are restarted. A read of a socket with a timeout never is.
    notice(INTERRUPTION)
}

/// Interrupts a thread of this process, given its kernel thread id.
pub fn interrupt_thread(thread: i32) {
    // SAFETY: the call takes three numbers. The id of a thread that has ended is not one of this
    // process.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, INTERRUPTION as libc::c_int);
    }
}
