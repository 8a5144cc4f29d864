//! `pfoctl plan load`: hands a plan to `pfod`, or a frontier to the agent, to check it against a
//! job and keep it; with `--for`, a plan to the agent for a job that need not be there.
//!
//! A file is read and checked here first, so that a mistake in it is reported with the file's name
//! and before anything is sent.

use clap::Args;
use pfo_planner::Frontier;
use pfo_protocol::{
    AgentRequest, AgentResponse, FrontierStatus, LARGEST_PAYLOAD, Request, Response,
};

use super::first;
use crate::arguments::JobArguments;
use crate::daemons::{Connection, Daemons, Pfod};
use crate::error::Error;
use crate::failure::Failure;
use crate::output::Output;
use crate::planning::file;
use crate::planning::plan_file::{LabelArguments, LabelledPlan};
use crate::status::plan_text::{described, described_frontier};
use crate::text::harmless;

/// The largest frontier that is sent, in bytes. What else is in the request takes far less than the
/// difference: a job's name and a label.
pub(crate) const LARGEST_FRONTIER: u64 = LARGEST_PAYLOAD as u64 - 4096;

/// Check a plan against a running job and keep it for `plan swap`, or a frontier for `job
/// straggler`
///
/// With --for, pfo-agent keeps a plan for a job that need not run yet: the job begins with the plan at its
/// first step, on every rank, and so does each later run of the same name. pfo-agent keeps the plan over
/// restarts and boots, until you load another one or run `pfoctl plan drop`. A job that returns within a
/// minute continues with what it ran. If the plan does not fit the job that begins, `pfoctl status` and the
/// journal name the first difference, and the job trains at default clocks. The plan has no guard: `pfoctl
/// plan guard` sets one when the job runs.
///
/// In a fleet, load the plan on every node of the job. If only some nodes have it, all nodes change to it in
/// one swap, as soon as every node takes part.
#[derive(Args)]
pub(crate) struct Load {
    #[command(flatten)]
    job: JobArguments,

    /// The plan, pfo-plan/1 JSON as `pfoctl plan export` writes it, or the frontier, as
    /// `pfoctl plan optimize` does; - reads standard input
    #[arg(value_name = "PLAN.json|FRONTIER")]
    plan: String,

    /// Keep the plan for this job, which begins with it whenever it starts
    #[arg(long = "for")]
    first: bool,

    #[command(flatten)]
    label: LabelArguments,

    /// Print the status of the plan or the frontier as JSON
    #[arg(long)]
    json: bool,
}

impl Load {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let bytes = file::read(&self.plan)?;
        if self.first {
            let kept = first::keep(&self.job, self.label.plan(&self.plan, &bytes)?, daemons)?;
            return match self.json {
                true => output.json(&kept),
                false => output.text(&format!("{}\n", harmless(&first::sentence(&kept)))),
            };
        }
        if Frontier::is_likely(&bytes) {
            return self.load_frontier(bytes, daemons, output);
        }
        let plan = self.label.plan(&self.plan, &bytes)?;
        let loaded = load(plan, &self.job, &mut daemons.pfod()?)?;
        if self.json {
            return output.json(&loaded);
        }
        let job = self.job.name();
        let plan = described(&loaded);
        let line = format!("job {job}: {plan} is loaded; `pfoctl plan swap {job}` swaps to it");
        output.text(&format!("{}\n", harmless(&line)))
    }

    fn load_frontier(
        &self,
        frontier: Vec<u8>,
        daemons: &Daemons,
        output: &mut Output,
    ) -> Result<(), Error> {
        if frontier.len() as u64 > LARGEST_FRONTIER {
            let name = file::shown(&self.plan).to_owned();
            return Err(Failure::TooLarge { name, limit: LARGEST_FRONTIER }.into());
        }
        Frontier::from_bytes(&frontier).map_err(Failure::bad_file(&self.plan))?;
        let loaded = load_frontier(daemons, &self.job, self.label.of(&self.plan), frontier)?;
        if self.json {
            return output.json(&loaded);
        }
        let job = self.job.name();
        let frontier = described_frontier(&loaded);
        let line = format!("job {job}: {frontier} is loaded; `pfoctl job straggler {job}` uses it");
        output.text(&format!("{}\n", harmless(&line)))
    }
}

/// Has the agent check a frontier against a job and keep it.
pub(crate) fn load_frontier(
    daemons: &Daemons,
    job: &JobArguments,
    label: String,
    frontier: Vec<u8>,
) -> Result<FrontierStatus, Error> {
    let mut agent = daemons.agent()?;
    match agent.ask(AgentRequest::FrontierLoad { job: job.selector(), label, frontier })? {
        AgentResponse::Frontier(loaded) => Ok(loaded),
        other => Err(agent.unexpected(&other).into()),
    }
}

/// Has `pfod` check a plan against a job and keep it.
pub(super) fn load(
    plan: LabelledPlan,
    job: &JobArguments,
    pfod: &mut Connection<Pfod>,
) -> Result<pfo_protocol::PlanStatus, Error> {
    let LabelledPlan { label, table } = plan;
    match pfod.ask(Request::PlanLoad { job: job.selector(), label, table })? {
        Response::Loaded(plan) => Ok(plan),
        other => Err(pfod.unexpected(&other).into()),
    }
}
