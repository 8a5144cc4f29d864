//! What the rows around a row predict for it, and rows that are far from the prediction.
//!
//! The prediction is the median of straight lines through pairs of the nearest rows, in logarithms
//! of both quantities: a power law is met exactly, and one outlier among four rows does not decide.

use crate::profile::measurement::Measurement;
use crate::profile::median::{MEDIAN_TO_SD, median};
use crate::profile::quantity::Quantity;

/// The rows that predict. More would reach across bends of the curve.
const NEIGHBOURS: usize = 4;

/// Smaller tables have no predictions.
const LEAST_ROWS: usize = NEIGHBOURS + 1;

/// Smaller tables have no scatter: one step in them looks like noise.
const ENOUGH_ROWS: usize = 10;

/// In standard deviations: rows beyond are outliers. The scatter comes from the neighbours, and
/// bends of the curve and edges of the table blur it.
const FAR: f64 = 6.0;

/// Clean tables of real GPUs have steps of up to 2.6 %, where they change how they run.
const ORDINARY_STEP: f64 = 0.04;

/// How far the first or last row of a table may be from the next one, as the logarithm of their clocks'
/// ratio, to be judged: over a wider gap the bend of the curve looks like an error.
const REACH: f64 = 0.2;

/// If more than one row in this many is far from the others, it is unknown which are right.
const OUTLIERS_AMONG: usize = 5;

/// A row that is far from the prediction of its neighbours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outlier {
    /// Its index in the table.
    pub(crate) index: usize,
    /// The prediction.
    pub(crate) expected: f64,
}

/// An estimate of the standard deviation of a table's rows, as a share; `None` for small tables.
pub(crate) fn scatter(rows: &[Measurement], quantity: Quantity) -> Option<f64> {
    let points = points(rows, quantity);
    (points.len() >= ENOUGH_ROWS).then(|| spread(&residuals(&points)))
}

/// What the neighbours of each row predict for it; `None` for small tables.
pub(crate) fn predictions(rows: &[Measurement], quantity: Quantity) -> Option<Vec<f64>> {
    let points = points(rows, quantity);
    let all = 0..points.len();
    (all.len() >= LEAST_ROWS).then(|| all.map(|place| expected(&points, place).exp()).collect())
}

/// The rows that are far from the others, furthest first.
pub(crate) fn outliers(rows: &[Measurement], quantity: Quantity) -> Vec<Outlier> {
    let mut points = points(rows, quantity);
    let mut outliers = Vec::new();
    while points.len() > LEAST_ROWS && outliers.len() * OUTLIERS_AMONG < rows.len() {
        let residuals = residuals(&points);
        let size = |&place: &usize| residuals[place].abs();
        let in_reach = (0..points.len()).filter(|&place| is_in_reach(&points, place));
        let furthest = in_reach.max_by(|a, b| size(a).total_cmp(&size(b)));
        let limit = ORDINARY_STEP.max(FAR * spread(&residuals));
        let Some(place) = furthest.filter(|place| size(place) > limit) else { break };
        let expected = expected(&points, place).exp();
        outliers.push(Outlier { index: points.remove(place).index, expected });
    }
    outliers
}

/// Whether a point lies between others, or close to the last of them.
fn is_in_reach(points: &[Point], place: usize) -> bool {
    let [first, .., last] = points else { return false };
    match place {
        0 => points[1].x - first.x <= REACH,
        _ if place == points.len() - 1 => last.x - points[place - 1].x <= REACH,
        _ => true,
    }
}

/// The logarithms of a row's clock and of its quantity.
struct Point {
    index: usize,
    x: f64,
    y: f64,
}

fn points(rows: &[Measurement], quantity: Quantity) -> Vec<Point> {
    let point = |(index, row): (usize, &Measurement)| Point {
        index,
        x: f64::from(row.frequency.0).ln(),
        y: quantity.of(row).ln(),
    };
    rows.iter().enumerate().map(point).collect()
}

/// The distance of each point from its prediction, as a share.
fn residuals(points: &[Point]) -> Vec<f64> {
    let residual = |(place, point): (usize, &Point)| (point.y - expected(points, place)).exp_m1();
    points.iter().enumerate().map(residual).collect()
}

fn spread(residuals: &[f64]) -> f64 {
    MEDIAN_TO_SD * median(residuals.iter().map(|residual| residual.abs()))
}

/// The prediction of the nearest points for the one at an index.
fn expected(points: &[Point], place: usize) -> f64 {
    let first = place.saturating_sub(NEIGHBOURS / 2).min(points.len() - LEAST_ROWS);
    let near =
        || (first..first + LEAST_ROWS).filter(|&near| near != place).map(|near| &points[near]);
    let x = points[place].x;
    let lines = near().enumerate().flat_map(|(skip, a)| {
        near().skip(skip + 1).map(move |b| a.y + (b.y - a.y) * (x - a.x) / (b.x - a.x))
    });
    median(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfo_vocabulary::Mhz;

    /// Times of a power law with clocks from 900 MHz on, times what is given.
    fn rows(off: &[f64]) -> Vec<Measurement> {
        (0..)
            .zip(off)
            .map(|(index, off)| {
                let mhz = 900 + 15 * index;
                let time_s = off * (1410.0 / f64::from(mhz)).powf(0.8);
                Measurement { frequency: Mhz(mhz), time_s, energy_j: 100.0 * time_s }
            })
            .collect()
    }

    fn found(rows: &[Measurement]) -> Vec<u32> {
        let outliers = outliers(rows, Quantity::Time);
        outliers.iter().map(|outlier| rows[outlier.index].frequency.0).collect()
    }

    #[test]
    fn a_power_law_has_neither_scatter_nor_outliers() {
        let rows = rows(&[1.0; 20]);
        assert!(scatter(&rows, Quantity::Time).unwrap() < 1e-12);
        assert!(found(&rows).is_empty());
    }

    #[test]
    fn a_wild_row_is_found_wherever_it_is_and_what_it_should_be_is_said() {
        for place in 0..20 {
            let mut off = [1.0; 20];
            off[place] = 1.3;
            let rows = rows(&off);
            assert_eq!(found(&rows), [900 + 15 * place as u32]);
            let outlier = outliers(&rows, Quantity::Time)[0];
            assert!((rows[outlier.index].time_s / outlier.expected - 1.3).abs() < 1e-9);
            assert_eq!(outliers(&rows, Quantity::Power), []);
        }
    }

    #[test]
    fn the_end_of_a_coarse_table_is_not_judged_by_rows_far_from_it() {
        // A part of the time that does not depend on the clock bends the curve.
        let bent = |mhz: u32| {
            let time_s = 0.3 + 1410.0 / f64::from(mhz);
            Measurement { frequency: Mhz(mhz), time_s, energy_j: 100.0 * time_s }
        };
        let coarse: Vec<Measurement> = (240..=1740).step_by(300).map(bent).collect();
        assert!(found(&coarse).is_empty());
        let mut fine: Vec<Measurement> = (240..=1740).step_by(30).map(bent).collect();
        assert!(found(&fine).is_empty());
        fine[0].time_s *= 1.3;
        assert_eq!(found(&fine), [240]);
    }

    #[test]
    fn what_scatters_everywhere_has_no_outliers_but_a_scatter() {
        let off: Vec<f64> = (0..30).map(|index| 1.0 + 0.05 * f64::from(index * 7 % 11)).collect();
        assert!(found(&rows(&off)).is_empty());
        assert!(scatter(&rows(&off), Quantity::Time).unwrap() > 0.05);
    }

    #[test]
    fn a_table_of_few_rows_says_nothing_of_them() {
        assert_eq!(scatter(&rows(&[1.0; 9]), Quantity::Time), None);
        assert!(found(&rows(&[1.0, 2.0, 1.0, 1.0, 1.0])).is_empty());
        assert_eq!(found(&rows(&[1.0, 1.0, 2.0, 1.0, 1.0, 1.0])), [930]);
    }
}
