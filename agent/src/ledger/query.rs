//! What is asked of the ledger, row by row. Pure.

use std::collections::BTreeMap;

use pfo_protocol::{Savings, SavingsBy, SavingsRow, Uid, Worth};

use crate::ledger::comparison::Compared;
use crate::ledger::hours::Price;
use crate::ledger::saving::{Estimate, Interval, Rates, Used};
use crate::ledger::tariff::Prices;
use crate::ledger::windows::{Heat, Measured, Work};

const DAY_S: u64 = 86_400;

/// Joules of a kilowatt-hour.
pub(super) const KWH_J: f64 = 3.6e6;

/// Rows of an answer, which has to fit into a frame.
pub(super) const MOST_ROWS: usize = 10_000;

/// A plan of a job on its GPUs, with what the ledger has of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    pub(super) work: Work,
    /// In the order of time.
    pub(super) comparisons: Vec<Compared>,
    pub(super) windows: Vec<Measured>,
}

impl Known {
    /// A plan of which nothing is known yet.
    pub(super) fn of(work: &Work) -> Self {
        Self { work: work.clone(), comparisons: Vec::new(), windows: Vec::new() }
    }
}

/// From when to when is asked for: the end is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) since_unix_s: u64,
    pub(super) until_unix_s: u64,
}

impl Measured {
    /// The middle of it, which decides to what day or month all of it belongs: what is in one month is in
    /// no other.
    pub(super) fn at_unix_s(&self) -> u64 {
        self.from_unix_s.midpoint(self.until_unix_s)
    }

    pub(super) fn is_in(&self, Span { since_unix_s, until_unix_s }: Span) -> bool {
        (since_unix_s..until_unix_s).contains(&self.at_unix_s())
    }

    /// The energy, if it was measured.
    pub(super) fn used_j(&self) -> Option<f64> {
        self.energy_j.filter(|energy_j| energy_j.is_finite() && *energy_j >= 0.0)
    }
}

/// The subject of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Of {
    day_unix_s: Option<u64>,
    uid: Option<Uid>,
    job: Option<String>,
    plan: Option<String>,
    partition: Option<String>,
    model: Option<String>,
}

impl Of {
    fn part(by: SavingsBy, work: &Work, measured: &Measured) -> Self {
        let at = measured.at_unix_s();
        let (uid, job) = (Some(work.uid), Some(work.job.clone()));
        let (partition, model) = (measured.partition.clone(), measured.model.clone());
        let day_unix_s = Some(at.saturating_sub(at % DAY_S));
        match by {
            SavingsBy::Job => Self { uid, job, ..Self::default() },
            SavingsBy::User => Self { uid, ..Self::default() },
            SavingsBy::Plan => Self { uid, job, plan: Some(work.plan.clone()), ..Self::default() },
            SavingsBy::Day => Self { day_unix_s, ..Self::default() },
            SavingsBy::Partition => Self { partition, ..Self::default() },
            SavingsBy::Model => Self { model, ..Self::default() },
        }
    }
}

/// What was measured under one plan of a job, with the comparisons of that plan.
pub(super) type Part<'a> = (&'a [Compared], Vec<&'a Measured>);

/// What was measured, by some subject.
pub(super) fn by_subject<'a, S: Ord>(
    known: &'a [Known],
    of: impl Fn(&Work, &Measured) -> S,
) -> BTreeMap<S, Vec<Part<'a>>> {
    let mut subjects: BTreeMap<S, BTreeMap<usize, Part<'a>>> = BTreeMap::new();
    for (index, Known { work, windows, comparisons }) in known.iter().enumerate() {
        for measured in windows {
            let parts = subjects.entry(of(work, measured)).or_default();
            parts.entry(index).or_insert((comparisons, Vec::new())).1.push(measured);
        }
    }
    let parts = |(subject, parts): (S, BTreeMap<_, _>)| (subject, parts.into_values().collect());
    subjects.into_iter().map(parts).collect()
}

/// Every row.
pub(super) fn rows(known: &[Known], by: SavingsBy, prices: &Prices) -> Vec<SavingsRow> {
    let row = |(of, parts): (Of, Vec<Part<'_>>)| {
        let Of { day_unix_s, uid, job, plan, partition, model } = of;
        let job = job.and_then(|job| job.parse().ok());
        let savings = savings(&parts, prices);
        SavingsRow { uid, job, plan, day_unix_s, savings, partition, model }
    };
    let subjects = by_subject(known, |work, measured| Of::part(by, work, measured));
    subjects.into_iter().take(MOST_ROWS).map(row).collect()
}

/// All of it.
pub(super) fn total(known: &[Known], prices: &Prices) -> Savings {
    let parts = known.iter().map(|of| (&of.comparisons[..], of.windows.iter().collect()));
    savings(&parts.collect::<Vec<_>>(), prices)
}

fn savings(parts: &[Part<'_>], prices: &Prices) -> Savings {
    let (savings, estimates) = savings_and_estimates(parts, prices);
    estimates.put_into(savings)
}

/// What plans saved, each by itself: in joules, in money and in grams of carbon dioxide. The latter two are
/// none where a price is not known.
#[derive(Debug)]
pub(super) struct Estimates {
    pub(super) saved: Vec<Estimate>,
    pub(super) money: Option<Vec<Estimate>>,
    pub(super) co2e_g: Option<Vec<Estimate>>,
}

impl Default for Estimates {
    fn default() -> Self {
        Self { saved: Vec::new(), money: Some(Vec::new()), co2e_g: Some(Vec::new()) }
    }
}

impl Estimates {
    /// Adds what a plan saved by these joules, each at its price. Whether it was compared.
    fn add(&mut self, comparisons: &[Compared], used: &[Used], prices: &Prices) -> bool {
        let Some(saved) = Estimate::of(comparisons, used) else { return false };
        self.saved.push(saved);
        let worth = |of: fn(Price) -> Option<f64>| -> Option<Estimate> {
            let priced = used.iter().map(|used| {
                let price = of(prices.at(used.at_unix_s))?;
                Some(Used { energy_j: used.energy_j / KWH_J * price, ..*used })
            });
            Estimate::of(comparisons, &priced.collect::<Option<Vec<_>>>()?)
        };
        let push = |estimates: Option<Vec<Estimate>>, worth: Option<Estimate>| {
            let (mut estimates, worth) = estimates.zip(worth)?;
            estimates.push(worth);
            Some(estimates)
        };
        self.money = push(self.money.take(), worth(|price| price.price_per_kwh));
        self.co2e_g = push(self.co2e_g.take(), worth(|price| price.co2e_g_per_kwh));
        true
    }

    /// Figures with what was saved.
    pub(super) fn put_into(&self, savings: Savings) -> Savings {
        let worth = |estimates: &Option<Vec<Estimate>>| -> Option<Worth> {
            Interval::of(estimates.as_ref()?).map(Interval::worth)
        };
        Savings {
            saved: Interval::of(&self.saved).map(Interval::saved),
            money: worth(&self.money),
            co2e_g: worth(&self.co2e_g),
            ..savings
        }
    }
}

/// All figures but what was saved, and that of each plan.
pub(super) fn savings_and_estimates(parts: &[Part<'_>], prices: &Prices) -> (Savings, Estimates) {
    let (mut savings, mut estimates) = (Savings::default(), Estimates::default());
    let mut heat = Heat::default();
    for (comparisons, windows) in parts {
        let rates = Rates::of(comparisons);
        let used: Vec<_> =
            windows.iter().filter_map(|measured| used(rates.as_ref(), measured)).collect();
        let energy_j: f64 = windows.iter().filter_map(|measured| measured.used_j()).sum();
        for measured in windows {
            savings.steps = savings.steps.saturating_add(measured.steps);
            savings.time_s += measured.time_s;
            heat = heat.and(measured.heat);
            savings.given_j += measured.given_j;
            savings.lost_s += measured.lost_s;
        }
        savings.energy_j += energy_j;
        savings.comparisons = savings.comparisons.saturating_add(comparisons.len() as u64);
        if estimates.add(comparisons, &used, prices) {
            savings.compared_j += energy_j;
            *savings.slowdown_s.get_or_insert(0.0) += slowdown_s(comparisons, windows);
        }
    }
    (savings.throttled_s, savings.hottest_c) = (heat.throttled_s, heat.hottest_c);
    (savings, estimates)
}

/// How much longer than at default clocks this took, by comparisons in the order of time.
fn slowdown_s(comparisons: &[Compared], windows: &[&Measured]) -> f64 {
    let Some(rates) = Rates::of(comparisons) else { return 0.0 };
    let of_window = |measured: &&Measured| {
        measured.time_s * rates.mean(measured.at_unix_s(), Compared::slowdown)
    };
    windows.iter().filter(|measured| measured.used_j().is_some()).map(of_window).sum()
}

fn used(rates: Option<&Rates<'_>>, measured: &Measured) -> Option<Used> {
    let energy_j = rates.map_or(measured.used_j(), |rates| rates.of_steps_j(measured))?;
    Some(Used { at_unix_s: measured.at_unix_s(), energy_j })
}

#[cfg(test)]
mod tests;
