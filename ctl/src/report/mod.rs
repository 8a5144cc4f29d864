//! `pfoctl report`: what is known of a job, as one page for a browser.

mod html;
mod ledger;
mod observed;
mod page;
mod warnings;

use std::time::Duration;

use clap::Args;
use jiff::tz::TimeZone;
use pfo_planner::{Combine, Frontier, Noise, Plan, Profile, Schedule};
use pfo_protocol::{
    AgentRequest, AgentResponse, ClockTable, JobSelector, JobStatus, ProfileSelector, Request,
    Response,
};

pub(crate) use self::html::{element, escaped, figure, list, table};
use self::page::Known;
pub(crate) use self::page::html as document;
use crate::arguments::{JobArguments, number};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::Output;
use crate::planning::measured::Measured;
use crate::planning::pipeline::schedule;
use crate::planning::{clock_table, file, frontier_file};
use crate::profile::stored::described;
use crate::status::Both;
use crate::{journal, savings, user};

/// Write a page about a job: plan, savings, what limits them, and pictures
///
/// The page is one file without scripts, and asks no other place for anything. It says which figures
/// are measured and which are predicted, and what is not known. A plan's pictures require the
/// profile. The page of a job that has ended shows what the ledger of pfo-agent knows of it. Warnings
/// of both daemons are those of the journal, if this user may read it.
#[derive(Args)]
pub(crate) struct Report {
    #[command(flatten)]
    job: JobArguments,

    /// The profile over which the plan is replayed [default: that of the frontier or, without one,
    /// the stored profile of the model of that name]
    #[arg(long, value_name = "PROFILE.csv")]
    profile: Option<String>,

    /// The frontier to draw, as `plan optimize` writes it
    #[arg(long, value_name = "FRONTIER")]
    frontier: Option<String>,

    /// Schedule of the plan, if its order is not that of the frontier
    #[arg(long, value_name = "NAME", value_parser = schedule())]
    schedule: Option<Schedule>,

    /// For how many seconds to look at clocks and power of the job's GPUs; 0 leaves the picture out
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = number::whole(0..=3600))]
    observe: u32,

    /// The file to write
    #[arg(short, long, value_name = "REPORT.html")]
    output: String,
}

/// What the caller knows of a job beside the daemons.
#[derive(Default)]
pub(crate) struct Beside {
    pub(crate) frontier: Option<Frontier>,
    /// A profile, and what to call it.
    pub(crate) profile: Option<(Profile, String)>,
    pub(crate) schedule: Option<Schedule>,
    pub(crate) plan: Option<Plan>,
    /// What `tune` measured.
    pub(crate) tuned: Option<String>,
    /// For how long to look at the GPUs.
    pub(crate) observe: Duration,
}

impl Report {
    pub(crate) fn run(self, daemons: &Daemons, _output: &mut Output) -> Result<(), Error> {
        let frontier = self.frontier.as_deref().map(frontier_file::load).transpose()?;
        let read = |name: &String| -> Result<_, Error> {
            let measured = Measured::read(name, Combine::Mean, Noise::Off)?;
            Ok((measured.profile, file::shown(name).to_owned()))
        };
        let profile = self.profile.as_ref().map(read).transpose()?;
        let observe = Duration::from_secs(self.observe.into());
        let beside =
            Beside { frontier, profile, schedule: self.schedule, observe, ..Beside::default() };
        write(daemons, &self.job, beside, &self.output)
    }
}

/// Writes the page of a job.
pub(crate) fn write(
    daemons: &Daemons,
    arguments: &JobArguments,
    beside: Beside,
    name: &str,
) -> Result<(), Error> {
    let mut both = Both::ask(daemons)?;
    let of_job = |mut agent| savings::by_plan(&mut agent, arguments.selector());
    let ledger = daemons.agent().map_err(Error::from).and_then(of_job);
    let ledger = ledger.map_err(|error| error.to_string());
    let Some(job) = arguments.find(&both.pfod.jobs).cloned() else {
        let ended = ledger.ok().filter(|ledger| !ledger.rows.is_empty());
        let ended = ended.ok_or_else(|| arguments.missing())?;
        let uid = arguments.selector().uid.or_else(|| ended.rows.iter().find_map(|row| row.uid));
        let warned = journal::warnings(Some(&JobSelector { job: arguments.name().clone(), uid }));
        let warned = warnings::section(warned.as_deref(), &TimeZone::system());
        let page = page::ended(arguments.name(), &ended, warned, &user::name_of);
        return Ok(file::write(name, page.as_bytes())?);
    };
    both.keep_only(&job.job, Some(job.uid));
    let table = plan_in_force(daemons, &job)?;
    let profile = match (beside.profile, &beside.frontier) {
        (Some(profile), _) => Ok(profile),
        (None, Some(frontier)) => {
            Ok((frontier.pipeline().profile().clone(), "the frontier's profile".to_owned()))
        }
        (None, None) => stored_profile(daemons, &job).map_err(|error| error.to_string()),
    };
    let plan = beside
        .plan
        .or_else(|| Some(plan_of(table.as_ref()?, beside.schedule, beside.frontier.as_ref())));
    let observed = observed::observe(daemons, (&job.job, job.uid), beside.observe);
    let of_job = JobSelector { job: job.job.clone(), uid: Some(job.uid) };
    let warned = journal::warnings(Some(&of_job));
    let page = page::page(&Known {
        warnings: warnings::section(warned.as_deref(), &TimeZone::system()),
        observed: &observed.unwrap_or_default(),
        ledger: ledger.as_ref().map_err(|why| &**why),
        both: &both,
        job: &job,
        user: &user::name_of,
        table: table.as_ref(),
        plan: plan.as_ref(),
        profile: profile.as_ref().map(|(profile, name)| (profile, &**name)).map_err(|why| &**why),
        frontier: beside.frontier.as_ref(),
        tuned: beside.tuned.as_deref(),
    });
    Ok(file::write(name, page.as_bytes())?)
}

/// The clocks of the plan, with the pipeline of the frontier, as far as there is one.
fn plan_of(table: &ClockTable, schedule: Option<Schedule>, frontier: Option<&Frontier>) -> Plan {
    let known = frontier.map(|frontier| frontier.pipeline().schedule());
    let schedule = schedule.or(known).unwrap_or(Schedule::OneForwardOneBackward);
    let mut plan = clock_table::plan(table, schedule);
    if let Some(frontier) = frontier {
        plan.gpu.clone_from(&frontier.gpu);
        plan.p2p_blocking_power_w = Some(frontier.p2p_power().clone());
    }
    plan
}

fn plan_in_force(daemons: &Daemons, job: &JobStatus) -> Result<Option<ClockTable>, Error> {
    let selector = JobSelector { job: job.job.clone(), uid: Some(job.uid) };
    let mut pfod = daemons.pfod()?;
    match pfod.ask(Request::PlanRead(selector))? {
        Response::Plan(table) => Ok(table),
        other => Err(pfod.unexpected(&other).into()),
    }
}

fn stored_profile(daemons: &Daemons, job: &JobStatus) -> Result<(Profile, String), Error> {
    let (model, uid) = (job.job.clone(), Some(job.uid));
    let selector = ProfileSelector { model, uid, gpus: None, partition: None };
    let mut agent = daemons.agent()?;
    match agent.ask(AgentRequest::ProfileRead(selector))? {
        AgentResponse::Profile { profile, csv } => {
            let name = described(&profile.key);
            Ok((Measured::of(&csv, &name, Combine::Mean, Noise::Off)?.profile, name))
        }
        other => Err(agent.unexpected(&other).into()),
    }
}

#[cfg(test)]
mod tests;
