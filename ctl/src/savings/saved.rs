//! What was saved as parts of a page: those of a month and of a job are made of them. Pure.

use pfo_protocol::{SavedEnergy, Savings, SavingsReport, SavingsRow, Tariff, Worth};

use super::picture::{Bar, bars};
use super::{KWH_J, co2e, date, interval, money, share};
use crate::report::{element, figure, table, tiles};
use crate::status::quantity::{percent, span, watt_hours};

/// Rows of a table, and bars of a picture: the page is to be read.
pub(super) const MOST: usize = 40;

/// How these figures come about.
pub(crate) const METHOD: &str = "Used is what energy counters of GPUs counted under plans. Saved is what default clocks would have \
     used beyond that, by steps at default clocks beside steps of each plan, and so is the slowdown. An \
     interval holds the true saving in 95 of 100 cases. What is not proven may be nothing, and has \
     neither money nor CO2e.";

/// What is proven, in a sentence.
pub(crate) fn sentence(total: &Savings) -> Option<String> {
    let saved = total.saved.filter(|saved| saved.shown)?;
    Some(format!(
        "{} saved, {} of what default clocks would have used; between {} and {}.",
        watt_hours(saved.estimate_j),
        percent(share(total, &saved)),
        watt_hours(saved.low_j),
        watt_hours(saved.high_j)
    ))
}

/// The figures of a proven saving, in large letters; empty if none is proven.
pub(crate) fn figures(total: &Savings, tariff: &Tariff) -> String {
    let Some(saved) = total.saved.filter(|saved| saved.shown) else { return String::new() };
    let slower = total.slowdown_s.filter(|slowdown_s| *slowdown_s > 0.0).map(span);
    let of = |what: &str| Some(what.to_owned());
    let tile = |name, value: Option<String>, note| Some((name, value?, note));
    let tiles_of = [
        tile("Saved", Some(watt_hours(saved.estimate_j)), Some(interval(&saved))),
        tile("Share", Some(percent(share(total, &saved))), of("of default clocks")),
        tile("Money", money(total, tariff), price(total, tariff)),
        tile("CO2e", co2e(total), grid(total, tariff)),
        tile("Slower by", slower, Some(format!("of {}", span(total.time_s)))),
    ];
    tiles(tiles_of.into_iter().flatten())
}

/// What a kilowatt-hour of the saving was worth.
fn price(total: &Savings, tariff: &Tariff) -> Option<String> {
    let (price, said) = of_kwh(total, total.money, tariff.price_per_kwh)?;
    let price = format!("at {price:.4}").trim_end_matches('0').trim_end_matches('.').to_owned();
    Some(format!("{price} {} a kWh{said}", tariff.currency).replace("  ", " "))
}

fn grid(total: &Savings, tariff: &Tariff) -> Option<String> {
    let (co2e_g, said) = of_kwh(total, total.co2e_g, tariff.co2e_g_per_kwh)?;
    Some(format!("at {co2e_g:.0} g a kWh{said}"))
}

/// The worth of a kilowatt-hour, and that it is a mean if not every one is worth what the flat tariff says.
fn of_kwh(total: &Savings, worth: Option<Worth>, flat: Option<f64>) -> Option<(f64, &'static str)> {
    let mean = worth?.estimate / (total.saved?.estimate_j / KWH_J);
    let is_flat = flat.is_some_and(|flat| (mean - flat).abs() <= 1e-9 * flat.abs());
    Some((mean, if is_flat { "" } else { " on average" }))
}

/// What was paid and used, and what is wrong with the tariff or the ledger, in sentences.
pub(crate) fn facts(report: &SavingsReport) -> Vec<String> {
    let total = &report.total;
    let paid = match total.slowdown_s {
        Some(slowdown_s) if slowdown_s > 0.0 => format!(
            "Paid with {} of longer steps, of {} under plans.",
            span(slowdown_s),
            span(total.time_s)
        ),
        Some(_) => "Steps took no longer than at default clocks.".to_owned(),
        None => "How much longer steps took was not measured.".to_owned(),
    };
    let used = format!(
        "{} used under plans, {} of it under plans that were compared with default clocks.",
        watt_hours(total.energy_j),
        percent(total.compared_j / total.energy_j.max(f64::MIN_POSITIVE))
    );
    let hottest = total.hottest_c.map(|c| format!("The hottest GPU was at {c} \u{b0}C."));
    let problems = [&report.tariff_problem, &report.ledger_problem].into_iter().flatten().cloned();
    [paid, used].into_iter().chain(hottest).chain(problems).collect()
}

/// A row for each subject, such as a user.
pub(crate) fn rows(
    report: &SavingsReport,
    of: &str,
    name: &dyn Fn(&SavingsRow) -> Option<String>,
) -> String {
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
            money(&row.savings, &report.tariff),
            co2e(&row.savings),
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

/// The rows that used most.
pub(super) fn largest(report: &SavingsReport) -> Vec<&SavingsRow> {
    let mut rows: Vec<_> = report.rows.iter().collect();
    rows.sort_by(|one, other| other.savings.energy_j.total_cmp(&one.savings.energy_j));
    rows.truncate(MOST);
    rows
}

/// What kept it from being more, in sentences.
pub(crate) fn limits(total: &Savings) -> Vec<String> {
    let Savings { throttled_s, hottest_c, given_j, lost_s, energy_j, compared_j, .. } = *total;
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
    said
}

/// Bars of the days; empty if none has a saving.
pub(crate) fn days(report: &SavingsReport) -> String {
    let bar = |row: &SavingsRow| Bar {
        name: row.day_unix_s.map_or_else(String::new, date),
        saved: row.savings.saved,
    };
    let bars: Vec<_> = report.rows.iter().take(MOST).map(bar).collect();
    drawn(&bars, "Saved by day (UTC), with 95 % intervals.")
}

/// A picture of bars; empty if there is none.
pub(super) fn drawn(of: &[Bar], caption: &str) -> String {
    bars(of).map_or_else(String::new, |svg| figure(&svg, caption))
}

/// What is most likely, where nothing is proven.
pub(crate) fn uncertain(total: &Savings) -> Option<String> {
    let SavedEnergy { low_j, estimate_j, high_j, .. } = total.saved.filter(|saved| !saved.shown)?;
    Some(format!(
        "Not certain yet: most likely {} saved, but between {} and {}.",
        watt_hours(estimate_j),
        watt_hours(low_j),
        watt_hours(high_j)
    ))
}
