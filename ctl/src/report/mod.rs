//! `pfoctl report`: what is known of a job, as one page for a browser.

mod gathered;
mod headline;
mod html;
mod ledger;
mod limits;
mod observed;
mod page;
mod pictures;
mod tables;
mod warnings;

use std::time::Duration;

use clap::Args;
use jiff::tz::TimeZone;
use pfo_experiment::Report as Tuned;
use pfo_planner::{Combine, Frontier, Noise, Plan, Profile, Schedule};
use pfo_protocol::{
    ClockTable, JobSelector, JobStatus, Request, Response, SavingsBy, SavingsReport,
};

pub(crate) use self::html::escaped;
pub(crate) use self::html::{element, figure, headline, list, table, tiles};
pub(crate) use self::page::html as document;
use self::page::{Known, Written};
use crate::arguments::{JobArguments, number};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::lease::now_unix_s;
use crate::output::Output;
use crate::planning::measured::Measured;
use crate::planning::pipeline::schedule;
use crate::planning::{clock_table, file, frontier_file};
use crate::since::minute;
use crate::status::Both;
use crate::{journal, savings, user};

/// Write a page about a job: what it saves, a step before and after, the frontier, and what limits it
///
/// The page is one file without scripts, and loads nothing from elsewhere. It begins with the saving that
/// the ledger of pfo-agent proves, in kWh and money, or says that nothing is certain yet. It says which
/// figures are measured and which are predicted, and ends with the figures that are missing, and why. The
/// pictures of a plan require a profile. For a job that has ended, the page shows what the ledger has of
/// it. The page includes warnings of both daemons if this user may read the journal.
#[derive(Args)]
pub(crate) struct Report {
    #[command(flatten)]
    job: JobArguments,

    /// The profile over which the plan is replayed [default: that of the frontier or, without one,
    /// the stored profile of the model of that name]
    #[arg(long, value_name = "PROFILE.csv")]
    profile: Option<String>,

    /// The frontier to draw, as `plan optimize` writes it [default: that of the last tune, or of
    /// `plan load`]
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
    pub(crate) tuned: Option<Tuned>,
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
    let written = Written { host: savings::host(), at: minute(now_unix_s(), &TimeZone::system()) };
    let found = arguments.only(&both.pfod.jobs)?.cloned();
    let job = found.as_ref().map_or_else(|| arguments.selector(), gathered::selector);
    let ledger = saved(daemons, &job, SavingsBy::Plan).map_err(|error| error.to_string());
    let days = saved(daemons, &job, SavingsBy::Day).ok();
    let Some(mut job) = found else {
        let ended = ledger.ok().filter(|ledger| !ledger.rows.is_empty());
        let ended = ended.ok_or_else(|| arguments.missing())?;
        let saved = (&ended, days.as_ref());
        let warnings = warned(&job);
        let page = page::ended(arguments.name(), saved, (&written, warnings), &user::name_of);
        return Ok(file::write(name, page.as_bytes())?);
    };
    both.keep_only(&job.job, Some(job.uid));
    let table = plan_in_force(daemons, &job)?;
    let Beside { frontier, profile, plan, schedule, tuned, observe } = beside;
    let found = gathered::tuned(daemons, &job).unwrap_or_default();
    let tuned = tuned.or(found.report);
    let frontier = frontier.map_or_else(|| gathered::frontier(daemons, &job), Ok);
    let frontier = frontier.or_else(|why| found.frontier.ok_or(why.to_string()));
    let known = frontier.as_ref().ok();
    let profile = match (profile, known) {
        (Some(profile), _) => Ok(profile),
        (None, Some(frontier)) => {
            Ok((frontier.pipeline().profile().clone(), "the frontier's profile".to_owned()))
        }
        (None, None) => gathered::profile(daemons, &job).map_err(|error| error.to_string()),
    };
    let plan = plan.or_else(|| Some(plan_of(table.as_ref()?, schedule, known)));
    let compared_now = page::take_compared_plan(&mut job, &both);
    let plan = plan.or(found.plan.filter(|_| compared_now));
    let observed = observed::observe(daemons, (&job.job, job.uid), observe);
    let warnings = warned(&gathered::selector(&job));
    let page = page::page(&Known {
        warnings: &warnings,
        observed: &observed.unwrap_or_default(),
        ledger: ledger.as_ref().map_err(|why| &**why),
        days: days.as_ref(),
        both: &both,
        job: &job,
        compared_now,
        user: &user::name_of,
        written: &written,
        table: table.as_ref(),
        plan: plan.as_ref(),
        profile: profile.as_ref().map(|(profile, name)| (profile, &**name)).map_err(|why| &**why),
        frontier: frontier.as_ref().map_err(|why| &**why),
        tuned: tuned.as_ref(),
    });
    Ok(file::write(name, page.as_bytes())?)
}

fn warned(job: &JobSelector) -> page::Section {
    warnings::section(journal::warnings(Some(job)).as_deref(), &TimeZone::system())
}

fn saved(daemons: &Daemons, job: &JobSelector, by: SavingsBy) -> Result<SavingsReport, Error> {
    savings::of_job(&mut daemons.agent()?, job.clone(), by)
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
    let mut pfod = daemons.pfod()?;
    match pfod.ask(Request::PlanRead(gathered::selector(job)))? {
        Response::Plan(table) => Ok(table),
        other => Err(pfod.unexpected(&other).into()),
    }
}

#[cfg(test)]
mod tests;
