//! Repeated measurements: their mean, their number and their scatter.
//!
//! The scatter is that of one measurement around the mean of the rank that made it. Differences
//! between ranks are not noise.

use crate::profile::measurement::Measurement;

/// How often a row was measured, and the scatter of these measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeats {
    /// The number of measurements of which the row is the mean.
    pub count: u32,
    /// Standard deviation of a single one in seconds; `None` if nothing was measured twice. Of one that counts
    /// once, within what it is known.
    pub time_sd_s: Option<f64>,
    /// Standard deviation of the energy in joules, likewise.
    pub energy_sd_j: Option<f64>,
}

/// A row without further information was measured once.
impl Default for Repeats {
    fn default() -> Self {
        Self { count: 1, time_sd_s: None, energy_sd_j: None }
    }
}

/// One line of a profile.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) number: u64,
    pub(crate) measured: Measurement,
    /// What the line says about measurements that were averaged before it was written.
    pub(crate) repeats: Repeats,
    /// The clock that the GPU really had, in MHz.
    pub(crate) observed_mhz: Option<f64>,
}

/// Time and energy of repeated measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeated {
    /// What a single line says that is no mean: its deviations are within what it is known.
    single: Option<Repeats>,
    pub(crate) count: u32,
    pub(crate) time: Sample,
    pub(crate) energy: Sample,
}

impl Repeated {
    /// The measurements of one rank.
    pub(crate) fn of(lines: &[Line]) -> Self {
        let time = |line: &Line| (line.repeats.count, line.measured.time_s, line.repeats.time_sd_s);
        let energy =
            |line: &Line| (line.repeats.count, line.measured.energy_j, line.repeats.energy_sd_j);
        let single = match lines {
            [Line { repeats: repeats @ Repeats { count: 1, .. }, .. }] => Some(*repeats),
            _ => None,
        };
        Self {
            single,
            count: lines.iter().fold(0, |sum, line| sum.saturating_add(line.repeats.count)),
            time: Sample::of(lines.iter().map(time)),
            energy: Sample::of(lines.iter().map(energy)),
        }
    }

    /// The measurements of several ranks: the mean counts every rank once.
    pub(crate) fn mean(ranks: &[Self]) -> Self {
        let single = match ranks {
            [rank] => rank.single,
            _ => None,
        };
        Self {
            single,
            count: ranks.iter().fold(0, |sum, rank| sum.saturating_add(rank.count)),
            time: Sample::mean_of(ranks.iter().map(|rank| rank.time)),
            energy: Sample::mean_of(ranks.iter().map(|rank| rank.energy)),
        }
    }

    pub(crate) fn repeats(&self) -> Repeats {
        let Self { single, count, time, energy } = self;
        single.unwrap_or(Repeats { count: *count, time_sd_s: time.sd(), energy_sd_j: energy.sd() })
    }
}

/// A mean, and what its standard deviation is computed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) mean: f64,
    /// The sum of squared deviations from the mean.
    squares: f64,
    /// Their degrees of freedom.
    freedom: f64,
}

impl Sample {
    /// Combines means, each with its count and, where it is known, its standard deviation.
    fn of(means: impl Iterator<Item = (u32, f64, Option<f64>)> + Clone) -> Self {
        let total: f64 = means.clone().map(|(count, ..)| f64::from(count)).sum();
        let sum: f64 = means.clone().map(|(count, value, _)| f64::from(count) * value).sum();
        let mut sample = Self { mean: sum / total, squares: 0.0, freedom: -1.0 };
        for (count, value, sd) in means {
            let count = f64::from(count);
            sample.squares += count * (value - sample.mean).powi(2);
            sample.freedom += 1.0;
            if let Some(sd) = sd {
                sample.squares += (count - 1.0) * sd * sd;
                sample.freedom += count - 1.0;
            }
        }
        sample
    }

    fn mean_of(samples: impl Iterator<Item = Self>) -> Self {
        let mut mean = Self { mean: 0.0, squares: 0.0, freedom: 0.0 };
        let mut ranks = 0.0;
        for sample in samples {
            mean.mean += sample.mean;
            mean.squares += sample.squares;
            mean.freedom += sample.freedom;
            ranks += 1.0;
        }
        Self { mean: mean.mean / ranks, ..mean }
    }

    pub(crate) fn sd(&self) -> Option<f64> {
        (self.freedom > 0.0).then(|| (self.squares / self.freedom).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfo_vocabulary::Mhz;

    fn line(count: u32, time_s: f64, time_sd_s: Option<f64>) -> Line {
        let measured = Measurement { frequency: Mhz(1410), time_s, energy_j: 100.0 * time_s };
        let repeats = Repeats { count, time_sd_s, energy_sd_j: None };
        Line { number: 2, measured, repeats, observed_mhz: None }
    }

    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} for {expected}");
    }

    #[test]
    fn lines_that_were_averaged_before_come_to_what_their_single_measurements_come_to() {
        let single = [1.0, 2.0, 3.0, 7.0, 9.0].map(|time_s| line(1, time_s, None));
        let averaged = [line(3, 2.0, Some(1.0)), line(2, 8.0, Some(2.0_f64.sqrt()))];
        let (single, averaged) = (Repeated::of(&single), Repeated::of(&averaged));
        assert_eq!((single.count, averaged.count), (5, 5));
        assert_close(averaged.time.mean, single.time.mean);
        assert_close(averaged.time.sd().unwrap(), single.time.sd().unwrap());
        assert_close(single.time.sd().unwrap(), 11.8_f64.sqrt());
    }

    #[test]
    fn what_was_measured_once_has_no_scatter() {
        assert_eq!(Repeated::of(&[line(1, 0.5, None)]).repeats(), Repeats::default());
        assert_eq!(Repeated::of(&[line(4, 0.5, None)]).time.sd(), None);
    }

    #[test]
    fn that_ranks_differ_is_no_scatter_and_each_counts_once() {
        let ranks = [Repeated::of(&[line(9, 1.0, None)]), Repeated::of(&[line(1, 2.0, None)])];
        let mean = Repeated::mean(&ranks);
        assert_eq!((mean.count, mean.time.mean, mean.time.sd()), (10, 1.5, None));
        let steady = Repeated::of(&[line(1, 1.0, None), line(1, 1.0, None)]);
        let shaky = Repeated::of(&[line(1, 2.0, None), line(1, 4.0, None)]);
        let mean = Repeated::mean(&[steady, shaky]);
        assert_close(mean.time.mean, 2.0);
        assert_close(mean.time.sd().unwrap(), 1.0);
    }
}
