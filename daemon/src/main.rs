//! The root daemon of pfo.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use pfo_service::{begin_log, report_panics};
use pfod::{Arguments, DaemonError, MESSAGE_IDS, resolved, restore_only, run};

/// Some clocks could not be reached (`EX_UNAVAILABLE` of sysexits.h).
const UNAVAILABLE: u8 = 69;

/// The configuration is wrong (`EX_CONFIG` of sysexits.h).
const CONFIG: u8 = 78;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // The last resort needs only the ledger: a typing error must not leave clocks locked.
    let config = if arguments.restore_only {
        Ok(arguments.source.for_restore())
    } else {
        arguments.source.read()
    };
    let Ok(config) = config.map_err(|error| eprintln!("pfod: {error}")) else {
        return CONFIG.into();
    };
    if arguments.check_config {
        let found = config.found();
        let checked = resolved(config).map(|_| writeln!(io::stdout(), "{found}"));
        let is_right = checked.map_err(|why| eprintln!("pfod: {why}")).is_ok();
        return if is_right { ExitCode::SUCCESS } else { CONFIG.into() };
    }
    begin_log("pfod", &MESSAGE_IDS);
    report_panics();
    let result = if arguments.restore_only {
        restore_only(arguments.source, config)
    } else {
        run(arguments.source, config)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            match error {
                DaemonError::StillLocked(_) | DaemonError::LedgerLost(_) => UNAVAILABLE.into(),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
