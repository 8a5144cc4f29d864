//! `pfoctl profile`: has the daemon measure a running job at one clock after the other, and hands out
//! the profiles that it stored, or what it saw of each instruction.

pub(crate) mod attend;
mod sample_rows;
mod samples;
mod start;
mod status;
pub(crate) mod stored;
mod sweep_bar;
mod wait;

use clap::{Args, Subcommand};
use pfo_protocol::{Request, Response, SweepControl, SweepStatus};

use self::samples::Samples;
use self::start::Start;
use self::status::Status;
use self::stored::{Export, List};
use crate::connection::Connection;
use crate::error::Error;
use crate::job::JobArguments;
use crate::output::Output;
use crate::socket::Sockets;

/// What to do with profiles.
#[derive(Subcommand)]
pub(crate) enum Profile {
    Start(Start),
    Status(Status),
    /// Let the job run at default clocks for now; what was measured so far is kept
    Pause(Control),
    /// Go on where a sweep was paused
    Resume(Control),
    /// End a sweep and forget what it measured. The job goes on at default clocks
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

/// Whose sweep.
#[derive(Args)]
pub(crate) struct Control {
    #[command(flatten)]
    job: JobArguments,

    /// Print JSON: the sweep as `profile status --json` does
    #[arg(long)]
    json: bool,
}

impl Profile {
    /// Does what the arguments ask for.
    pub(crate) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        match self {
            Self::Start(start) => start.run(sockets, output),
            Self::Status(status) => status.run(sockets, output),
            Self::Pause(control) => control.run(SweepControl::Pause, sockets, output),
            Self::Resume(control) => control.run(SweepControl::Resume, sockets, output),
            Self::Stop { control, keep: false } => control.run(SweepControl::Stop, sockets, output),
            Self::Stop { control, keep: true } => {
                control.run(SweepControl::Finish, sockets, output)
            }
            Self::List(list) => list.run(sockets, output),
            Self::Export(export) => export.run(sockets, output),
            Self::Samples(samples) => samples.run(sockets, output),
        }
    }
}

impl Control {
    fn run(
        &self,
        control: SweepControl,
        sockets: &Sockets,
        output: &mut Output,
    ) -> Result<(), Error> {
        let mut connection = Connection::open(sockets)?;
        match connection.ask(Request::SweepControl { job: self.job.selector(), control })? {
            Response::Sweep(sweep) => print(&sweep, self.json, output),
            other => Err(connection.other_answer(&format!("{other:?}"))),
        }
    }
}

fn print(sweep: &SweepStatus, json: bool, output: &mut Output) -> Result<(), Error> {
    if json { output.json(sweep) } else { output.text(&(status::sentence(sweep) + "\n")) }
}
