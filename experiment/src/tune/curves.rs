//! The time and the power of instructions over the clock, from few measurements: smooth and monotone, with
//! an interval, and one shape for all stages that run the same kind of instruction.
//!
//! A share of an instruction's time goes with one over the clock, and the rest, which waits for memory, does not
//! change. No clock makes an instruction slower than in proportion, so that the share is at most one. The power
//! is a polynomial of the second degree that does not fall as the clock rises. What is not measured has wide
//! priors; each measurement makes them narrower, in the way of Bayesian linear regression.

use std::collections::BTreeMap;

use pfo_planner::{Chunk, Instruction, Mhz, Stage};
use pfo_protocol::{RecordedTrial, TrialRow};

use crate::energy::{energy_j, is_known, mean_w};

/// The share of time that goes with the clock, before it is measured, and how far off that may be.
const SHARE: (f64, f64) = (0.9, 0.2);

/// How much shares differ between stages that run the same kind.
const APART: f64 = 0.03;

/// Slope and curvature of the power over the clock, as shares of both at the highest, and how far off.
const POWER: [(f64, f64); 2] = [(1.3, 0.5), (0.65, 0.8)];

/// The least error of a measured ratio of times, and of powers.
const LEAST_ERROR: (f64, f64) = (0.003, 0.005);

/// No power is a smaller share of that at the highest clock.
const LEAST_POWER: f64 = 0.1;

/// No lower clock is tried, as a share of the highest: leakage makes all of them take more energy.
const LOWEST: f64 = 0.4;

/// A GPU whose clock is lower than the highest one by more than this share is held back.
const HELD_BACK: f64 = 0.02;

const HEADER: &str = "stage,instruction,frequency,time,energy,chunk,count,time_sd,energy_sd\n";

type Key = (Stage, Instruction, Chunk);

/// What is known of a job's instructions.
#[derive(Debug)]
pub(crate) struct Curves {
    highest: Mhz,
    /// Time in seconds and energy in joules at the highest clock.
    bases: BTreeMap<Key, Figures>,
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    time_s: f64,
    energy_j: f64,
    /// As a share of the energy.
    error: f64,
    count: f64,
}

/// One instruction at one clock, as shares of what it takes at the highest.
#[derive(Clone, Copy, Debug)]
struct Point {
    key: Key,
    clock: f64,
    time: f64,
    power: f64,
    error: f64,
}

/// What the points say of one kind.
struct Fit {
    share: f64,
    share_error: f64,
    power: [f64; 2],
    /// The covariance of both.
    covariance: [[f64; 2]; 2],
}

impl Curves {
    /// Begins with a trial at default clocks, of GPUs of which this is the highest clock.
    ///
    /// # Errors
    /// In words, if a figure is missing, or a GPU does not hold that clock.
    pub(crate) fn new(baseline: &RecordedTrial, highest: Mhz) -> Result<Self, String> {
        let lowest = (1.0 - HELD_BACK) * f64::from(highest.0);
        for rank in &baseline.ranks {
            let of = |row: &TrialRow| format!("of {} on rank {}", row.instruction, rank.rank);
            for row in &rank.rows {
                if let Some(mhz) = row.observed_mhz.filter(|mhz| *mhz < lowest) {
                    let of = of(row);
                    return Err(format!(
                        "the GPU {of} ran at {mhz:.0} MHz by itself, not at {highest}"
                    ));
                }
                // What takes the same time at any clock may be too short for an energy.
                if !row.instruction.is_fixed() && !is_known(row) {
                    return Err(format!("its energy counter does not show the energy {}", of(row)));
                }
            }
        }
        let bases = figures(baseline).into_iter().map(|((key, _), figures)| (key, figures));
        let bases: BTreeMap<Key, Figures> = bases.collect();
        match bases.is_empty() {
            false => Ok(Self { highest, bases, points: Vec::new() }),
            true => Err("no instruction was measured".to_owned()),
        }
    }

    /// Adds what a trial at other clocks shows.
    pub(crate) fn add(&mut self, trial: &RecordedTrial) {
        for ((key, mhz), figures) in figures(trial) {
            let (Some(base), Some(mhz)) = (self.bases.get(&key), mhz) else { continue };
            let clock = f64::from(mhz.0) / f64::from(self.highest.0);
            let time = figures.time_s / base.time_s;
            let power = figures.energy_j / base.energy_j / time;
            let error = figures.error.hypot(base.error).max(LEAST_ERROR.1);
            if clock < 1.0 && power.is_finite() {
                self.points.push(Point { key, clock, time, power, error });
            }
        }
    }

    /// The largest error of an energy at the highest clock, as a share, of what depends on the clock.
    pub(crate) fn worst_error(&self) -> f64 {
        let free = self.bases.iter().filter(|((_, instruction, _), _)| !instruction.is_fixed());
        free.map(|(_, base)| base.error).fold(0.0, f64::max)
    }

    /// A profile of those of these clocks at which the power of each kind is known within this share. Times
    /// and powers are the most likely ones. To try clocks, they are the ends of their intervals: the longest
    /// times, so that no step is longer than expected, and the lowest powers, so that clocks are tried which may
    /// save most.
    pub(crate) fn csv(&self, clocks: &[Mhz], known: f64, to_try: bool) -> String {
        let mut csv = HEADER.to_owned();
        let fits: BTreeMap<Instruction, Fit> =
            self.bases.keys().map(|key| (key.1, self.fit(key.1))).collect();
        let is_known = |clock: f64| fits.values().all(|fit| fit.power_error(clock) <= known);
        for (&key, base) in &self.bases {
            let (stage, instruction, chunk) = key;
            let Some(fit) = fits.get(&instruction) else { continue };
            let (share, error) = self.of_stage(key, fit);
            let share = if to_try { share + 2.0 * error } else { share };
            for &mhz in clocks {
                let clock = f64::from(mhz.0) / f64::from(self.highest.0);
                if mhz != self.highest && (clock < LOWEST || !is_known(clock)) {
                    continue;
                }
                let longer = 1.0 + share.clamp(0.0, 1.0) * (1.0 / clock - 1.0);
                let less = if to_try { fit.power_error(clock) } else { 0.0 };
                let power = (fit.power_at(clock) - less).max(LEAST_POWER);
                let (time_s, energy_j) = (base.time_s * longer, base.energy_j * longer * power);
                // Not how far repeats are apart, for there are none, but within what the row is known.
                let time_sd_s = base.time_s * error * (1.0 / clock - 1.0);
                let energy_sd_j = energy_j * base.error.hypot(fit.power_error(clock) / power);
                let frequency = mhz.0;
                csv += &format!(
                    "{stage},{instruction},{frequency},{time_s},{energy_j},{chunk},1,{time_sd_s},{energy_sd_j}\n"
                );
            }
        }
        csv
    }

    /// The share of a stage's time that goes with the clock: that of its kind, as long as its own points
    /// do not say otherwise.
    fn of_stage(&self, key: Key, fit: &Fit) -> (f64, f64) {
        let own = self.points.iter().filter(|point| point.key == key);
        share(own, (fit.share, fit.share_error.hypot(APART)))
    }

    fn fit(&self, kind: Instruction) -> Fit {
        let points = || self.points.iter().filter(|point| point.key.1 == kind);
        let prior = if kind.is_fixed() { (0.0, LEAST_ERROR.0) } else { SHARE };
        let (share, share_error) = share(points(), prior);
        // The inverse covariance, and its product with the mean.
        let [(slope, slope_error), (bend, bend_error)] = POWER;
        let (mut one, mut both, mut two) = (slope_error.powi(-2), 0.0, bend_error.powi(-2));
        let (mut first, mut second) = (one * slope, two * bend);
        for Point { clock, power, error, .. } in points() {
            let (below, weight) = (clock - 1.0, error.powi(-2));
            let [x, y] = [below, below * below];
            one += weight * x * x;
            both += weight * x * y;
            two += weight * y * y;
            first += weight * x * (power - 1.0);
            second += weight * y * (power - 1.0);
        }
        let determinant = one * two - both * both;
        let covariance =
            [[two / determinant, -both / determinant], [-both / determinant, one / determinant]];
        let power = covariance.map(|row| row[0] * first + row[1] * second);
        Fit { share, share_error, power, covariance }
    }
}

/// The share of time that goes with the clock, and its error.
fn share<'a>(points: impl Iterator<Item = &'a Point>, (prior, error): (f64, f64)) -> (f64, f64) {
    let begin = (error.powi(-2), error.powi(-2) * prior);
    let (weight, sum) = points.fold(begin, |(weight, sum), point| {
        let (longer, of_one) = (1.0 / point.clock - 1.0, LEAST_ERROR.0.powi(-2));
        (weight + of_one * longer * longer, sum + of_one * longer * (point.time - 1.0))
    });
    (sum / weight, weight.sqrt().recip())
}

impl Fit {
    /// The power at a clock, as shares of those at the highest.
    fn power_at(&self, clock: f64) -> f64 {
        let [slope, bend] = self.power;
        let below = clock - 1.0;
        // Where it would rise again as the clock falls, it stays.
        let below = if bend > 0.0 { below.max(-slope / (2.0 * bend)) } else { below };
        (1.0 + slope * below + bend * below * below).clamp(LEAST_POWER, 1.0)
    }

    fn power_error(&self, clock: f64) -> f64 {
        let below = clock - 1.0;
        let at = [below, below * below];
        let [one, two] = self.covariance.map(|row| row[0] * at[0] + row[1] * at[1]);
        (at[0] * one + at[1] * two).max(0.0).sqrt()
    }
}

/// The means of the ranks of each stage, by clock.
fn figures(trial: &RecordedTrial) -> BTreeMap<(Key, Option<Mhz>), Figures> {
    let mut sums: BTreeMap<(Key, Option<Mhz>), Figures> = BTreeMap::new();
    for (rank, recorded) in trial.trial.ranks.iter().zip(&trial.ranks) {
        let mean_w = mean_w(&recorded.rows);
        for row in &recorded.rows {
            let Some(energy_j) = energy_j(row, mean_w) else { continue };
            let key = (rank.stage, row.instruction, row.chunk);
            let sum = sums.entry((key, row.mhz)).or_default();
            sum.time_s += row.time_median_s;
            sum.energy_j += energy_j;
            let error = row.energy_sd_j.unwrap_or(0.0) / (row.count as f64).sqrt() / energy_j;
            sum.error = sum.error.max(error);
            sum.count += 1.0;
        }
    }
    for sum in sums.values_mut() {
        sum.time_s /= sum.count;
        sum.energy_j /= sum.count;
    }
    sums
}

#[cfg(test)]
mod tests {
    use pfo_planner::Profile;
    use proptest::prelude::*;

    use super::*;

    const KEY: Key = (Stage(0), Instruction::Forward, Chunk(0));
    const CLOCKS: [Mhz; 5] = [Mhz(1000), Mhz(900), Mhz(800), Mhz(700), Mhz(600)];

    fn curves(points: &[(f64, f64, f64)]) -> Curves {
        let base = Figures { time_s: 0.1, energy_j: 30.0, error: 0.0, count: 1.0 };
        let point = |&(clock, time, power): &(f64, f64, f64)| Point {
            key: KEY,
            clock,
            time,
            power,
            error: LEAST_ERROR.1,
        };
        let points = points.iter().map(point).collect();
        Curves { highest: Mhz(1000), bases: BTreeMap::from([(KEY, base)]), points }
    }

    fn at(curves: &Curves, mhz: u32, to_try: bool) -> (f64, f64) {
        let csv = curves.csv(&CLOCKS, f64::INFINITY, to_try);
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let row = profile.at(Stage(0), Instruction::Forward, Mhz(mhz)).unwrap();
        (row.time_s, row.energy_j)
    }

    #[test]
    fn what_is_not_measured_is_tried_as_if_its_time_went_with_the_clock() {
        let (time_s, _) = at(&curves(&[]), 800, true);
        assert!((time_s - 0.1 / 0.8).abs() < 1e-9, "{time_s}");
    }

    #[test]
    fn two_clocks_show_the_time_and_the_energy_between_them() {
        // A fifth of the time waits for memory; the power is a polynomial.
        let law = |clock: f64| {
            let below = clock - 1.0;
            (clock, 0.2 + 0.8 / clock, 1.0 + 1.6 * below + 0.8 * below * below)
        };
        let curves = curves(&[law(0.9), law(0.7)]);
        let (time_s, energy_j) = at(&curves, 800, false);
        let (_, time, power) = law(0.8);
        assert!((time_s / 0.1 / time - 1.0).abs() < 0.005, "{time_s}");
        assert!((energy_j / 30.0 / time / power - 1.0).abs() < 0.01, "{energy_j}");
    }

    #[test]
    fn clocks_far_from_every_measured_one_are_not_planned() {
        let planned = |points: &[(f64, f64, f64)]| {
            curves(points).csv(&CLOCKS, 0.06, false).lines().count() - 1
        };
        assert_eq!(planned(&[]), 2);
        assert!(planned(&[(0.9, 1.09, 0.86), (0.7, 1.35, 0.6)]) >= 4);
    }

    proptest! {
        #[test]
        fn no_lower_clock_is_faster_or_draws_more_whatever_was_measured(
            points in prop::collection::vec((0.4_f64..0.99, 0.5_f64..3.0, 0.01_f64..2.0), 0..6)
        ) {
            for to_try in [false, true] {
                let curves = curves(&points);
                let rows: Vec<_> = CLOCKS.map(|mhz| at(&curves, mhz.0, to_try)).into();
                let power = |(time_s, energy_j): &(f64, f64)| energy_j / time_s;
                prop_assert!(rows.is_sorted_by(|one, next| one.0 <= next.0 + 1e-12));
                prop_assert!(to_try || rows.is_sorted_by(|one, next| power(one) >= power(next) - 1e-9));
            }
        }
    }
}
