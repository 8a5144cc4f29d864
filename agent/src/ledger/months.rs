//! What a node tells its fleet of what it saved: sums of each month by job, partition and model of GPUs.
//! Pure.
//!
//! A node writes only what its own ledgers say, in the place of what it said before: what is written twice
//! counts once, and what a node said stays when it is gone. Each ledger has a number, so that a node
//! which gets a new name, or begins a new ledger, counts once and loses nothing.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use pfo_protocol::{Savings, SavingsBy, SavingsNode, SavingsRow, Tariff, Uid};
use serde::{Deserialize, Serialize};

use crate::ledger::comparison::Compared;
use crate::ledger::query::{
    Estimates, KWH_J, Known, MOST_ROWS, Part, by_subject, savings_and_estimates,
};
use crate::ledger::saving::{Estimate, Rates};
use crate::ledger::tariff::Prices;
use crate::ledger::windows::{Heat, Measured};

/// The largest text that a node tells, before it is compressed, in bytes.
const LARGEST_TEXT: u64 = 8 * 1024 * 1024;

/// Months that a node tells of one ledger.
const MOST_MONTHS: usize = 14;

/// Months by their names, such as `2026-11`.
type Months = BTreeMap<String, Month>;

/// What a node tells: the months of each of its ledgers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Told(BTreeMap<String, Months>);

/// One month of one ledger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Month {
    written_unix_s: u64,
    /// Of its money.
    #[serde(default)]
    currency: String,
    rows: Vec<MonthRow>,
}

/// What a job saved in a month on a node, in a partition and on GPUs of a model. None of several jobs
/// that were too many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct MonthRow {
    uid: Uid,
    job: Option<String>,
    partition: Option<String>,
    model: Option<String>,
    savings: Savings,
    /// Of what was saved.
    variance_j2: f64,
    freedom: f64,
    /// What it is worth by the prices of the node; none if these are not known.
    #[serde(default)]
    money: Option<Estimate>,
    #[serde(default)]
    co2e_g: Option<Estimate>,
}

/// Whose a row of an answer is: of what user, job, partition and model.
type RowOf = (Option<Uid>, Option<String>, Option<String>, Option<String>);

type Group = (Uid, Option<String>, Option<String>, Option<String>);

impl Month {
    fn of(known: &[Known], prices: &Prices, written_unix_s: u64) -> Self {
        let groups = by_subject(known, |work, window| -> Group {
            (work.uid, Some(work.job.clone()), window.partition.clone(), window.model.clone())
        });
        let row = |(group, parts): (Group, Vec<Part<'_>>)| {
            let (savings, estimates) = savings_and_estimates(&parts, prices);
            let slowdown_s = own_slowdown_s(&parts);
            MonthRow::of(group, Savings { slowdown_s, ..savings }, &estimates)
        };
        let (currency, rows) =
            (prices.flat.currency.clone(), groups.into_iter().map(row).collect());
        Self { written_unix_s, currency, rows }
    }

    fn used_j(&self) -> f64 {
        self.rows.iter().map(|row| row.savings.energy_j).sum()
    }

    /// The same without the names of jobs.
    fn without_jobs(&self) -> Self {
        let mut groups: BTreeMap<Group, Vec<&MonthRow>> = BTreeMap::new();
        for row in &self.rows {
            let group = (row.uid, None, row.partition.clone(), row.model.clone());
            groups.entry(group).or_default().push(row);
        }
        let row = |(group, rows): (Group, Vec<&MonthRow>)| {
            let (savings, estimates) = together(&rows);
            MonthRow::of(group, savings, &estimates)
        };
        let (currency, rows) = (self.currency.clone(), groups.into_iter().map(row).collect());
        Self { currency, rows, ..*self }
    }
}

impl MonthRow {
    fn of((uid, job, partition, model): Group, savings: Savings, of: &Estimates) -> Self {
        let sum = |estimates: &Option<Vec<Estimate>>| Estimate::sum(estimates.as_ref()?);
        let saved = Estimate::sum(&of.saved);
        let (variance_j2, freedom) = saved.map_or((0.0, 1.0), |of| (of.variance, of.freedom));
        let (money, co2e_g) = (sum(&of.money), sum(&of.co2e_g));
        // The worth is said once.
        let savings = Savings { money: None, co2e_g: None, ..of.put_into(savings) };
        Self { uid, job, partition, model, savings, variance_j2, freedom, money, co2e_g }
    }

    fn estimate(&self) -> Option<Estimate> {
        let saved = self.savings.saved?.estimate_j;
        let estimate = Estimate { saved, variance: self.variance_j2, freedom: self.freedom };
        estimate.is_one().then_some(estimate)
    }

    /// Adds money by the prices of the asking node where the node itself has none. Money in another currency
    /// counts as none.
    fn priced(&self, currency: &str, flat: &Tariff) -> Self {
        let by = |price: Option<f64>| Some(self.estimate()?.times(price? / KWH_J));
        let own = |worth: Option<Estimate>| worth.filter(Estimate::is_one);
        let money = match own(self.money) {
            Some(money) => Some(money).filter(|_| currency == flat.currency),
            None => by(flat.price_per_kwh),
        };
        let co2e_g = own(self.co2e_g).or_else(|| by(flat.co2e_g_per_kwh));
        Self { money, co2e_g, ..self.clone() }
    }

    /// The row of an answer that it is part of.
    fn row_of(&self, by: SavingsBy) -> RowOf {
        let Self { uid, job, partition, model, .. } = self;
        match by {
            SavingsBy::Partition => (None, None, partition.clone(), None),
            SavingsBy::Model => (None, None, None, model.clone()),
            SavingsBy::User => (Some(*uid), None, None, None),
            SavingsBy::Job | SavingsBy::Plan | SavingsBy::Day => {
                (Some(*uid), job.clone(), None, None)
            }
        }
    }
}

impl Told {
    /// What these bytes tell; nothing if no agent wrote them.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut text = Vec::new();
        let read = GzDecoder::new(bytes).take(LARGEST_TEXT).read_to_end(&mut text);
        read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// The months of a ledger in the place of what it said of them before. One that has less energy than
    /// before has lost rows, and changes nothing.
    pub(super) fn tell(
        &mut self,
        ledger: &str,
        months: &BTreeMap<String, Vec<Known>>,
        (prices, now): (&Prices, u64),
    ) {
        let of_ledger = self.0.entry(ledger.to_owned()).or_default();
        for (name, known) in months {
            let month = Month::of(known, prices, now);
            let before = of_ledger.get(name);
            let is_more = before.is_none_or(|before| month.used_j() >= before.used_j());
            let is_other = before.is_none_or(|before| month.rows != before.rows);
            if is_more && is_other && !month.rows.is_empty() {
                of_ledger.insert(name.clone(), month);
            }
        }
        while of_ledger.len() > MOST_MONTHS {
            of_ledger.pop_first();
        }
    }

    /// The bytes to write, at most `most`. If they are too many, names of jobs are left out, those of the
    /// oldest months first, and then whole months.
    pub(crate) fn written(&self, most: usize) -> Vec<u8> {
        let mut told = self.clone();
        let mut bytes = told.compressed();
        let mut names: Vec<String> = self.0.values().flat_map(BTreeMap::keys).cloned().collect();
        names.sort();
        names.dedup();
        for name in &names {
            if bytes.len() <= most {
                return bytes;
            }
            for month in told.0.values_mut().filter_map(|months| months.get_mut(name)) {
                *month = month.without_jobs();
            }
            bytes = told.compressed();
        }
        for name in &names {
            if bytes.len() <= most {
                break;
            }
            told.0.values_mut().for_each(|months| drop(months.remove(name)));
            bytes = told.compressed();
        }
        bytes
    }

    fn compressed(&self) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        // Nothing is written but into memory.
        let text = serde_json::to_vec(self).unwrap_or_default();
        encoder.write_all(&text).and_then(|()| encoder.finish()).unwrap_or_default()
    }
}

/// This node's part of how much longer jobs took: nodes of one job all count its steps.
fn own_slowdown_s(parts: &[Part<'_>]) -> Option<f64> {
    let own_s = |(comparisons, windows): &Part<'_>| {
        let rates = Rates::of(comparisons)?;
        let of_window = |window: &&Measured| {
            let energy_j = window.used_j()?;
            let own = |compared: &Compared| {
                compared.slowdown() * Rates::share(compared, energy_j, window.steps)
            };
            Some(window.time_s * rates.mean(window.at_unix_s(), own))
        };
        Some(windows.iter().filter_map(of_window).sum::<f64>())
    };
    parts.iter().filter_map(own_s).reduce(|sum_s, more_s| sum_s + more_s)
}

/// A month of a fleet, of one user or of all, and of jobs of one name or of all.
pub(super) struct Fleet {
    pub(super) rows: Vec<SavingsRow>,
    pub(super) total: Savings,
    pub(super) nodes: Vec<SavingsNode>,
}

/// Merges what nodes tell of a month. Of a ledger that several tell of, such as that of a node under its
/// former name, the one that has most energy counts.
pub(super) fn merged(
    told: &BTreeMap<String, Told>,
    month: &str,
    (by, flat): (SavingsBy, &Tariff),
    is_asked: impl Fn(Uid, Option<&str>) -> bool,
) -> Fleet {
    let mut ledgers: BTreeMap<&str, (&str, &Month)> = BTreeMap::new();
    for (node, Told(of_node)) in told {
        for (ledger, months) in of_node {
            let Some(found) = months.get(month) else { continue };
            let known = ledgers.entry(ledger.as_str()).or_insert((node.as_str(), found));
            if known.1.used_j() < found.used_j() {
                *known = (node.as_str(), found);
            }
        }
    }
    let mut nodes: BTreeMap<&str, u64> = BTreeMap::new();
    for (node, month) in ledgers.values() {
        let written = nodes.entry(node).or_default();
        *written = (*written).max(month.written_unix_s);
    }
    let rows = ledgers.values().flat_map(|(_, month)| {
        let asked = month.rows.iter().filter(|row| is_asked(row.uid, row.job.as_deref()));
        asked.map(|row| row.priced(&month.currency, flat))
    });
    let rows: Vec<_> = rows.collect();
    let all: Vec<_> = rows.iter().collect();
    let mut groups: BTreeMap<RowOf, Vec<&MonthRow>> = BTreeMap::new();
    for row in &rows {
        groups.entry(row.row_of(by)).or_default().push(row);
    }
    let shown = |((uid, job, partition, model), rows): (RowOf, Vec<&MonthRow>)| SavingsRow {
        uid,
        job: job.and_then(|job| job.parse().ok()),
        partition,
        model,
        savings: saved_together(&rows),
        ..SavingsRow::default()
    };
    let nodes = nodes
        .into_iter()
        .map(|(name, written_unix_s)| SavingsNode { name: name.to_owned(), written_unix_s });
    Fleet {
        total: saved_together(&all),
        rows: groups.into_iter().take(MOST_ROWS).map(shown).collect(),
        nodes: nodes.collect(),
    }
}

fn saved_together(rows: &[&MonthRow]) -> Savings {
    let (savings, estimates) = together(rows);
    estimates.put_into(savings)
}

/// What rows come to, but for what was saved, and that of each job.
fn together(rows: &[&MonthRow]) -> (Savings, Estimates) {
    let mut sum = Savings::default();
    let mut heat = Heat::default();
    for row in rows {
        let of = &row.savings;
        sum.steps = sum.steps.saturating_add(of.steps);
        sum.comparisons = sum.comparisons.saturating_add(of.comparisons);
        (sum.time_s, sum.energy_j) = (sum.time_s + of.time_s, sum.energy_j + of.energy_j);
        sum.compared_j += of.compared_j;
        (sum.given_j, sum.lost_s) = (sum.given_j + of.given_j, sum.lost_s + of.lost_s);
        if let Some(slowdown_s) = of.slowdown_s {
            *sum.slowdown_s.get_or_insert(0.0) += slowdown_s;
        }
        heat = heat.and(Heat { throttled_s: of.throttled_s, hottest_c: of.hottest_c });
    }
    (sum.throttled_s, sum.hottest_c) = (heat.throttled_s, heat.hottest_c);
    let estimates = Estimates {
        saved: by_job(rows, MonthRow::estimate).unwrap_or_default(),
        money: by_job(rows, |row| row.money),
        co2e_g: by_job(rows, |row| row.co2e_g),
    };
    (sum, estimates)
}

/// What each job saved. The rows of one job share its comparisons, on whichever node they were measured: what
/// these are off by adds up. Different jobs are independent. None if a row that saved something lacks it.
fn by_job(rows: &[&MonthRow], of: impl Fn(&MonthRow) -> Option<Estimate>) -> Option<Vec<Estimate>> {
    let mut jobs: BTreeMap<(Uid, Option<&str>), Estimate> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.estimate().is_some()) {
        let estimate = of(row)?;
        jobs.entry((row.uid, row.job.as_deref()))
            .and_modify(|job| *job = job.with_dependent(&estimate))
            .or_insert(estimate);
    }
    Some(jobs.into_values().collect())
}

#[cfg(test)]
mod tests;
