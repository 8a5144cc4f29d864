//! `pfoctl job straggler`: slows a job down to a straggler that it waits for anyway.

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use pfo_planner::Straggler;
use pfo_protocol::{AgentRequest, AgentResponse};

use crate::arguments::JobArguments;
use crate::daemons::{Agent, Connection, Daemons};
use crate::error::Error;
use crate::fleet;
use crate::output::Output;
use crate::plan::swap::AnswerArguments;
use crate::text::harmless;

/// What to change about a job.
#[derive(Subcommand)]
pub(crate) enum JobCommand {
    Straggler(StragglerCommand),
}

/// Run the plan of the loaded frontier that is as slow as a straggler
///
/// Pipelines that train together wait for the slowest at the end of each step; the others lose
/// nothing if they are as slow. The frontier is the one that `pfoctl plan load` loaded. Every rank
/// changes at the same step.
///
/// With --auto, pfo-agent finds stragglers within the job. While the instructions of a rank take longer
/// than in the profile, or steps have drifted because instructions take less, the job runs a plan that
/// pfo-agent makes from what is measured now: a slow rank gets higher clocks where these get time back,
/// and the other stages slow down to its pace. The next such plan comes 10 seconds later at the earliest,
/// and each further pause is twice as long, up to 15 minutes. If a step is too large to plan it in
/// seconds, pfo-agent takes a plan of the frontier, and says so in the journal.
///
/// A job with ranks on several nodes of a fleet changes on all of them. Each node finds its own slow ranks.
/// The node where you run this command responds to them or, when it has left the job, the node with rank 0.
/// The frontier may be loaded on any of the nodes.
#[derive(Args)]
#[command(
    group(ArgGroup::new("change").required(true).args(["slowdown", "clear", "auto"])),
    override_usage = "pfoctl job straggler [OPTIONS] <JOB> <FACTOR|--clear|--auto [<on|off>]>"
)]
pub(crate) struct StragglerCommand {
    #[command(flatten)]
    job: JobArguments,

    /// Iteration time of the straggler, as a factor of the fastest iteration, such as 1.2
    #[arg(value_name = "FACTOR", allow_negative_numbers = true)]
    slowdown: Option<Straggler>,

    /// End it: return to what ran before the straggler
    #[arg(long)]
    clear: bool,

    /// Have pfo-agent respond to slow ranks by itself, or stop that
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
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let Self::Straggler(StragglerCommand { job, slowdown, clear: _, auto, answer }) = self;
        let whole = fleet::of_whole_job(daemons, &job);
        let is_whole = whole.is_some();
        let mut agent = whole.map_or_else(|| daemons.agent(), Ok)?;
        if let Some(auto) = auto {
            return set_auto((&mut agent, is_whole), &job, auto == Auto::On, &answer, output);
        }
        let request = AgentRequest::Straggler {
            job: job.selector(),
            slowdown: slowdown.map(Straggler::factor),
            wait: answer.wait(),
        };
        let response = match is_whole {
            true => fleet::ask(&mut agent, &job, request)?,
            false => answer.wait_for(&mut agent, request, job.name())?,
        };
        fleet::print((daemons, &agent), &job, response, &answer, output)
    }
}

fn set_auto(
    (agent, is_whole): (&mut Connection<Agent>, bool),
    job: &JobArguments,
    on: bool,
    answer: &AnswerArguments,
    output: &mut Output,
) -> Result<(), Error> {
    let request = AgentRequest::StragglerAuto { job: job.selector(), on };
    let answered = match is_whole {
        true => fleet::ask(agent, job, request)?,
        false => agent.ask(request)?,
    };
    let frontier = match answered {
        AgentResponse::Frontier(frontier) => frontier,
        other => return Err(agent.unexpected(&other).into()),
    };
    if answer.json() {
        return output.json(&frontier);
    }
    let what = if on { "responds" } else { "does not respond" };
    let line = format!("job {}: pfo-agent {what} to slow ranks by itself", job.name());
    output.text(&format!("{}\n", harmless(&line)))
}
