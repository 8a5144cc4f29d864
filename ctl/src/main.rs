//! `pfoctl`: status, plans and administration for `pfod` and `pfo-agent`, from the command line.
//!
//! No part of it needs to be root: the daemons decide who may do what.
#![forbid(unsafe_code)]

mod arguments;
mod budget;
mod calibrate;
mod cli;
mod clocks;
mod compare;
mod counter;
mod daemons;
mod doctor;
mod error;
mod exit;
mod explained;
mod failure;
mod fleet;
mod generate;
mod gpus;
mod grant;
mod help;
mod in_force;
mod journal;
mod kept_below;
mod lease;
mod maintenance;
mod memory_lock;
mod nvml;
mod observe;
mod outcome;
mod output;
mod own_job;
mod p2p;
mod plan;
mod planning;
mod policy;
mod profile;
mod progress;
mod reload;
mod report;
mod savings;
mod selftest;
mod signals;
mod since;
mod status;
mod straggler;
mod text;
mod top;
mod trial;
mod tune;
mod user;
mod waiting;

use std::io::Write;
use std::process::ExitCode;

use crate::error::Error;
use crate::exit::Exit;
use crate::explained::Explained;
use crate::output::Output;

fn main() -> ExitCode {
    let cli = cli::Cli::from_arguments();
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

/// Reports on standard error what is wrong and what to do about it. A reader that is gone changes
/// nothing about the exit code.
fn report(error: &Error) {
    let mut stderr = std::io::stderr().lock();
    let message = error.to_string();
    let _ = writeln!(stderr, "pfoctl: {}", text::harmless(&message));
    if let Some(remedy) = error.remedy() {
        for line in remedy.lines() {
            let _ = writeln!(stderr, "{}", text::harmless(line));
        }
    }
}
