//! The agent of pfo.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use pfo_agent::{Arguments, MESSAGE_IDS};
use pfo_service::{begin_log, report_panics};

/// The configuration is wrong (`EX_CONFIG` of sysexits.h).
const CONFIG: u8 = 78;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match arguments.source.read() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("pfo-agent: {error}");
            return CONFIG.into();
        }
    };
    if arguments.check_config {
        if let Err(why) = pfo_agent::check_names(&config) {
            eprintln!("pfo-agent: {why}");
            return CONFIG.into();
        }
        let _ = writeln!(io::stdout(), "{}", arguments.source.found());
        return ExitCode::SUCCESS;
    }
    begin_log("pfo-agent", MESSAGE_IDS);
    report_panics();
    match pfo_agent::run(arguments.source, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
