//! What some steps of a job took.

use pfo_protocol::TrialResult;

/// Time and energy of each measured step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// In seconds.
    pub times_s: Vec<f64>,
    /// In joules, of all ranks together.
    pub energies_j: Vec<f64>,
}

/// The energy of a step is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a GPU has no energy counter, or it was not read in time")]
pub struct NoEnergy;

impl Window {
    /// The steps of a trial, all of its ranks together.
    ///
    /// # Errors
    /// If the energy of a step is not known.
    pub fn of(trial: &TrialResult) -> Result<Self, NoEnergy> {
        let known = |energy_j: &f64| energy_j.is_finite() && *energy_j > 0.0;
        let energies: Option<Vec<f64>> =
            trial.steps.iter().map(|step| step.energy_j.filter(known)).collect();
        Ok(Self {
            times_s: trial.steps.iter().map(|step| step.time_s).collect(),
            energies_j: energies.ok_or(NoEnergy)?,
        })
    }

    /// Its steps in this many equal parts.
    pub(crate) fn parts(&self, parts: usize) -> impl Iterator<Item = Self> {
        let of_each = (self.steps() / parts.max(1)).max(1);
        let both = self.times_s.chunks_exact(of_each).zip(self.energies_j.chunks_exact(of_each));
        let part = |(times_s, energies_j): (&[f64], &[f64])| Self {
            times_s: times_s.to_vec(),
            energies_j: energies_j.to_vec(),
        };
        both.map(part).take(parts)
    }

    /// Its steps of such times.
    pub(crate) fn only(&self, has: impl Fn(f64) -> bool) -> Self {
        let steps = self.times_s.iter().zip(&self.energies_j).filter(|(time_s, _)| has(**time_s));
        let (times_s, energies_j) = steps.map(|(time_s, energy_j)| (*time_s, *energy_j)).unzip();
        Self { times_s, energies_j }
    }

    /// How many there are.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.times_s.len()
    }

    /// What a step took on average, in seconds.
    #[must_use]
    pub fn time_s(&self) -> f64 {
        mean(&self.times_s)
    }

    /// What a step took on average, in joules.
    #[must_use]
    pub fn energy_j(&self) -> f64 {
        mean(&self.energies_j)
    }

    /// The standard deviation of a step's time; none of a single step.
    #[must_use]
    pub fn time_sd_s(&self) -> Option<f64> {
        deviation(&self.times_s)
    }

    /// The standard deviation of a step's energy; none of a single step.
    #[must_use]
    pub fn energy_sd_j(&self) -> Option<f64> {
        deviation(&self.energies_j)
    }
}

/// The mean; not a number of no values.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of what these values are drawn from; none of a single one.
fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let others = values.len().checked_sub(1).filter(|others| *others > 0)?;
    Some((squares / others as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_that_of_what_the_values_are_drawn_from() {
        let of_five = deviation(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((of_five - 2.5_f64.sqrt()).abs() < 1e-12);
        assert_eq!(deviation(&[1.0]), None);
    }
}
