//! The file that is being written and does not have its final name yet: a signal that ends the
//! process removes it first.
//!
//! SIGKILL leaves a file or directory with a name that begins with `.tmp`, but never an incomplete
//! one with the final name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::sys::signal::raise;

use crate::signals::{self, SignalError};

static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Makes something under a name that is not to stay. There is one such thing at a time.
pub(crate) fn begin<T>(
    make: impl FnOnce() -> io::Result<T>,
    path: impl FnOnce(&T) -> &Path,
) -> io::Result<T> {
    let mut unfinished = lock();
    let made = make()?;
    *unfinished = Some(path(&made).to_owned());
    Ok(made)
}

/// Adds to it. A signal waits until this is done, so it should not take long.
pub(crate) fn add<T>(write: impl FnOnce() -> T) -> T {
    let _unfinished = lock();
    write()
}

/// Gives it its name, or removes it.
pub(crate) fn end<T>(finish: impl FnOnce() -> T) -> T {
    let mut unfinished = lock();
    let finished = finish();
    *unfinished = None;
    finished
}

/// From here on nothing unfinished is left behind. Threads that start later take part; there must
/// not be any yet.
pub(crate) fn leave_nothing_behind() -> Result<(), SignalError> {
    let signals = signals::ending();
    signals::block(signals)?;
    thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        // Held to the end: from here on no file is begun or finished.
        let unfinished = lock();
        if let Some(path) = &*unfinished {
            let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
        }
        let _ = signals.thread_unblock().and_then(|()| raise(signal));
    });
    Ok(())
}

fn lock() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}
