//! `pfoctl savings`: what plans have saved, by the ledger of pfo-agent.

mod csv;
mod page;
mod picture;
pub(crate) mod saved;

use std::fs;

use clap::{Args, ValueEnum};
use jiff::tz::TimeZone;
use pfo_protocol::{
    AgentRequest, AgentResponse, JobName, JobSelector, SavedEnergy, Savings, SavingsBy,
    SavingsQuery, SavingsReport, SavingsRow, Tariff, Uid, Worth,
};

use crate::daemons::{Agent, Connection, Daemons};
use crate::error::Error;
use crate::lease::now_unix_s;
use crate::output::{Look, Output};
use crate::planning::file;
use crate::since::{Month, Period, Since, date, minute, zone};
use crate::status::Both;
use crate::status::quantity::{grams, percent, span, watt_hours};
use crate::status::table::{Cell, Table, Tone};
use crate::text::harmless;
use crate::user;

/// Joules of a kilowatt-hour.
pub(crate) const KWH_J: f64 = 3.6e6;

/// Show what plans have saved, with 95 % intervals
///
/// pfo-agent records the energy that jobs used under plans, by the energy counters of their GPUs, and how
/// these plans compared with default clocks: when `pfoctl tune` verified them, and now and then for as long
/// as a guard (`pfoctl plan guard`) compares them. The saving follows from both. A saving is "not proven"
/// if its interval contains zero, or if its plan was compared fewer than two times.
///
/// "Given up" is what a power budget took from a job: the energy that the job did not use, and the time
/// that this cost at the job's own pace. No saving includes it.
///
/// Without --fleet, only GPUs of this node count: each node of a job shows its part of the job's saving.
/// You see your own jobs; administrators see everybody's.
#[derive(Args)]
pub(crate) struct SavingsCommand {
    /// Only jobs of this name
    #[arg(long)]
    job: Option<JobName>,

    /// Only jobs of this user, by name or number
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    user: Option<Uid>,

    /// Only what was measured from then on: a day such as 2026-11-01, which stands for its first midnight in
    /// the local time zone; a time ago, such as 90min, 12h or 7d; or @ and seconds since 1970
    #[arg(long, value_name = "TIME")]
    since: Option<Since>,

    /// Only what was measured before then; a day stands for its first midnight
    #[arg(long, value_name = "TIME")]
    until: Option<Since>,

    /// Only this month, such as 2026-11, in the local time zone
    #[arg(long, value_name = "MONTH", conflicts_with_all = ["since", "until"])]
    month: Option<Month>,

    /// A month of all nodes of the fleet; without --month, the present month
    #[arg(long, conflicts_with_all = ["since", "until"])]
    fleet: bool,

    /// What to show in each row; days begin at midnight UTC
    #[arg(long, value_enum, default_value_t = By::Job)]
    by: By,

    /// Write a page to print instead: what was saved, by whom, what limited it, and pictures
    #[arg(long, value_name = "PAGE.html", conflicts_with_all = ["json", "csv", "by"])]
    report: Option<String>,

    /// Print JSON: every figure as pfo-agent gave it
    #[arg(long)]
    json: bool,

    /// Print CSV: a line for each row, in joules
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// What each row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Job,
    User,
    Plan,
    Day,
    /// Of the scheduler
    Partition,
    /// Of the GPUs
    Model,
}

impl From<By> for SavingsBy {
    fn from(by: By) -> Self {
        match by {
            By::Job => Self::Job,
            By::User => Self::User,
            By::Plan => Self::Plan,
            By::Day => Self::Day,
            By::Partition => Self::Partition,
            By::Model => Self::Model,
        }
    }
}

impl SavingsCommand {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let zone = zone()?;
        let times = (self.since.as_ref(), self.until.as_ref());
        let now = now_unix_s();
        let this_month = || self.fleet.then(|| Month::of(now, &zone)).flatten();
        let month = self.month.or_else(this_month);
        let Period { since_unix_s, until_unix_s } = Period::of(times, month, now, &zone)?;
        let query = SavingsQuery {
            job: self.job,
            uid: self.user,
            since_unix_s,
            until_unix_s,
            by: self.by.into(),
            fleet_month: month.filter(|_| self.fleet).map(Month::text),
        };
        if let Some(name) = &self.report {
            return write_page(daemons, &query, &zone, name);
        }
        let report = ask(&mut daemons.agent()?, query)?;
        if self.json {
            return output.json(&report);
        }
        if self.csv {
            return output.text(&csv::csv(&report)?);
        }
        let look = output.look();
        output.text(&render(&report, &zone, look))
    }
}

/// Writes the page of what a query asks for.
fn write_page(
    daemons: &Daemons,
    query: &SavingsQuery,
    zone: &TimeZone,
    name: &str,
) -> Result<(), Error> {
    let mut agent = daemons.agent()?;
    let mut of = |by| ask(&mut agent, SavingsQuery { by, ..query.clone() });
    let [users, partitions] = [of(SavingsBy::User)?, of(SavingsBy::Partition)?];
    let [models, jobs] = [of(SavingsBy::Model)?, of(SavingsBy::Job)?];
    let days = if query.fleet_month.is_some() { None } else { Some(of(SavingsBy::Day)?) };
    let node = Both::ask(daemons).map_err(|error| error.to_string());
    let place = match &query.fleet_month {
        Some(month) => format!("in {month} by the fleet"),
        None => format!("on {}", host()),
    };
    let page = page::page(&page::Known {
        title: format!("Saved {place}"),
        users: &users,
        partitions: &partitions,
        models: &models,
        jobs: &jobs,
        days: days.as_ref(),
        node: node.as_ref().map(|both| &both.pfod).map_err(Clone::clone),
        user: &user::name_of,
        zone,
    });
    Ok(file::write(name, page.as_bytes())?)
}

/// The name of this machine.
pub(crate) fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// What each plan of a job has saved.
///
/// # Errors
/// If the agent does not answer.
pub(crate) fn by_plan(
    agent: &mut Connection<Agent>,
    job: JobSelector,
) -> Result<SavingsReport, Error> {
    of_job(agent, job, SavingsBy::Plan)
}

/// What a job has saved.
///
/// # Errors
/// If the agent does not answer.
pub(crate) fn of_job(
    agent: &mut Connection<Agent>,
    JobSelector { job, uid }: JobSelector,
    by: SavingsBy,
) -> Result<SavingsReport, Error> {
    ask(agent, SavingsQuery { job: Some(job), uid, by, ..SavingsQuery::default() })
}

fn ask(agent: &mut Connection<Agent>, query: SavingsQuery) -> Result<SavingsReport, Error> {
    match agent.ask(AgentRequest::Savings(query))? {
        AgentResponse::Savings(report) => Ok(*report),
        other => Err(agent.unexpected(&other).into()),
    }
}

fn render(report: &SavingsReport, zone: &TimeZone, look: Look) -> String {
    let mut text = measured_when(report, zone) + &measured_where(report, zone);
    if report.rows.is_empty() {
        text += "Nothing was measured under a plan.\n";
    } else {
        let mut table = Table::new(look)
            .left("Day")
            .left("User")
            .left("Job")
            .left("Plan")
            .left("Partition")
            .left("GPU model")
            .right("Steps")
            .right("Time")
            .right("Used")
            .right("Saved")
            .right("95 % interval")
            .right("Share")
            .right("Money")
            .right("CO2e")
            .right("Slower by")
            .right("Given up");
        for row in &report.rows {
            table.row(cells(row, &report.tariff));
        }
        if report.rows.len() > 1 {
            let total = SavingsRow { savings: report.total, ..SavingsRow::default() };
            let mut cells = cells(&total, &report.tariff);
            cells[first_column(&report.rows)] = Cell::text("total");
            table.row(cells);
        }
        text += &table.render();
    }
    for problem in [&report.tariff_problem, &report.ledger_problem].into_iter().flatten() {
        text += &format!("{}\n", harmless(problem));
    }
    text
}

/// Between what times it was measured, if that was asked for.
fn measured_when(report: &SavingsReport, zone: &TimeZone) -> String {
    let of = |unix_s: Option<u64>| unix_s.map(|unix_s| minute(unix_s, zone));
    match (of(report.since_unix_s), of(report.until_unix_s)) {
        (None, None) => String::new(),
        (Some(since), None) => format!("Measured since {since}.\n"),
        (None, Some(until)) => format!("Measured before {until}.\n"),
        (Some(since), Some(until)) => format!("Measured from {since} to {until}.\n"),
    }
}

/// On how many nodes of the fleet it was measured, and how old that is.
fn measured_where(report: &SavingsReport, zone: &TimeZone) -> String {
    let oldest = report.nodes.iter().min_by_key(|node| node.written_unix_s);
    oldest.map_or_else(String::new, |oldest| {
        let (count, at) = (report.nodes.len(), minute(oldest.written_unix_s, zone));
        let nodes = if count == 1 { "One node".to_owned() } else { format!("{count} nodes") };
        format!("{nodes}; the oldest figures are those of {}, of {at}.\n", harmless(&oldest.name))
    })
}

/// The first column that says something of any row.
fn first_column(rows: &[SavingsRow]) -> usize {
    let says: [fn(&SavingsRow) -> bool; 5] = [
        |row| row.day_unix_s.is_some(),
        |row| row.uid.is_some(),
        |row| row.job.is_some(),
        |row| row.plan.is_some(),
        |row| row.partition.is_some(),
    ];
    says.iter().position(|says| rows.iter().any(says)).unwrap_or(says.len())
}

fn cells(row: &SavingsRow, tariff: &Tariff) -> Vec<Cell> {
    let SavingsRow { uid, job, plan, day_unix_s, savings, partition, model } = row;
    let Savings { steps, time_s, energy_j, .. } = *savings;
    let shown = savings.saved.filter(|saved| saved.shown);
    let saved = match shown {
        Some(saved) if saved.low_j > 0.0 => {
            Cell::text(watt_hours(saved.estimate_j)).tone(Tone::Good)
        }
        Some(saved) => Cell::text(watt_hours(saved.estimate_j)).tone(Tone::Bad),
        None => Cell::text("not proven"),
    };
    vec![
        Cell::option(day_unix_s.map(date)),
        Cell::option(uid.map(user::name_of)),
        Cell::option(job.as_ref().map(ToString::to_string)),
        Cell::option(plan.as_ref()),
        Cell::option(partition.as_ref()),
        Cell::option(model.as_ref()),
        Cell::number(steps),
        Cell::text(span(time_s)),
        Cell::text(watt_hours(energy_j)),
        saved,
        Cell::option(savings.saved.as_ref().map(interval)),
        Cell::option(shown.map(|saved| percent(share(savings, &saved)))),
        Cell::option(money(savings, tariff)),
        Cell::option(co2e(savings)),
        Cell::option(savings.slowdown_s.filter(|s| *s > 0.0).map(span)),
        Cell::option(
            (savings.given_j > 0.0)
                .then(|| format!("{}, {}", watt_hours(savings.given_j), span(savings.lost_s))),
        ),
    ]
}

/// Between what it surely is.
fn interval(SavedEnergy { low_j, high_j, .. }: &SavedEnergy) -> String {
    format!("{} to {}", watt_hours(*low_j), watt_hours(*high_j))
}

/// What a proven saving is worth, if its price is known.
fn money(savings: &Savings, tariff: &Tariff) -> Option<String> {
    let money = proven(savings, savings.money)?.estimate;
    // Less than a coin is still a figure.
    let decimals = if money.abs() < 0.1 { 4 } else { 2 };
    Some(format!("{money:.decimals$} {}", tariff.currency).trim_end().to_owned())
}

/// The mass of carbon dioxide that it stands for, likewise.
fn co2e(savings: &Savings) -> Option<String> {
    proven(savings, savings.co2e_g).map(|co2e_g| grams(co2e_g.estimate))
}

/// The worth of a saving that is proven.
fn proven(savings: &Savings, worth: Option<Worth>) -> Option<Worth> {
    worth.filter(|_| savings.saved.is_some_and(|saved| saved.shown))
}

/// What share of the energy at default clocks was saved.
pub(crate) fn share(savings: &Savings, saved: &SavedEnergy) -> f64 {
    saved.estimate_j / (savings.compared_j + saved.estimate_j)
}

#[cfg(test)]
mod tests {
    use pfo_protocol::SavingsNode;

    use super::*;

    fn saved(low_j: f64, estimate_j: f64, high_j: f64) -> Savings {
        let shown = low_j > 0.0 || high_j < 0.0;
        let worth = |price: f64| {
            let [low, estimate, high] = [low_j, estimate_j, high_j].map(|j| j / KWH_J * price);
            Some(Worth { low, estimate, high })
        };
        Savings {
            steps: 1000,
            time_s: 7300.0,
            energy_j: 9.0 * KWH_J,
            compared_j: 9.0 * KWH_J,
            comparisons: 5,
            saved: Some(SavedEnergy { low_j, estimate_j, high_j, shown }),
            throttled_s: Some(7.0),
            hottest_c: Some(61),
            given_j: 0.0,
            lost_s: 0.0,
            slowdown_s: Some(70.0),
            money: worth(0.3),
            co2e_g: worth(400.0),
        }
    }

    fn row(job: &str, savings: Savings) -> SavingsRow {
        let (uid, job) = (Some(Uid(4_000_000_001)), Some(job.parse().unwrap()));
        SavingsRow { uid, job, savings, ..SavingsRow::default() }
    }

    fn report(rows: Vec<SavingsRow>) -> SavingsReport {
        SavingsReport {
            rows,
            total: saved(0.5 * KWH_J, KWH_J, 1.5 * KWH_J),
            tariff: Tariff {
                price_per_kwh: Some(0.3),
                currency: "EUR".into(),
                co2e_g_per_kwh: Some(400.0),
            },
            entries: 3,
            ..SavingsReport::default()
        }
    }

    #[test]
    fn a_saving_is_a_row_with_its_interval_and_what_it_is_worth() {
        let rows = vec![
            row("good", saved(0.9 * KWH_J, KWH_J, 1.1 * KWH_J)),
            row("unclear", saved(-0.1 * KWH_J, 0.1 * KWH_J, 0.3 * KWH_J)),
            row("none", Savings { saved: None, ..saved(0.0, 0.0, 0.0) }),
            row(
                "slowed",
                Savings { saved: None, given_j: KWH_J, lost_s: 90.0, ..Savings::default() },
            ),
        ];
        let text = render(&report(rows), &TimeZone::UTC, Look::default());
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_period_is_said_above_in_the_time_of_the_machine() {
        let mut month = report(vec![
            SavingsRow {
                partition: Some("big".into()),
                savings: saved(0.9 * KWH_J, KWH_J, 1.1 * KWH_J),
                ..SavingsRow::default()
            },
            SavingsRow { savings: saved(0.9 * KWH_J, KWH_J, 1.1 * KWH_J), ..SavingsRow::default() },
        ]);
        // November 2026 in Berlin.
        (month.since_unix_s, month.until_unix_s) = (Some(1_793_487_600), Some(1_796_079_600));
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        insta::assert_snapshot!(render(&month, &zone, Look::default()));
        month.nodes = [("gpu-17", 1_793_500_000), ("gpu-18", 1_793_400_000)]
            .map(|(name, written_unix_s)| SavingsNode { name: name.into(), written_unix_s })
            .to_vec();
        assert_eq!(
            measured_where(&month, &zone),
            "2 nodes; the oldest figures are those of gpu-18, of 2026-10-30 23:40 CET.\n"
        );
        month.until_unix_s = None;
        let line = |report: &SavingsReport| measured_when(report, &zone);
        assert_eq!(line(&month), "Measured since 2026-11-01 00:00 CET.\n");
        (month.since_unix_s, month.until_unix_s) = (None, Some(1_793_487_600));
        assert_eq!(line(&month), "Measured before 2026-11-01 00:00 CET.\n");
    }

    #[test]
    fn problems_are_said_below_and_an_empty_ledger_in_words() {
        let mut empty = report(Vec::new());
        empty.tariff_problem = Some("/t: unknown\u{1b}[1m field".into());
        insta::assert_snapshot!(render(&empty, &TimeZone::UTC, Look::default()));
    }
}
