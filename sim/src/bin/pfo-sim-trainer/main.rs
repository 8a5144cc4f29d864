//! `pfo-sim-trainer`: a pipeline-parallel training whose GPUs are simulated and whose rest is real:
//! processes, sockets between stages, and the shim that every trainer links.
//!
//! Exit codes: 0 all ranks trained until their end or were asked to stop, 1 one of them did not, 2
//! the command line makes no sense.

mod args;
mod computation;
mod compute;
mod error;
mod identity;
mod inherited;
mod launcher;
mod misbehaviour;
mod neighbours;
mod p2p;
mod rank;
mod rank_report;
mod report;
mod schedule;
mod settings;
mod socket;
mod stop;
mod tcp;

use std::process::ExitCode;

use args::{Args, Command};
use clap::Parser;

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Launch(launch) => launcher::launch(*launch),
        Command::P2p(args) => p2p::wait(&args),
        Command::Compute(args) => compute::run(&args),
        Command::Rank { settings } => rank::run(&settings).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pfo-sim-trainer: {error}");
            ExitCode::FAILURE
        }
    }
}
