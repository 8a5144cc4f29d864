//! What is being written and has no name of its own yet: a signal that ends the process removes it
//! first.
//!
//! Nothing can be done about SIGKILL. It leaves a file or directory with a name that begins with
//! `.tmp`, and never a half-written one with the name that was asked for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::sys::signal::{SigSet, Signal, raise};

use crate::error::Error;

static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Makes something under a name that is not to stay. There is one such thing at a time.
pub(super) fn begin<T>(
    make: impl FnOnce() -> io::Result<T>,
    path: impl FnOnce(&T) -> &Path,
) -> io::Result<T> {
    let mut unfinished = lock();
    let made = make()?;
    *unfinished = Some(path(&made).to_owned());
    Ok(made)
}

/// Adds to it. A signal waits until this is done, so it should not take long.
pub(super) fn add<T>(write: impl FnOnce() -> T) -> T {
    let _unfinished = lock();
    write()
}

/// Gives it its name, or removes it.
pub(super) fn end<T>(finish: impl FnOnce() -> T) -> T {
    let mut unfinished = lock();
    let finished = finish();
    *unfinished = None;
    finished
}

/// From here on nothing unfinished is left behind. Threads that start later take part; there must
/// not be any yet.
pub(super) fn leave_nothing_behind() -> Result<(), Error> {
    let signals = ending_signals();
    signals.thread_block().map_err(Error::Signals)?;
    // Taken by a thread, a signal needs no handler, nor obeys a handler's restrictions.
    thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        // Held to the end: nobody makes or finishes anything any more.
        let unfinished = lock();
        if let Some(path) = &*unfinished {
            let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
        }
        let _ = signals.thread_unblock().and_then(|()| raise(signal));
    });
    Ok(())
}

/// Those that end the process, unless who started it made it ignore them, as `nohup` does.
pub(crate) fn ending_signals() -> SigSet {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let is_ignored = |signal: Signal| ignored >> (signal as i32 - 1) & 1 == 1;
    let ending = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    ending.into_iter().filter(|&signal| !is_ignored(signal)).collect()
}

fn lock() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}
