//! One page of what was saved, to print and to pass on: pure, from the ledger's answers to HTML.

use jiff::tz::TimeZone;
use pfo_protocol::{JobStatus, SavingsReport, SavingsRow, Status, Uid};

use super::picture::Bar;
use super::saved::{self, drawn, largest};
use super::{measured_when, measured_where};
use crate::report::{document, element, headline as large, list, table};

/// What the page is made of.
pub(super) struct Known<'a> {
    /// Such as `2026-11`, and where.
    pub(super) title: String,
    pub(super) users: &'a SavingsReport,
    pub(super) partitions: &'a SavingsReport,
    pub(super) models: &'a SavingsReport,
    pub(super) jobs: &'a SavingsReport,
    /// None of a fleet.
    pub(super) days: Option<&'a SavingsReport>,
    /// The node as it is now, or why that is not known.
    pub(super) node: Result<&'a Status, String>,
    pub(super) user: &'a dyn Fn(Uid) -> String,
    pub(super) zone: &'a TimeZone,
}

/// The whole page.
pub(super) fn page(known: &Known<'_>) -> String {
    let parts = [
        element("h1", &known.title),
        headline(known),
        pictures(known),
        element("h2", "By whom"),
        rows(known.users, "User", &|row| row.uid.map(known.user)),
        element("h2", "By partition"),
        rows(known.partitions, "Partition", &|row| row.partition.clone()),
        element("h2", "By model of GPUs"),
        rows(known.models, "GPU model", &|row| row.model.clone()),
        element("h2", "By job"),
        rows(known.jobs, "Job", &|row| job_of(row, known.user)),
        element("h2", "What limited it"),
        limits(known),
        element("h2", "Jobs that could save and do not"),
        idle(known),
        element("h2", "How this was measured"),
        element("p", saved::METHOD),
    ];
    document(&known.title, &parts)
}

fn job_of(row: &SavingsRow, user: &dyn Fn(Uid) -> String) -> Option<String> {
    let owner = row.uid.map(user).unwrap_or_default();
    Some(
        row.job
            .as_ref()
            .map_or_else(|| format!("others of {owner}"), |job| format!("{job} of {owner}")),
    )
}

fn headline(known: &Known<'_>) -> String {
    let report = known.users;
    let said = saved::sentence(&report.total);
    let mut facts = saved::facts(report);
    let when = [measured_when(report, known.zone), measured_where(report, known.zone)];
    facts
        .extend(when.iter().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()));
    large(said.as_deref().unwrap_or("No saving is proven."))
        + &saved::figures(&report.total, &report.tariff)
        + &list(&facts)
}

fn pictures(known: &Known<'_>) -> String {
    let bar = |row: &SavingsRow| Bar {
        name: row.uid.map(known.user).unwrap_or_default(),
        saved: row.savings.saved,
    };
    let users: Vec<_> = largest(known.users).into_iter().map(bar).collect();
    let days = known.days.map_or_else(String::new, saved::days);
    drawn(&users, "Saved by user, with 95 % intervals.") + &days
}

fn rows(report: &SavingsReport, of: &str, name: &dyn Fn(&SavingsRow) -> Option<String>) -> String {
    if report.rows.is_empty() {
        return element("p", "Nothing was measured under a plan.");
    }
    saved::rows(report, of, name)
}

fn limits(known: &Known<'_>) -> String {
    let mut said = saved::limits(&known.users.total);
    if said.is_empty() {
        said.push(
            "Nothing that is known: every plan was compared, no GPU was throttled, and no \
                   power budget took anything."
                .to_owned(),
        );
    }
    list(&said)
}

fn idle(known: &Known<'_>) -> String {
    let uncompared =
        |row: &&SavingsRow| row.savings.energy_j > 0.0 && row.savings.compared_j == 0.0;
    let mut rows: Vec<[Option<String>; 2]> = Vec::new();
    for row in largest(known.jobs).into_iter().filter(uncompared) {
        let why = "its plan was not compared twice: `pfoctl plan guard` compares it";
        rows.push([job_of(row, known.user), Some(why.to_owned())]);
    }
    let why = match &known.node {
        Err(why) => format!("Which jobs run now is not known: {why}."),
        Ok(node) => {
            for job in node.jobs.iter().filter(|job| !job.ranks.is_empty()) {
                let name = format!("{} of {}", job.job, (known.user)(job.uid));
                rows.extend(why_idle(job).map(|why| [Some(name), Some(why)]));
            }
            "Jobs of this month by the ledger, and jobs that run on this node now.".to_owned()
        }
    };
    let found = if rows.is_empty() {
        element("p", "None is known.")
    } else {
        table(["Job", "Why it saves nothing"], rows)
    };
    found + &element("p", &why)
}

/// Why a job that runs saves nothing, if so.
fn why_idle(job: &JobStatus) -> Option<String> {
    match &job.plan {
        Some(plan) => plan.suspended.as_ref().map(|why| format!("its plan is suspended: {why}")),
        None if job.pp_degree < 2 => Some(
            "runs default clocks, and has no pipeline: only one clock for all of it can save"
                .to_owned(),
        ),
        None => Some("runs default clocks: `pfoctl tune` looks for a plan".to_owned()),
    }
}

#[cfg(test)]
mod tests;
