//! Threads of the library's own in a process that belongs to a trainer.

use std::io;
use std::thread::Builder;

use nix::sys::signal::{SigSet, SigmaskHow};

/// Starts a thread that no signal is delivered to: one for the process must find the trainer's own
/// threads. The trainer never waits for it.
pub(crate) fn start(builder: Builder, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // The thread inherits this mask.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let started = builder.spawn(work);
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    started.map(drop)
}
