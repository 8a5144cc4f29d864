//! What a job saves, in the sentence and the figures that its page begins with: as the ledger has it or, where
//! that proves nothing yet, as it was measured otherwise, and then it is said that nothing is certain.

use pfo_experiment::{Compared, Report, Verdict};
use pfo_protocol::{JobStatus, SavingsReport};

use super::html::{element, headline, list};
use super::page::Known;
use crate::savings::saved;
use crate::status::measured::Measured;
use crate::status::quantity::percent;

pub(super) fn of(known: &Known<'_>) -> String {
    if let Some(ledger) = known.ledger.ok().filter(|ledger| is_proven(ledger)) {
        return of_ledger(ledger);
    }
    let ledger = known.ledger.ok();
    let said = known.tuned.and_then(of_tune);
    let said = said.or_else(|| ledger.and_then(|ledger| saved::uncertain(&ledger.total)));
    let said = said.or_else(|| of_steps(known.job));
    let said = said.unwrap_or_else(|| match &known.job.plan {
        Some(_) => "Not certain yet: nothing compares the plan with default clocks.".to_owned(),
        None => "Nothing is saved: the job runs default clocks.".to_owned(),
    });
    let compared = ledger.map_or(0, |ledger| ledger.total.comparisons);
    let why = "In kWh and money, a saving is known once the ledger of pfo-agent has compared the plan with \
               default clocks twice or more, and the interval does not contain zero.";
    let why = match known.job.plan {
        Some(_) => element("p", &format!("{why} Comparisons so far: {compared}.")),
        None => String::new(),
    };
    headline(&said) + &why
}

/// The same of a job of which only the ledger is known.
pub(super) fn of_ledger(ledger: &SavingsReport) -> String {
    let said = saved::sentence(&ledger.total).or_else(|| saved::uncertain(&ledger.total));
    headline(said.as_deref().unwrap_or("No saving is proven."))
        + &saved::figures(&ledger.total, &ledger.tariff)
        + &list(&saved::facts(ledger))
}

/// Why money or carbon dioxide of a proven saving is not on the page.
pub(super) fn no_price(ledger: &SavingsReport) -> Option<String> {
    let lacking = [
        ("Money", "price_per_kwh", ledger.total.money),
        ("CO2e", "co2e_g_per_kwh", ledger.total.co2e_g),
    ];
    let lacking: Vec<_> = lacking.into_iter().filter(|(_, _, worth)| worth.is_none()).collect();
    let names: Vec<_> = lacking.iter().map(|(name, ..)| *name).collect();
    let keys: Vec<_> = lacking.iter().map(|(_, key, _)| *key).collect();
    (is_proven(ledger) && !lacking.is_empty()).then(|| {
        let (names, keys) = (names.join(" and "), keys.join(" and no "));
        format!("{names}: [ledger] of agent.toml has no {keys} for all of the time.")
    })
}

fn is_proven(ledger: &SavingsReport) -> bool {
    ledger.total.saved.is_some_and(|saved| saved.shown)
}

fn of_tune(report: &Report) -> Option<String> {
    report.kept.as_ref()?;
    let tried = report.tried.iter().rev().find(|tried| tried.verdict == Verdict::Kept)?;
    let Compared { saving, .. } = tried.compared;
    let certain = if tried.certain {
        ""
    } else {
        " Whether it is within the allowed slowdown is not certain."
    };
    Some(format!(
        "A step takes {} less energy than at default clocks, between {} and {}, as tune measured.{certain}",
        percent(saving.estimate),
        percent(saving.low),
        percent(saving.high)
    ))
}

fn of_steps(job: &JobStatus) -> Option<String> {
    let measured = Measured::in_force(job)?;
    let saving = measured.saving?;
    let less = if saving < 0.0 { "more" } else { "less" };
    Some(format!(
        "Not certain yet: a step takes {} {less} energy than at default clocks, by windows that have no \
         interval.",
        percent(saving.abs())
    ))
}
