//! What a fork does to a session: nothing in the parent, the end of it in the child.
//!
//! A child has the memory of a session but neither its thread nor a right to its lease. It learns
//! that from a counter in memory, at no system call, and its copies of the sockets are closed so
//! that a worker that outlives its trainer does not keep the trainer's connection open.

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

const FREE: i32 = -1;

/// Sockets and device files that a child closes. A process has one session, rarely two; where there
/// are more, the rest stay open in a child, which costs nothing but promptness.
static DESCRIPTORS: [AtomicI32; 80] = [const { AtomicI32::new(FREE) }; 80];

/// Counts the forks between this process and the one that loaded the library.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Has forks counted from now on.
#[allow(unsafe_code)]
pub(crate) fn watch() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the handler is a function that lives as long as the library, which is never
        // unmapped (`-z nodelete`), and does only what is allowed between fork and exec. If it
        // cannot be registered for lack of memory, a child merely passes for its parent.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

#[allow(unsafe_code)]
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for slot in &DESCRIPTORS {
        let fd = slot.swap(FREE, Ordering::Relaxed);
        if fd != FREE {
            // SAFETY: `close` is async-signal-safe. The slot is emptied before its owner closes the
            // descriptor, so it names one of ours, and this process does not use that again.
            unsafe { libc::close(fd) };
        }
    }
}

/// Has a descriptor closed in children as long as this lives, which must end before the descriptor.
#[derive(Debug)]
pub(crate) struct ClosedInChildren(Option<&'static AtomicI32>);

impl ClosedInChildren {
    pub(crate) fn register(fd: RawFd) -> Self {
        let free = |slot: &&AtomicI32| {
            slot.compare_exchange(FREE, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        Self(DESCRIPTORS.iter().find(free))
    }
}

impl Drop for ClosedInChildren {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(FREE, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_sockets_than_slots_are_no_harm() {
        let all: Vec<_> = (0..40).map(|_| ClosedInChildren::register(RawFd::MAX)).collect();
        drop(all);
        assert!(ClosedInChildren::register(RawFd::MAX).0.is_some());
    }
}
