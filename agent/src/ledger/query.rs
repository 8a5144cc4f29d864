//! What is asked of the ledger, row by row. Pure.

use std::collections::BTreeMap;

use pfo_protocol::{SavedEnergy, Savings, SavingsBy, SavingsRow, Uid};

use crate::ledger::comparison::Compared;
use crate::ledger::saving::{Estimate, Interval, Used};
use crate::ledger::windows::{Entry, Heat, Work};

const DAY_S: u64 = 86_400;

/// Rows of an answer, which has to fit into a frame.
const MOST_ROWS: usize = 10_000;

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

/// What one entry measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) from_unix_s: u64,
    pub(super) until_unix_s: u64,
    pub(super) steps: u64,
    pub(super) time_s: f64,
    pub(super) energy_j: Option<f64>,
    pub(super) heat: Heat,
    pub(super) given_j: f64,
    pub(super) lost_s: f64,
}

impl Measured {
    pub(super) fn of(entry: &Entry) -> Self {
        let Entry { from_unix_s, until_unix_s, steps, time_s, energy_j, .. } = *entry;
        let Entry { heat, given_j, lost_s, .. } = *entry;
        Self { from_unix_s, until_unix_s, steps, time_s, energy_j, heat, given_j, lost_s }
    }

    fn at_unix_s(&self) -> u64 {
        self.from_unix_s.midpoint(self.until_unix_s)
    }
}

/// The subject of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Of {
    day_unix_s: Option<u64>,
    uid: Option<Uid>,
    job: Option<String>,
    plan: Option<String>,
}

impl Of {
    fn part(by: SavingsBy, work: &Work, measured: &Measured) -> Self {
        let at = measured.at_unix_s();
        let (uid, job) = (Some(work.uid), Some(work.job.clone()));
        let nothing = Self { day_unix_s: None, uid: None, job: None, plan: None };
        match by {
            SavingsBy::Job => Self { uid, job, ..nothing },
            SavingsBy::User => Self { uid, ..nothing },
            SavingsBy::Plan => Self { uid, job, plan: Some(work.plan.clone()), ..nothing },
            SavingsBy::Day => Self { day_unix_s: Some(at.saturating_sub(at % DAY_S)), ..nothing },
        }
    }
}

/// Every row.
pub(super) fn rows(known: &[Known], by: SavingsBy) -> Vec<SavingsRow> {
    let mut parts: BTreeMap<Of, BTreeMap<usize, Vec<Measured>>> = BTreeMap::new();
    for (index, Known { work, windows, .. }) in known.iter().enumerate() {
        for measured in windows {
            let of_row = parts.entry(Of::part(by, work, measured)).or_default();
            of_row.entry(index).or_default().push(*measured);
        }
    }
    let row = |(of, parts): (Of, BTreeMap<usize, Vec<Measured>>)| {
        let parts =
            parts.iter().map(|(index, windows)| (&known[*index].comparisons[..], &windows[..]));
        let Of { day_unix_s, uid, job, plan } = of;
        let job = job.and_then(|job| job.parse().ok());
        SavingsRow { uid, job, plan, day_unix_s, savings: savings(parts) }
    };
    parts.into_iter().take(MOST_ROWS).map(row).collect()
}

/// All of it.
pub(super) fn total(known: &[Known]) -> Savings {
    savings(known.iter().map(|known| (&known.comparisons[..], &known.windows[..])))
}

fn savings<'a>(parts: impl Iterator<Item = (&'a [Compared], &'a [Measured])>) -> Savings {
    let (mut savings, mut estimates) = (Savings::default(), Vec::new());
    let mut heat = Heat::default();
    for (comparisons, windows) in parts {
        let used: Vec<_> = windows.iter().filter_map(used).collect();
        let energy_j: f64 = used.iter().map(|used| used.energy_j).sum();
        for measured in windows {
            savings.steps = savings.steps.saturating_add(measured.steps);
            savings.time_s += measured.time_s;
            heat = heat.and(measured.heat);
            savings.given_j += measured.given_j;
            savings.lost_s += measured.lost_s;
        }
        savings.energy_j += energy_j;
        savings.comparisons = savings.comparisons.saturating_add(comparisons.len() as u64);
        if let Some(estimate) = Estimate::of(comparisons, &used) {
            savings.compared_j += energy_j;
            estimates.push(estimate);
        }
    }
    (savings.throttled_s, savings.hottest_c) = (heat.throttled_s, heat.hottest_c);
    savings.saved = Interval::of(&estimates).map(|interval| SavedEnergy {
        low_j: interval.low,
        estimate_j: interval.estimate,
        high_j: interval.high,
        shown: interval.is_shown(),
    });
    savings
}

fn used(measured: &Measured) -> Option<Used> {
    let energy_j = measured.energy_j.filter(|energy_j| energy_j.is_finite() && *energy_j >= 0.0)?;
    Some(Used { at_unix_s: measured.at_unix_s(), energy_j })
}
