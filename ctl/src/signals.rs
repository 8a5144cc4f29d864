//! The signals that end this process, taken by a thread instead of a handler: it obeys no handler's
//! restrictions.

use std::{fs, io};

use nix::sys::signal::{SigSet, Signal};

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
#[error("cannot wait for Ctrl-C: {0}")]
pub(crate) struct SignalError(#[from] io::Error);

impl Explained for SignalError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }

    fn remedy(&self) -> Option<String> {
        None
    }
}

/// Those that end the process, without the ones that it was started to ignore, as `nohup` does.
pub(crate) fn ending() -> SigSet {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let is_ignored = |signal: Signal| ignored >> (signal as i32 - 1) & 1 == 1;
    let ending = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    ending.into_iter().filter(|&signal| !is_ignored(signal)).collect()
}

/// Leaves these signals to a thread that waits for them. Threads that start later inherit this;
/// there must not be any yet.
pub(crate) fn block(signals: SigSet) -> Result<(), SignalError> {
    signals.thread_block().map_err(|error| SignalError(error.into()))
}
