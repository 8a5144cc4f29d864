//! `pfo-sim`: makes a simulated machine, shows it, and lets things go wrong on it.
//!
//! Exit codes: 0 done, 1 it could not be done, 2 the command line makes no sense.

mod args;
mod library_link;
mod profile;
mod show;
mod watch;

use std::path::Path;
use std::process::ExitCode;

use args::{Args, Command, DriverChange, FaultArgs, OnOff};
use clap::Parser;
use nvidia_ml::driver::Driver;
use nvidia_ml::error::SimError;
use nvidia_ml::fault::Fault;
use nvidia_ml::machine::MachinePlan;
use nvidia_ml::units::Milliwatts;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pfo-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), SimError> {
    let path = args.state.unwrap_or_else(nvidia_ml::state_path);
    match args.command {
        Command::Create(create) => MachinePlan::try_from(create)?.create(&path),
        Command::Show(options) => show::show(&Driver::open(&path)?, &options),
        Command::Watch(options) => watch::watch(&Driver::open(&path)?, &options),
        Command::Fault(fault) => inject(&path, &fault),
        Command::PowerCap { gpu, watts, off: _ } => {
            Driver::open(&path)?.gpu(gpu)?.cap_power(watts.map(Milliwatts::from_watts))
        }
        Command::Mig { gpu, mode } => {
            Driver::open(&path)?.gpu(gpu)?.set_mig(matches!(mode, OnOff::On))
        }
        Command::Driver { change } => Driver::open(&path)?.set_loaded(change == DriverChange::Load),
        Command::Reset => Driver::open(&path)?.reset(),
        Command::Profile(options) => profile::write(&options),
        Command::Link { directory } => library_link::make(&directory),
    }
}

fn inject(path: &Path, args: &FaultArgs) -> Result<(), SimError> {
    let driver = Driver::open(path)?;
    if args.clear {
        driver.clear_faults()?;
    }
    if let (Some(function), Some(kind)) = (args.function, args.kind) {
        driver.arm_fault(&Fault { function, kind, gpu: args.gpu, remaining: args.count })?;
    }
    Ok(())
}
