//! The curve on which a table should lie, and how much of the distance noise explains.

use super::isotonic;
use super::level::level;
use super::neighbours::outliers;
use crate::profile::Table;
use crate::profile::median::median;
use crate::profile::quantity::Quantity;

/// The standard deviation of rows above which a table is noisy, and the least change that is worth
/// making. Published clean tables are below 0.6 %.
pub(crate) const NOISY: f64 = 0.01;

/// In standard deviations: noise does not explain larger distances.
pub(crate) const EXPLAINED: f64 = 4.0;

/// A smaller change of a share is rounding.
pub(super) const ROUNDING: f64 = 1e-12;

/// The closest curve to a table that falls (time) or rises (power).
pub(crate) fn curve(table: Table, quantity: Quantity) -> Vec<f64> {
    let weights = table.counts();
    let closest = |values: &[f64]| match quantity {
        Quantity::Time => isotonic::falling(values, &weights),
        Quantity::Power => isotonic::rising(values, &weights),
    };
    let mut values = table.values(quantity);
    let curve = closest(&values);
    // A table of the right shape stays, whatever its neighbours predict. (Power, a quotient, may be
    // off by a bit.)
    if curve.iter().zip(&values).all(|(curve, value)| (curve / value - 1.0).abs() < ROUNDING) {
        return values;
    }
    for outlier in outliers(table.rows, quantity) {
        values[outlier.index] = outlier.expected;
    }
    closest(&values)
}

/// The curve where noise explains the distance from it, and the measured values elsewhere.
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
        let steps = run.iter().map(|&index| (measured[index] / curve[index] - 1.0, level[index]));
        if !has_step(&steps.collect::<Vec<_>>())
            && run.iter().all(|&index| off(index) <= EXPLAINED * level[index])
        {
            for index in run {
                most = most.max(off(index));
                values[index] = curve[index];
            }
        }
    }
    if most >= NOISY { values } else { measured }
}

/// Whether the rows up to one of a run differ from those after it by more than noise explains. Each
/// row has a value and its standard deviation.
fn has_step(run: &[(f64, f64)]) -> bool {
    let sums = |rows: &[(f64, f64)]| {
        let weights = rows.iter().map(|(_, sd)| sd.powi(-2));
        let weighted = rows.iter().map(|(value, sd)| value * sd.powi(-2));
        (weighted.sum::<f64>(), weights.sum::<f64>())
    };
    (1..run.len()).any(|split| {
        let (before, after) = run.split_at(split);
        let ((a, weight_a), (b, weight_b)) = (sums(before), sums(after));
        let distance = (a / weight_a - b / weight_b).abs();
        distance > EXPLAINED * (1.0 / weight_a + 1.0 / weight_b).sqrt()
    })
}
