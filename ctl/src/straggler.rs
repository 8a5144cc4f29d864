//! `pfoctl job straggler`: lets a job take the time of a straggler that it has to wait for anyway.

use clap::{ArgGroup, Args, Subcommand};
use pfo_planner::Straggler;
use pfo_protocol::Request;

use crate::connection::Connection;
use crate::error::Error;
use crate::job::JobArguments;
use crate::output::Output;
use crate::plan::swap::AnswerArguments;
use crate::socket::Sockets;

/// What to tell a job.
#[derive(Subcommand)]
pub(crate) enum JobCommand {
    Straggler(StragglerCommand),
}

/// Run the plan of the loaded frontier that takes a straggler's time
///
/// Pipelines that train together wait for the slowest at the end of each step; the others lose nothing
/// by taking its time. The frontier is what `pfoctl plan load` handed over. Every rank changes at the
/// same step.
#[derive(Args)]
#[command(group(ArgGroup::new("change").required(true).args(["slowdown", "clear"])))]
pub(crate) struct StragglerCommand {
    #[command(flatten)]
    job: JobArguments,

    /// How many times the fastest iteration the straggler's takes, such as 1.2
    #[arg(value_name = "FACTOR", allow_negative_numbers = true)]
    slowdown: Option<Straggler>,

    /// It is over: run again what ran before it
    #[arg(long)]
    clear: bool,

    #[command(flatten)]
    answer: AnswerArguments,
}

impl JobCommand {
    /// Does what the arguments ask for.
    pub(crate) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let Self::Straggler(StragglerCommand { job, slowdown, clear: _, answer }) = self;
        let mut connection = Connection::open(sockets)?;
        let request = Request::Straggler {
            job: job.selector(),
            slowdown: slowdown.map(Straggler::factor),
            wait: answer.wait(),
        };
        answer.ask(&mut connection, &job, request, output)
    }
}
