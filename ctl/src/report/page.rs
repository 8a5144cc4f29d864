//! The page: pure, from what is known of a job to HTML. A heading has something below it; what is not known
//! is a list at the end.

use std::collections::{BTreeMap, BTreeSet};

use pfo_experiment::Report;
use pfo_planner::{Frontier, Plan, Profile};
use pfo_protocol::{ClockTable, JobName, JobStatus, SavingsReport, Uid};

use super::html::{element, escaped, facts, list};
use super::limits::limits;
use super::{headline, ledger, pictures, tables, warnings};
use crate::plan::plot::Course;
use crate::savings::saved;
use crate::status::Both;
use crate::status::job_table::state;
use crate::status::plan_text::described;
use crate::status::quantity::{span, watt_hours};
use crate::tune;

const STYLE: &str = include_str!("page.css");

/// What is below a heading, nothing at all, or why there is nothing.
pub(super) type Section = Result<String, String>;

/// What is known of a job. Nothing that is drawn is known by itself.
pub(super) struct Known<'a> {
    /// The job, its GPUs, and nothing else.
    pub(super) both: &'a Both,
    pub(super) job: &'a JobStatus,
    /// Whether it runs default clocks for a moment, so that its guard can compare its plan with these.
    pub(super) compared_now: bool,
    pub(super) user: &'a dyn Fn(Uid) -> String,
    pub(super) written: &'a Written,
    /// The plan in force.
    pub(super) table: Option<&'a ClockTable>,
    /// The same with what a replay needs.
    pub(super) plan: Option<&'a Plan>,
    /// A profile and where it is from, or why there is none.
    pub(super) profile: Result<(&'a Profile, &'a str), &'a str>,
    /// The frontier of the plan, or why there is none.
    pub(super) frontier: Result<&'a Frontier, &'a str>,
    /// What the GPUs did lately.
    pub(super) observed: &'a [Course],
    /// What the ledger has, or why that is not known.
    pub(super) ledger: Result<&'a SavingsReport, &'a str>,
    /// The same by day.
    pub(super) days: Option<&'a SavingsReport>,
    /// What the journal has.
    pub(super) warnings: &'a Section,
    /// What `tune` measured.
    pub(super) tuned: Option<&'a Report>,
}

/// Where and when a page was written.
pub(super) struct Written {
    pub(super) host: String,
    /// With its time zone, as people read it.
    pub(super) at: String,
}

/// The parts of a page, and what they lack.
#[derive(Default)]
struct Parts {
    shown: String,
    unknown: Vec<String>,
}

impl Parts {
    fn section(&mut self, title: &str, section: Section) {
        match section {
            Ok(text) if text.is_empty() => {}
            Ok(text) => self.shown += &(element("h2", title) + &text),
            Err(why) => self.unknown.push(format!("{title}: {why}.")),
        }
    }

    fn document(self, title: &str, top: String) -> String {
        let unknown = match self.unknown.is_empty() {
            true => String::new(),
            false => element("h2", "Not known, and why") + &list(&self.unknown),
        };
        html(title, &[element("h1", title), top, self.shown, unknown])
    }
}

/// The whole page.
pub(super) fn page(known: &Known<'_>) -> String {
    let title = format!("Job {} of {}", known.job.job, (known.user)(known.job.uid));
    let mut parts = Parts::default();
    parts.section("A step before and after", pictures::steps(known));
    parts.section("Frontier", pictures::frontier(known));
    parts.section("Measured by step", tables::measured(known));
    parts.section("As tune measured it", Ok(known.tuned.map_or_else(String::new, tune::section)));
    parts.section("Saved, by the ledger", ledger::section(known.ledger, known.days));
    parts.section("What limits it", limits(known));
    parts.section(&warnings::title(), known.warnings.clone());
    parts.section("Clocks of the plan", tables::clocks(known));
    parts.section("Clocks and power over time", pictures::course(known));
    parts.section("Ranks on this node, as they are now", tables::ranks(known));
    parts.section("How the saving was measured", Ok(ledger::method(known.ledger)));
    parts.unknown.extend(lacks(known));
    parts.document(&title, headline::of(known) + &about(known))
}

/// The page of a job that has ended.
pub(super) fn ended(
    job: &JobName,
    (ledger, days): (&SavingsReport, Option<&SavingsReport>),
    (written, warnings): (&Written, Section),
    user: &dyn Fn(Uid) -> String,
) -> String {
    let owners: BTreeSet<_> = ledger.rows.iter().filter_map(|row| row.uid).collect();
    let owners: Vec<_> = owners.into_iter().map(user).collect();
    let title = format!("Job {job} of {}", owners.join(", "));
    let mut parts = Parts::default();
    parts.section("Saved, by the ledger", ledger::section(Ok(ledger), days));
    let limits = saved::limits(&ledger.total);
    let limits = if limits.is_empty() { String::new() } else { list(&limits) };
    parts.section("What limits it", Ok(limits));
    parts.section(&warnings::title(), warnings);
    parts.section("How the saving was measured", Ok(ledger::method(Ok(ledger))));
    let why = "the job has no rank on this node; it has ended, or not begun";
    parts.section("Timeline, frontier, clocks and ranks", Err(why.to_owned()));
    let about = [("Measured", days.and_then(ledger::period)), ("Written", Some(written.shown()))];
    let about = about.into_iter().filter_map(|(name, value)| Some((name, value?)));
    parts.document(&title, headline::of_ledger(ledger) + &facts(about))
}

/// Gives a job that its guard has at default clocks for a comparison the plan to which it returns: that is what
/// its page is about. Whether there is one.
pub(super) fn take_compared_plan(job: &mut JobStatus, both: &Both) -> bool {
    let is_guarded = both.agent.iter().flat_map(|agent| &agent.jobs).any(|watched| {
        let is_it = watched.job == job.job && watched.uid == job.uid;
        is_it && watched.guard.as_ref().is_some_and(|guard| guard.given_up.is_none())
    });
    if job.plan.is_some() || !is_guarded || job.ranks.is_empty() {
        return false;
    }
    job.plan = job.windows.iter().rev().find_map(|window| window.plan.clone());
    job.plan.is_some()
}

/// A document of these parts.
pub(crate) fn html(title: &str, parts: &[String]) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{}\
         </body>\n</html>\n",
        escaped(title),
        parts.concat(),
    )
}

impl Written {
    fn shown(&self) -> String {
        match self.host.is_empty() {
            true => self.at.clone(),
            false => format!("{} on {}", self.at, self.host),
        }
    }
}

/// What the page is about, and where its figures are from.
fn about(known: &Known<'_>) -> String {
    let (job, daemon) = (known.job, &known.both.pfod.daemon);
    let plan = job.plan.as_ref().map_or_else(|| "default clocks".to_owned(), described);
    let runs = match job.ranks.is_empty() {
        true => format!("Has ended: its last rank on this node has left. It ran {plan}."),
        false if known.compared_now => format!("{plan}, which is compared with default clocks now"),
        false => format!("{plan}, {}", state(job).shown()),
    };
    let stages = counted(job.pp_degree as usize, "stage");
    let size = match job.ranks.len() {
        0 => stages,
        ranks => format!("{} on this node, {stages}", counted(ranks, "rank")),
    };
    let energy = job.energy_j.map(|energy_j| {
        format!("{} in the last {}, measured", watt_hours(energy_j), span(job.measured_for_s))
    });
    let software = match &daemon.driver {
        Some(driver) => format!("pfod {}, driver {driver}", daemon.version),
        None => format!("pfod {}", daemon.version),
    };
    let all = [
        ("Runs", Some(runs)),
        ("Size", Some(size)),
        ("GPUs", gpus(known)),
        ("Energy", energy),
        ("Measured", known.days.and_then(ledger::period)),
        ("Software", Some(software)),
        ("Written", Some(known.written.shown())),
    ];
    facts(all.into_iter().filter_map(|(name, value)| Some((name, value?))))
}

/// The GPUs of the job by model, such as `4 × NVIDIA A100-SXM4-80GB`.
fn gpus(known: &Known<'_>) -> Option<String> {
    let mut models = BTreeMap::<&str, usize>::new();
    for rank in &known.job.ranks {
        let gpu = known.both.pfod.gpus.iter().find(|gpu| gpu.uuid == rank.gpu_uuid);
        *models.entry(gpu.map_or("of an unknown model", |gpu| &gpu.model)).or_default() += 1;
    }
    let models: Vec<_> =
        models.into_iter().map(|(model, count)| format!("{count} \u{d7} {model}")).collect();
    (!models.is_empty()).then(|| models.join(", "))
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// What the facts above lack.
fn lacks(known: &Known<'_>) -> Vec<String> {
    let mut lacks = Vec::new();
    if known.job.energy_j.is_none() {
        lacks
            .push("Energy: a GPU of the job has no energy counter, or no step is over.".to_owned());
    }
    if known.both.pfod.daemon.driver.is_none() {
        lacks.push("Driver: pfod has not loaded it.".to_owned());
    }
    lacks.extend(known.ledger.ok().and_then(headline::no_price));
    lacks
}
