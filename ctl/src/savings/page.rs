//! One page of what was saved, to print and to pass on: pure, from the ledger's answers to HTML.

use jiff::tz::TimeZone;
use pfo_protocol::{
    JobStatus, SavedEnergy, Savings, SavingsReport, SavingsRow, Status, Tariff, Uid,
};

use super::picture::{Bar, bars};
use super::{co2e, date, interval, measured_when, measured_where, money, share};
use crate::report::{document, element, escaped, figure, list, table};
use crate::status::quantity::{percent, span, watt_hours};

/// Rows of a table, and bars of a picture: the page is to be read.
const MOST: usize = 40;

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
        rows(known, known.users, "User", &|row| row.uid.map(known.user)),
        element("h2", "By partition"),
        rows(known, known.partitions, "Partition", &|row| row.partition.clone()),
        element("h2", "By model of GPUs"),
        rows(known, known.models, "GPU model", &|row| row.model.clone()),
        element("h2", "By job"),
        rows(known, known.jobs, "Job", &|row| job_of(row, known.user)),
        element("h2", "What limited it"),
        limits(known),
        element("h2", "Jobs that could save and do not"),
        idle(known),
        element("h2", "How this was measured"),
        element(
            "p",
            "Used is what energy counters of GPUs counted under plans. Saved is what default clocks would \
             have used beyond that, by steps at default clocks beside steps of each plan, and so is the \
             slowdown. An interval holds the true saving in 95 of 100 cases. What is not proven may be \
             nothing, and has neither money nor CO2e.",
        ),
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
    let SavingsReport { total, tariff, .. } = known.users;
    let shown = total.saved.filter(|saved| saved.shown);
    let said = shown.map_or_else(
        || "No saving is proven.".to_owned(),
        |saved| {
            let SavedEnergy { low_j, estimate_j, high_j, .. } = saved;
            format!(
                "{} saved, {} of what default clocks would have used; between {} and {}.",
                watt_hours(estimate_j),
                percent(share(total, &saved)),
                watt_hours(low_j),
                watt_hours(high_j)
            )
        },
    );
    let mut facts = Vec::new();
    if let Some(saved) = shown {
        let worth = [money(&saved, tariff), of_co2e(&saved, tariff)];
        let worth: Vec<_> = worth.into_iter().flatten().collect();
        if !worth.is_empty() {
            facts.push(format!("Worth {} by the present tariff.", worth.join(" and ")));
        }
    }
    facts.push(match total.slowdown_s {
        Some(slowdown_s) if slowdown_s > 0.0 => {
            format!(
                "Paid with {} of longer steps, of {} under plans.",
                span(slowdown_s),
                span(total.time_s)
            )
        }
        Some(_) => "Steps took no longer than at default clocks.".to_owned(),
        None => "How much longer steps took was not measured.".to_owned(),
    });
    facts.push(format!(
        "{} used under plans, {} of it under plans that were compared with default clocks.",
        watt_hours(total.energy_j),
        percent(total.compared_j / total.energy_j.max(f64::MIN_POSITIVE))
    ));
    let report = known.users;
    let when = [measured_when(report, known.zone), measured_where(report, known.zone)];
    facts
        .extend(when.iter().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()));
    let problems = [&report.tariff_problem, &report.ledger_problem].into_iter().flatten().cloned();
    facts.extend(problems);
    format!("<p class=\"headline\">{}</p>\n{}", escaped(&said), list(&facts))
}

fn of_co2e(saved: &SavedEnergy, tariff: &Tariff) -> Option<String> {
    co2e(saved, tariff).map(|mass| format!("{mass} of CO2e"))
}

fn pictures(known: &Known<'_>) -> String {
    let bar = |name: String, row: &SavingsRow| Bar { name, saved: row.savings.saved };
    let days = known.days.map(|days| {
        let bars =
            days.rows.iter().map(|row| bar(row.day_unix_s.map_or_else(String::new, date), row));
        bars.take(MOST).collect::<Vec<_>>()
    });
    let users = largest(known.users).into_iter();
    let users: Vec<_> =
        users.map(|row| bar(row.uid.map(known.user).unwrap_or_default(), row)).collect();
    let drawn = |of: &[Bar], caption: &str| match bars(of) {
        Some(svg) => figure(&svg, caption),
        None => String::new(),
    };
    drawn(&users, "Saved by user, with 95 % intervals.")
        + &drawn(&days.unwrap_or_default(), "Saved by day (UTC), with 95 % intervals.")
}

/// The rows that used most.
fn largest(report: &SavingsReport) -> Vec<&SavingsRow> {
    let mut rows: Vec<_> = report.rows.iter().collect();
    rows.sort_by(|one, other| other.savings.energy_j.total_cmp(&one.savings.energy_j));
    rows.truncate(MOST);
    rows
}

fn rows(
    known: &Known<'_>,
    report: &SavingsReport,
    of: &str,
    name: &dyn Fn(&SavingsRow) -> Option<String>,
) -> String {
    if report.rows.is_empty() {
        return element("p", "Nothing was measured under a plan.");
    }
    let header = [of, "Used", "Saved", "95 % interval", "Share", "Money", "CO2e", "Slower by"];
    let cells = |row: &SavingsRow| {
        let Savings { energy_j, saved, slowdown_s, .. } = row.savings;
        let shown = saved.filter(|saved| saved.shown);
        [
            name(row),
            Some(watt_hours(energy_j)),
            Some(shown.map_or("not proven".to_owned(), |saved| watt_hours(saved.estimate_j))),
            saved.as_ref().map(interval),
            shown.map(|saved| percent(share(&row.savings, &saved))),
            shown.and_then(|saved| money(&saved, &known.users.tariff)),
            shown.and_then(|saved| of_co2e(&saved, &known.users.tariff)),
            slowdown_s.filter(|slowdown_s| *slowdown_s > 0.0).map(span),
        ]
    };
    let left = report.rows.len().saturating_sub(MOST);
    let rest = if left == 0 {
        String::new()
    } else {
        element("p", &format!("{left} more, which used less, are not shown."))
    };
    table(header, largest(report).into_iter().map(cells)) + &rest
}

fn limits(known: &Known<'_>) -> String {
    let Savings { throttled_s, hottest_c, given_j, lost_s, energy_j, compared_j, .. } =
        known.users.total;
    let mut said = Vec::new();
    let unknown_j = energy_j - compared_j;
    if unknown_j > 0.001 * energy_j {
        said.push(format!(
            "{} were used under plans that were compared fewer than two times: nothing is proven of these.",
            watt_hours(unknown_j)
        ));
    }
    if let Some(throttled_s) = throttled_s.filter(|throttled_s| *throttled_s > 0.0) {
        let hottest = hottest_c.map_or_else(String::new, |c| format!(", at {c} \u{b0}C at most"));
        said.push(format!(
            "GPUs were throttled by heat or a power limit for {}{hottest}: a plan saves less there.",
            span(throttled_s)
        ));
    }
    if given_j > 0.0 {
        said.push(format!(
            "Power budgets took {} and {} at the jobs' own pace: no saving includes these.",
            watt_hours(given_j),
            span(lost_s)
        ));
    }
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
