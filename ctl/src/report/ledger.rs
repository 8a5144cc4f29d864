//! What the ledger of pfo-agent has of a job, whether it runs or has ended.

use pfo_protocol::SavingsReport;

use super::html::element;
use super::page::Section;
use crate::savings::saved;
use crate::since::date;

/// A row for each plan, with its interval, and bars of the days.
pub(super) fn section(
    ledger: Result<&SavingsReport, &str>,
    days: Option<&SavingsReport>,
) -> Section {
    let ledger = ledger?;
    if ledger.rows.is_empty() {
        let why = "the ledger has nothing of this job yet; a row is written every ten minutes while it \
                   runs a plan";
        return Err(why.to_owned());
    }
    let days = days.filter(|days| days.rows.len() > 1).map_or_else(String::new, saved::days);
    Ok(saved::rows(ledger, "Plan", &|row| row.plan.clone()) + &days)
}

/// How the figures of the ledger come about, if it has any.
pub(super) fn method(ledger: Result<&SavingsReport, &str>) -> String {
    let has_rows = ledger.is_ok_and(|ledger| !ledger.rows.is_empty());
    if has_rows { element("p", saved::METHOD) } else { String::new() }
}

/// The first and the last day of which the ledger has something.
pub(super) fn period(days: &SavingsReport) -> Option<String> {
    let days = || days.rows.iter().filter_map(|row| row.day_unix_s);
    let (first, last) = (date(days().min()?), date(days().max()?));
    Some(if first == last {
        format!("on {first} (UTC)")
    } else {
        format!("{first} to {last} (UTC)")
    })
}
