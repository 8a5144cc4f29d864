//! `pfoctl job straggler`: lets a job take the time of a straggler that it has to wait for anyway.

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use pfo_planner::Straggler;
use pfo_protocol::{Request, Response};

use crate::connection::Connection;
use crate::error::Error;
use crate::job::JobArguments;
use crate::output::Output;
use crate::plan::swap::AnswerArguments;
use crate::socket::Sockets;
use crate::text::harmless;

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
///
/// With --auto the daemon finds stragglers within the job: where the instructions of a rank take longer
/// than was profiled for several steps, the other stages take its time until that is over.
#[derive(Args)]
#[command(group(ArgGroup::new("change").required(true).args(["slowdown", "clear", "auto"])))]
pub(crate) struct StragglerCommand {
    #[command(flatten)]
    job: JobArguments,

    /// How many times the fastest iteration the straggler's takes, such as 1.2
    #[arg(value_name = "FACTOR", allow_negative_numbers = true)]
    slowdown: Option<Straggler>,

    /// It is over: run again what ran before it
    #[arg(long)]
    clear: bool,

    /// Have the daemon answer slow ranks by itself, or not any more
    #[arg(long, value_enum, value_name = "on|off", num_args = 0..=1, default_missing_value = "on",
          hide_possible_values = true, conflicts_with = "wait")]
    auto: Option<Auto>,

    #[command(flatten)]
    answer: AnswerArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Auto {
    On,
    Off,
}

impl JobCommand {
    /// Does what the arguments ask for.
    pub(crate) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let Self::Straggler(StragglerCommand { job, slowdown, clear: _, auto, answer }) = self;
        let mut connection = Connection::open(sockets)?;
        if let Some(auto) = auto {
            return set_auto(&mut connection, &job, auto == Auto::On, &answer, output);
        }
        let request = Request::Straggler {
            job: job.selector(),
            slowdown: slowdown.map(Straggler::factor),
            wait: answer.wait(),
        };
        answer.ask(&mut connection, &job, request, output)
    }
}

fn set_auto(
    connection: &mut Connection,
    job: &JobArguments,
    on: bool,
    answer: &AnswerArguments,
    output: &mut Output,
) -> Result<(), Error> {
    let request = Request::StragglerAuto { job: job.selector(), on };
    let frontier = match connection.ask(request)? {
        Response::Frontier(frontier) => frontier,
        other => return Err(connection.other_answer(&format!("{other:?}"))),
    };
    if answer.json() {
        return output.json(&frontier);
    }
    let what = if on { "answers" } else { "does not answer" };
    let line = format!("job {}: the daemon {what} slow ranks by itself", job.name());
    output.text(&format!("{}\n", harmless(&line)))
}
