//! The command line: which commands there are. What each one takes is declared beside it.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::clocks::Clocks;
use crate::doctor::Doctor;
use crate::error::Error;
use crate::exit;
use crate::generate::Generate;
use crate::gpus::Gpus;
use crate::lease::Lease;
use crate::output::Output;
use crate::p2p::P2p;
use crate::plan::MakePlan;
use crate::plan::load::Load;
use crate::plan::swap::{Rollback, Swap};
use crate::plan::sweep::Sweep;
use crate::policy::Policy;
use crate::profile::Profile;
use crate::reload::Reload;
use crate::socket::{self, Sockets};
use crate::status::StatusCommand;
use crate::straggler::JobCommand;
use crate::tune::Tune;

/// Look at pfod, make and swap plans, and free GPU clocks
#[derive(Parser)]
#[command(name = "pfoctl", version, propagate_version = true, after_help = after_help())]
pub(crate) struct Cli {
    /// Talk to the daemon at this socket and no other
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Status(StatusCommand),
    /// Make plans, and change what a running job runs
    #[command(subcommand)]
    Plan(Plan),
    /// Tell a running job what it has to reckon with
    #[command(subcommand)]
    Job(JobCommand),
    /// Measure what instructions take at each clock, on a running job
    #[command(subcommand)]
    Profile(Profile),
    Tune(Tune),
    /// Measure and look up what GPUs draw while they wait for each other
    #[command(subcommand)]
    P2p(P2p),
    /// Look after clocks that pfo locked
    #[command(subcommand)]
    Clocks(Clocks),
    Doctor(Doctor),
    /// See who holds which GPU, and take leases back
    #[command(subcommand)]
    Lease(Lease),
    /// Find out who may lease which GPUs
    #[command(subcommand)]
    Policy(Policy),
    Reload(Reload),
    Gpus(Gpus),
    #[command(subcommand, hide = true)]
    Generate(Generate),
}

#[derive(Subcommand)]
enum Plan {
    #[command(flatten)]
    Make(MakePlan),
    Load(Load),
    Swap(Swap),
    Rollback(Rollback),
    Sweep(Sweep),
}

fn after_help() -> String {
    format!("{}\n\n{}", exit::HELP, socket::HELP)
}

impl Cli {
    /// Does what the arguments ask for.
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let sockets = Sockets::from_environment(self.socket);
        match self.command {
            Command::Status(status) => status.run(&sockets, output),
            Command::Plan(Plan::Make(make)) => make.run(&sockets, output),
            Command::Plan(Plan::Load(load)) => load.run(&sockets, output),
            Command::Plan(Plan::Swap(swap)) => swap.run(&sockets, output),
            Command::Plan(Plan::Rollback(rollback)) => rollback.run(&sockets, output),
            Command::Plan(Plan::Sweep(sweep)) => sweep.run(&sockets, output),
            Command::Job(job) => job.run(&sockets, output),
            Command::Profile(profile) => profile.run(&sockets, output),
            Command::Tune(tune) => tune.run(&sockets, output),
            Command::P2p(p2p) => p2p.run(&sockets, output),
            Command::Clocks(clocks) => clocks.run(&sockets, output),
            Command::Doctor(doctor) => doctor.run(&sockets, output),
            Command::Lease(lease) => lease.run(&sockets, output),
            Command::Policy(policy) => policy.run(&sockets, output),
            Command::Reload(reload) => reload.run(&sockets, output),
            Command::Gpus(gpus) => gpus.run(&sockets, output),
            Command::Generate(generate) => generate.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Cli::command().debug_assert();
    }
}
