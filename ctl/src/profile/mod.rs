//! `pfoctl profile`: has the agent measure a running job at one clock after the other, and hands
//! out the profiles that it stored, or what it saw of each instruction.

pub(crate) mod attend;
mod error;
mod sample_rows;
mod samples;
mod source;
mod start;
mod status;
pub(crate) mod stored;
pub(crate) mod sweep_bar;
mod wait;

use clap::{Args, Subcommand};
use pfo_protocol::{AgentRequest, AgentResponse, SweepControl};

pub(crate) use self::error::ProfileError;
pub(crate) use self::sample_rows::named as throttle_reasons;
use self::samples::Samples;
pub(crate) use self::source::{ProfileArguments, SweepArguments};
use self::start::Start;
use self::status::Status;
use self::stored::{Export, List};
use crate::arguments::JobArguments;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::Output;

/// What to do about profiles.
#[derive(Subcommand)]
pub(crate) enum Profile {
    Start(Start),
    Status(Status),
    /// Pause a sweep: the job runs at default clocks, and pfo-agent keeps what it has measured so far
    Pause(Control),
    /// Continue a sweep where it was paused
    Resume(Control),
    /// End a sweep and discard what it measured; the job continues at default clocks
    Stop {
        #[command(flatten)]
        control: Control,

        /// Store the profile of the clocks that were measured
        #[arg(long)]
        keep: bool,
    },
    List(List),
    Export(Export),
    Samples(Samples),
}

/// Which sweep.
#[derive(Args)]
pub(crate) struct Control {
    #[command(flatten)]
    job: JobArguments,

    /// Print the sweep as JSON, as `profile status --json` does
    #[arg(long)]
    json: bool,
}

impl Profile {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        match self {
            Self::Start(start) => start.run(daemons, output),
            Self::Status(status) => status.run(daemons, output),
            Self::Pause(control) => control.run(SweepControl::Pause, daemons, output),
            Self::Resume(control) => control.run(SweepControl::Resume, daemons, output),
            Self::Stop { control, keep: false } => control.run(SweepControl::Stop, daemons, output),
            Self::Stop { control, keep: true } => {
                control.run(SweepControl::Finish, daemons, output)
            }
            Self::List(list) => list.run(daemons, output),
            Self::Export(export) => export.run(daemons, output),
            Self::Samples(samples) => samples.run(daemons, output),
        }
    }
}

impl Control {
    fn run(
        &self,
        control: SweepControl,
        daemons: &Daemons,
        output: &mut Output,
    ) -> Result<(), Error> {
        let mut agent = daemons.agent()?;
        match agent.ask(AgentRequest::SweepControl { job: self.job.selector(), control })? {
            AgentResponse::Sweep(sweep) => status::print(&sweep, self.json, output),
            other => Err(agent.unexpected(&other).into()),
        }
    }
}
