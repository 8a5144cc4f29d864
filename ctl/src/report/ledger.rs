//! What the ledger of pfo-agent has of a job, whether it runs or has ended.

use pfo_protocol::{SavedEnergy, Savings, SavingsReport};

use super::html::{element, table};
use crate::savings::share;
use crate::status::quantity::{percent, span, watt_hours};

/// A row for each plan, with its interval.
pub(super) fn section(ledger: &SavingsReport) -> String {
    let text = element("h2", "Savings with intervals, from the ledger");
    if ledger.rows.is_empty() {
        let why = "The ledger has nothing of this job yet: a row is written every ten minutes while \
                   it runs a plan.";
        return text + &element("p", why);
    }
    let header = [
        "Plan",
        "Steps",
        "Time",
        "Used",
        "Saved",
        "95 % interval",
        "Share",
        "Throttled",
        "Hottest",
    ];
    let rows = ledger.rows.iter().map(|row| {
        let Savings { steps, time_s, energy_j, throttled_s, hottest_c, saved, .. } = row.savings;
        let shown = saved.filter(|saved| saved.shown);
        let interval = saved.map(|SavedEnergy { low_j, high_j, .. }| {
            format!("{} to {}", watt_hours(low_j), watt_hours(high_j))
        });
        [
            row.plan.clone(),
            Some(steps.to_string()),
            Some(span(time_s)),
            Some(watt_hours(energy_j)),
            Some(shown.map_or("not proven".to_owned(), |saved| watt_hours(saved.estimate_j))),
            interval,
            shown.map(|saved| percent(share(&row.savings, &saved))),
            throttled_s.map(span),
            hottest_c.map(|hottest_c| format!("{hottest_c} \u{b0}C")),
        ]
    });
    text + &table(header, rows)
        + &element(
            "p",
            "Measured. What is not proven may be nothing: its interval holds zero, or its plan was \
             compared with default clocks fewer than two times.",
        )
}
