//! `pfoctl savings`: what plans have saved, by the ledger of pfo-agent.

use clap::{Args, ValueEnum};
use pfo_protocol::{
    AgentRequest, AgentResponse, JobName, JobSelector, SavedEnergy, Savings, SavingsBy,
    SavingsQuery, SavingsReport, SavingsRow, Tariff, Uid,
};

use crate::daemons::{Agent, Connection, Daemons};
use crate::error::Error;
use crate::lease::now_unix_s;
use crate::output::{Look, Output};
use crate::savings_csv;
use crate::since::Since;
use crate::status::quantity::{grams, percent, span, watt_hours};
use crate::status::table::{Cell, Table, Tone};
use crate::text::harmless;
use crate::user;

/// Joules of a kilowatt-hour.
pub(crate) const KWH_J: f64 = 3.6e6;

/// Show what plans have saved, with 95 % intervals
///
/// pfo-agent remembers what jobs used under plans, by the energy counters of their GPUs, and how these
/// plans compared with default clocks: while `pfoctl tune` verified them, and now and then since where
/// their slowdown is guarded (`pfoctl plan guard`). What was saved follows from both. "Not shown" is what
/// may be nothing: its interval holds zero, or its plan was compared fewer than two times.
///
/// "Given up" is what a power budget took from a job: the energy that it did not use, and the time that this
/// cost at its own pace. It is no saving, and in none of them.
///
/// Only GPUs of this node count: of a job over several nodes, each shows its part of what the job saved.
/// You see your own jobs; administrators see everybody's.
#[derive(Args)]
pub(crate) struct SavingsCommand {
    /// Only jobs of this name
    #[arg(long)]
    job: Option<JobName>,

    /// Only jobs of this user, by name or number
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    user: Option<Uid>,

    /// Only what was measured since: a time ago, such as 90min, 12h or 7d; or @ and seconds since 1970
    #[arg(long, value_name = "TIME")]
    since: Option<Since>,

    /// What each row is of; days begin at midnight UTC
    #[arg(long, value_enum, default_value_t = By::Job)]
    by: By,

    /// Print JSON: every figure as pfo-agent gave it
    #[arg(long)]
    json: bool,

    /// Print CSV: a row for each job, user, plan or day, in joules
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
}

impl SavingsCommand {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let now_unix_s = now_unix_s();
        let by = match self.by {
            By::Job => SavingsBy::Job,
            By::User => SavingsBy::User,
            By::Plan => SavingsBy::Plan,
            By::Day => SavingsBy::Day,
        };
        let since_unix_s = self.since.map(|since| since.unix_s(now_unix_s));
        let query = SavingsQuery { job: self.job, uid: self.user, since_unix_s, by };
        let report = ask(&mut daemons.agent()?, query)?;
        if self.json {
            return output.json(&report);
        }
        if self.csv {
            return output.text(&savings_csv::csv(&report)?);
        }
        let look = output.look();
        output.text(&render(&report, look))
    }
}

/// What each plan of a job has saved.
///
/// # Errors
/// If the agent does not answer.
pub(crate) fn by_plan(
    agent: &mut Connection<Agent>,
    JobSelector { job, uid }: JobSelector,
) -> Result<SavingsReport, Error> {
    ask(agent, SavingsQuery { job: Some(job), uid, since_unix_s: None, by: SavingsBy::Plan })
}

fn ask(agent: &mut Connection<Agent>, query: SavingsQuery) -> Result<SavingsReport, Error> {
    match agent.ask(AgentRequest::Savings(query))? {
        AgentResponse::Savings(report) => Ok(*report),
        other => Err(agent.unexpected(&other).into()),
    }
}

fn render(report: &SavingsReport, look: Look) -> String {
    let mut text = String::new();
    if report.rows.is_empty() {
        text += "Nothing was measured under a plan.\n";
    } else {
        let mut table = Table::new(look)
            .left("Day")
            .left("User")
            .left("Job")
            .left("Plan")
            .right("Steps")
            .right("Time")
            .right("Used")
            .right("Saved")
            .right("95 % interval")
            .right("Share")
            .right("Money")
            .right("CO2e")
            .right("Given up");
        for row in &report.rows {
            table.row(cells(row, &report.tariff));
        }
        if report.rows.len() > 1 {
            let total = SavingsRow {
                uid: None,
                job: None,
                plan: None,
                day_unix_s: None,
                savings: report.total,
            };
            let mut cells = cells(&total, &report.tariff);
            let first = usize::from(report.rows[0].day_unix_s.is_none());
            cells[first] = Cell::text("total");
            table.row(cells);
        }
        text += &table.render();
    }
    for problem in [&report.tariff_problem, &report.ledger_problem].into_iter().flatten() {
        text += &format!("{}\n", harmless(problem));
    }
    text
}

fn cells(row: &SavingsRow, tariff: &Tariff) -> Vec<Cell> {
    let SavingsRow { uid, job, plan, day_unix_s, savings } = row;
    let Savings { steps, time_s, energy_j, .. } = *savings;
    let shown = savings.saved.filter(|saved| saved.shown);
    let saved = match shown {
        Some(saved) if saved.low_j > 0.0 => {
            Cell::text(watt_hours(saved.estimate_j)).tone(Tone::Good)
        }
        Some(saved) => Cell::text(watt_hours(saved.estimate_j)).tone(Tone::Bad),
        None => Cell::text("not proven"),
    };
    let interval = savings.saved.map(|SavedEnergy { low_j, high_j, .. }| {
        format!("{} to {}", watt_hours(low_j), watt_hours(high_j))
    });
    vec![
        Cell::option(day_unix_s.map(date)),
        Cell::option(uid.map(user::name_of)),
        Cell::option(job.as_ref().map(ToString::to_string)),
        Cell::option(plan.as_ref()),
        Cell::number(steps),
        Cell::text(span(time_s)),
        Cell::text(watt_hours(energy_j)),
        saved,
        Cell::option(interval),
        Cell::option(shown.map(|saved| percent(share(savings, &saved)))),
        Cell::option(shown.zip(tariff.price_per_kwh).map(|(saved, price)| {
            format!("{:.2} {}", saved.estimate_j / KWH_J * price, tariff.currency)
                .trim_end()
                .to_owned()
        })),
        Cell::option(
            shown.zip(tariff.co2e_g_per_kwh).map(|(saved, g)| grams(saved.estimate_j / KWH_J * g)),
        ),
        Cell::option(
            (savings.given_j > 0.0)
                .then(|| format!("{}, {}", watt_hours(savings.given_j), span(savings.lost_s))),
        ),
    ]
}

/// What share of the energy at default clocks was saved.
pub(crate) fn share(savings: &Savings, saved: &SavedEnergy) -> f64 {
    saved.estimate_j / (savings.compared_j + saved.estimate_j)
}

/// The date of a time in seconds since 1970, in UTC: the algorithm `civil_from_days` of Howard Hinnant.
pub(crate) fn date(unix_s: u64) -> String {
    let days = unix_s / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(low_j: f64, estimate_j: f64, high_j: f64) -> Savings {
        let shown = low_j > 0.0 || high_j < 0.0;
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
        }
    }

    fn row(job: &str, savings: Savings) -> SavingsRow {
        let (uid, job) = (Some(Uid(4_000_000_001)), Some(job.parse().unwrap()));
        SavingsRow { uid, job, plan: None, day_unix_s: None, savings }
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
            tariff_problem: None,
            ledger_problem: None,
            entries: 3,
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
        let text = render(&report(rows), Look::default());
        insta::assert_snapshot!(text);
    }

    #[test]
    fn problems_are_said_below_and_an_empty_ledger_in_words() {
        let mut empty = report(Vec::new());
        empty.tariff_problem = Some("/t: unknown\u{1b}[1m field".into());
        insta::assert_snapshot!(render(&empty, Look::default()));
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (unix_s, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (4_102_444_799, "2099-12-31"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(unix_s), expected);
        }
    }
}
