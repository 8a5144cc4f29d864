//! The curve that a table should lie on, and what of its distance noise explains.

use super::isotonic;
use super::level::level;
use super::neighbours::outliers;
use crate::profile::Table;
use crate::profile::median::median;
use crate::profile::quantity::Quantity;

/// The standard deviation of rows from which on a table is noisy, and the least change to one that
/// is worth it. The published tables, which are clean, are below 0.6 %.
pub(crate) const NOISY: f64 = 0.01;

/// Standard deviations; what is further off than this, noise does not explain.
pub(crate) const EXPLAINED: f64 = 4.0;

/// Of a share.
pub(super) const ROUNDING: f64 = 1e-12;

/// The closest curve of its shape to a table.
pub(crate) fn curve(table: Table, quantity: Quantity) -> Vec<f64> {
    let weights = table.counts();
    let closest = |values: &[f64]| match quantity {
        Quantity::Time => isotonic::falling(values, &weights),
        Quantity::Power => isotonic::rising(values, &weights),
    };
    let mut values = table.values(quantity);
    let curve = closest(&values);
    // What has the shape stays, whatever its neighbours say. Power, a quotient, may miss it by a
    // bit.
    if curve.iter().zip(&values).all(|(curve, value)| (curve / value - 1.0).abs() < ROUNDING) {
        return values;
    }
    for outlier in outliers(table.rows, quantity) {
        values[outlier.index] = outlier.expected;
    }
    closest(&values)
}

/// The same where noise explains what is off it, and what was measured elsewhere.
pub(super) fn explained(table: Table, quantity: Quantity) -> Vec<f64> {
    let measured = table.values(quantity);
    let level = level(table, quantity);
    let Some(level) = level.filter(|level| median(level.iter().copied()) >= NOISY) else {
        return measured;
    };
    let outliers = outliers(table.rows, quantity);
    let is_outlier = |index| outliers.iter().any(|outlier| outlier.index == index);
    let curve = curve(table, quantity);
    let off = |index: usize| (curve[index] / measured[index] - 1.0).abs();

    let mut values = measured.clone();
    let mut most = 0.0_f64;
    let mut next = 0;
    for run in curve.chunk_by(|a, b| a == b) {
        let first = next;
        next += run.len();
        let run: Vec<usize> = (first..next).filter(|&index| !is_outlier(index)).collect();
        if run.iter().all(|&index| off(index) <= EXPLAINED * level[index]) {
            for index in run {
                most = most.max(off(index));
                values[index] = curve[index];
            }
        }
    }
    if most >= NOISY { values } else { measured }
}
