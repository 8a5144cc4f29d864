//! The root daemon of pfo.

use std::process::ExitCode;

use clap::Parser;
use pfod::cli::Arguments;
use pfod::daemon::{self, DaemonError};
use pfod::log;

/// Some clocks could not be reached (`EX_UNAVAILABLE` of sysexits.h).
const UNAVAILABLE: u8 = 69;

/// The configuration is wrong (`EX_CONFIG` of sysexits.h).
const CONFIG: u8 = 78;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match arguments.source.read() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("pfod: {error}");
            return CONFIG.into();
        }
    };
    if arguments.check_config {
        return ExitCode::SUCCESS;
    }
    abort_on_panic();
    log::begin();
    let result = if arguments.restore_only {
        daemon::restore_only(arguments.source, config)
    } else {
        daemon::run(arguments.source, config)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            match error {
                DaemonError::StillLocked(_) => UNAVAILABLE.into(),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// In every build: the runtime would live on as a ghost of a daemon whose rank thread is gone, while
/// an aborted daemon is restarted and cleans up.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}
