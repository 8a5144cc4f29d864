//! `pfoctl`: status, plans and administration for `pfod`, from the command line.
//!
//! Here it is only told which part does what; no part of it needs to be root.
#![forbid(unsafe_code)]

mod cli;
mod clocks;
mod connection;
mod doctor;
mod error;
mod exit;
mod generate;
mod gpus;
mod job;
mod lease;
mod output;
mod p2p;
mod plan;
mod policy;
mod profile;
mod progress;
mod reload;
mod socket;
mod status;
mod straggler;
mod text;
mod trial;
mod tune;
mod user;
mod waiting;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::error::Error;
use crate::exit::Exit;
use crate::output::Output;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match cli.run(&mut Output::stdout()) {
        Ok(()) => Exit::Done,
        Err(error) => {
            if error.exit() != Exit::Done {
                report(&error);
            }
            error.exit()
        }
    }
    .into()
}

/// Tells on standard error what went wrong and what to do. That nobody may be reading it is no
/// reason to fail differently.
fn report(error: &Error) {
    let mut stderr = std::io::stderr().lock();
    let message = error.to_string();
    let _ = writeln!(stderr, "pfoctl: {}", text::harmless(&message));
    if let Some(remedy) = error.remedy() {
        let _ = writeln!(stderr, "{}", text::harmless(&remedy));
    }
}
