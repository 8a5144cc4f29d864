//! The curve that lowtime fits to the energies of an instruction: a·e^(−k·t) + c.
//!
//! lowtime starts a Levenberg-Marquardt search from 54 places and takes the best result. For a
//! given k, the best a and c are those of a straight line; so this searches k alone and finds the
//! optimum that the best of those searches approaches.

use pfo_vocabulary::{Instruction, Stage};

use crate::error::PlanError;

/// A falling exponential.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Exponential {
    first: f64,
    range: f64,
    /// Falls by this factor's exponential over the range.
    steepness: f64,
    height: f64,
    floor: f64,
}

/// Why no curve can be fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// Not more points than parameters: lowtime has no error to minimise then and accepts no curve.
    TooFew,
    /// No curve that falls and is convex comes close.
    Rising,
}

/// The range of steepness, and the number of trials in it.
const FLATTEST: f64 = 1e-3;
const STEEPEST: f64 = 1e3;
const TRIALS: i32 = 240;

impl Exponential {
    /// The curve of least squares through points (time, energy) by rising time.
    pub(super) fn fit(points: &[(f64, f64)]) -> Result<Self, Misfit> {
        let ([first, _, _, .., last], true) = (points, points.len() > 3) else {
            return Err(Misfit::TooFew);
        };
        let (first, range) = (first.0, last.0 - first.0);
        let line = |logarithm: f64| {
            let steepness = logarithm.exp();
            let (height, floor, error) = straight(
                points
                    .iter()
                    .map(|&(time, energy)| ((-steepness * (time - first) / range).exp(), energy)),
            );
            let error = if height > 0.0 { error } else { f64::INFINITY };
            (Self { first, range, steepness, height, floor }, error)
        };
        let step = (STEEPEST / FLATTEST).ln() / f64::from(TRIALS);
        let trials = (0..=TRIALS).map(|trial| FLATTEST.ln() + step * f64::from(trial));
        let best = trials.min_by(|&a, &b| line(a).1.total_cmp(&line(b).1)).unwrap_or(0.0);
        let (curve, error) = line(least(best - step, best + step, |steepness| line(steepness).1));
        if error.is_finite() { Ok(curve) } else { Err(Misfit::Rising) }
    }

    /// The energy at a time.
    pub(super) fn at(&self, time: f64) -> f64 {
        self.height * (-self.steepness * (time - self.first) / self.range).exp() + self.floor
    }
}

/// The curve through an instruction's points (time, energy).
///
/// # Errors
/// [`PlanError::NoFit`] if there is none.
pub(super) fn fit(
    points: &[(f64, f64)],
    stage: Stage,
    instruction: Instruction,
) -> Result<Exponential, PlanError> {
    Exponential::fit(points).map_err(|misfit| {
        let problem = match misfit {
            Misfit::TooFew => {
                format!("it takes 4 frequencies that no other beats, not {}", points.len())
            }
            Misfit::Rising => "energies do not fall with time".to_owned(),
        };
        PlanError::NoFit { stage, instruction, problem }
    })
}

/// Slope and offset of the line of least squares, and the sum of squares.
fn straight(points: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64, f64) {
    let count = points.clone().count() as f64;
    let sum = points.clone().fold((0.0, 0.0), |sum, (x, y)| (sum.0 + x, sum.1 + y));
    let (mean_x, mean_y) = (sum.0 / count, sum.1 / count);
    let (mut xx, mut xy) = (0.0, 0.0);
    for (x, y) in points.clone() {
        xx += (x - mean_x) * (x - mean_x);
        xy += (x - mean_x) * (y - mean_y);
    }
    let slope = xy / xx;
    let offset = mean_y - slope * mean_x;
    let error = points.map(|(x, y)| (slope * x + offset - y).powi(2)).sum();
    (slope, offset, error)
}

/// The minimum between two places of a function with a single one: golden section.
fn least(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    const SECTIONS: u32 = 80;
    const SHARE: f64 = 0.618_033_988_749_894_9;
    for _ in 0..SECTIONS {
        let inner = SHARE * (high - low);
        if f(high - inner) <= f(low + inner) {
            high = low + inner;
        } else {
            low = high - inner;
        }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(energy: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (60..=90).step_by(2).map(|units| (f64::from(units), energy(f64::from(units)))).collect()
    }

    #[test]
    fn an_exponential_is_found_again() {
        for (a, b, c) in [(300.0, -0.05, 10.0), (2e4, -0.11, -3.0), (50.0, -0.01, -20.0)] {
            let energy = |time: f64| a * (b * time).exp() + c;
            let curve = Exponential::fit(&points(energy)).unwrap();
            for time in [60.0, 71.5, 90.0] {
                assert!((curve.at(time) - energy(time)).abs() < 1e-6, "{a} {b} {c} at {time}");
            }
        }
    }

    #[test]
    fn of_noisy_points_no_neighbouring_curve_is_closer() {
        let noisy = points(|time| 400.0 * (-0.04 * time).exp() + (time * 7.0).sin());
        let error = |curve: &Exponential| -> f64 {
            noisy.iter().map(|&(time, energy)| (curve.at(time) - energy).powi(2)).sum()
        };
        let best = Exponential::fit(&noisy).unwrap();
        for factor in [0.999, 1.001] {
            for worse in [
                Exponential { steepness: factor * best.steepness, ..best },
                Exponential { height: factor * best.height, ..best },
                Exponential { floor: factor * best.floor, ..best },
            ] {
                assert!(error(&best) < error(&worse));
            }
        }
    }

    #[test]
    fn three_points_and_rising_ones_are_refused() {
        assert_eq!(Exponential::fit(&points(|t| -t)[..3]), Err(Misfit::TooFew));
        assert_eq!(Exponential::fit(&points(|time| time)), Err(Misfit::Rising));
    }
}
