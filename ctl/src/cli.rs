//! The command line: which commands there are. What each one takes is declared beside it.

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::budget::Budget;
use crate::calibrate::Gpu;
use crate::clocks::Clocks;
use crate::compare::Compare;
use crate::daemons::{self, Daemons};
use crate::doctor::Doctor;
use crate::error::Error;
use crate::exit;
use crate::fleet::Fleet;
use crate::generate::Generate;
use crate::gpus::Gpus;
use crate::grant::{Grant, RevokeGrant};
use crate::help::with_tables;
use crate::lease::Lease;
use crate::maintenance::{Drain, Driver, undrain};
use crate::observe::Observe;
use crate::output::Output;
use crate::p2p::P2p;
use crate::plan::MakePlan;
use crate::plan::first;
use crate::plan::guard::Guard;
use crate::plan::load::Load;
use crate::plan::swap::{Rollback, Swap};
use crate::plan::sweep::Sweep;
use crate::policy::Policy;
use crate::profile::Profile;
use crate::reload::Reload;
use crate::report::Report;
use crate::savings::SavingsCommand;
use crate::selftest::Selftest;
use crate::status::StatusCommand;
use crate::straggler::JobCommand;
use crate::top::Top;
use crate::tune::Tune;

/// Show status, measure profiles, make and swap plans, and reset GPU clocks
#[derive(Parser)]
#[command(name = "pfoctl", version, propagate_version = true, after_help = after_help())]
pub(crate) struct Cli {
    /// Reach pfod at this socket only, and pfo-agent beside it
    #[arg(long, global = true, value_name = "PATH", help_heading = "Sockets")]
    socket: Option<PathBuf>,

    /// Reach pfo-agent at this socket only
    #[arg(long, global = true, value_name = "PATH", help_heading = "Sockets")]
    agent_socket: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Status(StatusCommand),
    Top(Top),
    /// Make plans, and swap the plan of a running job
    #[command(subcommand)]
    Plan(Plan),
    /// Declare or clear a straggler for a running job
    #[command(subcommand)]
    Job(JobCommand),
    /// Measure time and energy of the instructions of a running job at each clock
    #[command(subcommand)]
    Profile(Profile),
    Tune(Box<Tune>),
    #[command(subcommand)]
    Compare(Compare),
    Report(Report),
    Observe(Observe),
    /// Measure, show and set P2P-blocking power: what GPUs draw while they wait for each other
    #[command(subcommand)]
    P2p(P2p),
    /// Reset clocks that pfo locked
    #[command(subcommand)]
    Clocks(Clocks),
    Savings(SavingsCommand),
    Doctor(Doctor),
    Selftest(Selftest),
    /// List, revoke and allow leases
    #[command(subcommand)]
    Lease(Lease),
    /// Explain who may lease which GPUs
    #[command(subcommand)]
    Policy(Policy),
    Grant(Grant),
    RevokeGrant(RevokeGrant),
    Reload(Reload),
    Drain(Drain),
    /// Grant leases on this node again, and load the driver if pfod released it
    ///
    /// For administrators.
    Undrain,
    #[command(subcommand)]
    Driver(Driver),
    Gpus(Gpus),
    /// Measure and show how GPUs change their clocks
    #[command(subcommand)]
    Gpu(Gpu),
    #[command(subcommand)]
    Budget(Budget),
    #[command(subcommand)]
    Fleet(Fleet),
    #[command(subcommand, hide = true)]
    Generate(Generate),
}

#[derive(Subcommand)]
enum Plan {
    #[command(flatten)]
    Make(Box<MakePlan>),
    Load(Load),
    List(first::List),
    Drop(first::Drop),
    Swap(Swap),
    Rollback(Rollback),
    Guard(Guard),
    Sweep(Sweep),
}

fn after_help() -> String {
    format!("{}\n\n{}", exit::HELP, daemons::HELP)
}

impl Cli {
    /// The arguments of this process; ends it where they are wrong or help was asked for.
    pub(crate) fn from_arguments() -> Self {
        let matches = with_tables(Self::command()).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let daemons = Daemons::from_environment(self.socket, self.agent_socket);
        match self.command {
            Command::Status(status) => status.run(&daemons, output),
            Command::Top(top) => top.run(&daemons),
            Command::Plan(Plan::Make(make)) => make.run(&daemons, output),
            Command::Plan(Plan::Load(load)) => load.run(&daemons, output),
            Command::Plan(Plan::List(list)) => list.run(&daemons, output),
            Command::Plan(Plan::Drop(drop)) => drop.run(&daemons, output),
            Command::Plan(Plan::Swap(swap)) => swap.run(&daemons, output),
            Command::Plan(Plan::Rollback(rollback)) => rollback.run(&daemons, output),
            Command::Plan(Plan::Guard(guard)) => guard.run(&daemons, output),
            Command::Plan(Plan::Sweep(sweep)) => sweep.run(&daemons, output),
            Command::Job(job) => job.run(&daemons, output),
            Command::Profile(profile) => profile.run(&daemons, output),
            Command::Tune(tune) => tune.run(&daemons, output),
            Command::Compare(compare) => compare.run(&daemons, output),
            Command::Report(report) => report.run(&daemons, output),
            Command::Observe(observe) => observe.run(output),
            Command::P2p(p2p) => p2p.run(&daemons, output),
            Command::Clocks(clocks) => clocks.run(&daemons, output),
            Command::Savings(savings) => savings.run(&daemons, output),
            Command::Doctor(doctor) => doctor.run(&daemons, output),
            Command::Selftest(selftest) => selftest.run(&daemons, output),
            Command::Lease(lease) => lease.run(&daemons, output),
            Command::Policy(policy) => policy.run(&daemons, output),
            Command::Grant(grant) => grant.run(&daemons, output),
            Command::RevokeGrant(revoke) => revoke.run(&daemons, output),
            Command::Reload(reload) => reload.run(&daemons, output),
            Command::Drain(drain) => drain.run(&daemons, output),
            Command::Undrain => undrain(&daemons, output),
            Command::Driver(driver) => driver.run(&daemons, output),
            Command::Gpus(gpus) => gpus.run(&daemons, output),
            Command::Gpu(gpu) => gpu.run(&daemons, output),
            Command::Budget(budget) => budget.run(&daemons, output),
            Command::Fleet(fleet) => fleet.run(&daemons, output),
            Command::Generate(generate) => Ok(generate.run(with_tables(Self::command()))?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_declaration_of_the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
