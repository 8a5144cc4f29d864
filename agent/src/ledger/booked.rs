//! What was saved so far, by user and partition, in sums that only rise: Prometheus adds them up over
//! months and nodes. Pure.
//!
//! A row of the ledger is booked once, when its plan has been compared twice, by the comparisons that are
//! then nearest in time. What later comparisons would say of it changes nothing any more: a sum that is
//! corrected would fall.

use pfo_protocol::Uid;

use crate::ledger::saving::Rates;
use crate::ledger::windows::Measured;

/// The sums of a user in a partition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Account {
    pub(crate) uid: Uid,
    /// None where the scheduler said none.
    pub(crate) partition: Option<String>,
    pub(crate) booked: Booked,
}

/// Sums, none of which ever falls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Booked {
    /// The energy that was used under plans that were compared.
    pub(crate) compared_j: f64,
    /// The energy that plans saved, of rows in which they saved something.
    pub(crate) saved_j: f64,
    /// The energy that they took beyond default clocks, of the other rows.
    pub(crate) lost_j: f64,
    /// The variance of the difference.
    pub(crate) variance_j2: f64,
    /// The time that steps took beyond default clocks, and the time that they took less.
    pub(crate) slower_s: f64,
    pub(crate) faster_s: f64,
}

impl Booked {
    /// One row. So many joules were booked by each comparison before, which this row adds to.
    ///
    /// All joules of a comparison are off by the same share. So their variances do not add up: what is
    /// added is by how much the variance of their sum rises. The ledgers of the other nodes of a job are
    /// off by that share, too, and see only their own joules. Each books its part of the variance, and of
    /// the slowdown, of the whole job.
    pub(super) fn of(rates: &Rates<'_>, row: &Measured, before_j: &mut [f64]) -> Option<Self> {
        let (used_j, widening) = (row.used_j()?, rates.widening()?);
        let energy_j = rates.of_steps_j(row)?;
        let (mut saved_j, mut slowdown_s, mut variance_j2) = (0.0, 0.0, 0.0);
        for (index, compared, part) in rates.parts(row.at_unix_s()) {
            let share = Rates::share(compared, energy_j, row.steps);
            let part_j = part * energy_j;
            saved_j += part_j * compared.saving();
            slowdown_s += part * row.time_s * compared.slowdown() * share;
            let squares_j2 = part_j * (2.0 * before_j[index] + part_j);
            variance_j2 += squares_j2 * rates.variance_of(compared) * widening / share;
        }
        let booked = Self {
            compared_j: used_j,
            saved_j: saved_j.max(0.0),
            lost_j: (-saved_j).max(0.0),
            variance_j2,
            slower_s: slowdown_s.max(0.0),
            faster_s: (-slowdown_s).max(0.0),
        };
        for (index, _, part) in rates.parts(row.at_unix_s()).filter(|_| booked.is_sum()) {
            before_j[index] += part * energy_j;
        }
        booked.is_sum().then_some(booked)
    }

    /// Whether it can be added: one figure that is none would end all sums.
    fn is_sum(&self) -> bool {
        let Self { compared_j, saved_j, lost_j, variance_j2, slower_s, faster_s } = *self;
        [compared_j, saved_j, lost_j, variance_j2, slower_s, faster_s]
            .iter()
            .all(|figure| figure.is_finite() && *figure >= 0.0)
    }
}

#[cfg(test)]
mod tests;
