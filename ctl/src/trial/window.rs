//! What some steps of a job took.

use pfo_protocol::{JobName, TrialResult};

use super::TrialError;

/// Time and energy of each measured step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Window {
    pub(crate) times_s: Vec<f64>,
    pub(crate) energies_j: Vec<f64>,
}

impl Window {
    /// The steps of a trial, all ranks on this node together.
    pub(crate) fn of(job: &JobName, trial: &TrialResult) -> Result<Self, TrialError> {
        let no_energy = || TrialError::NoEnergy { job: job.clone() };
        let energies: Option<Vec<f64>> = trial.steps.iter().map(|step| step.energy_j).collect();
        Ok(Self {
            times_s: trial.steps.iter().map(|step| step.time_s).collect(),
            energies_j: energies.ok_or_else(no_energy)?,
        })
    }

    pub(crate) fn steps(&self) -> usize {
        self.times_s.len()
    }

    pub(crate) fn time_s(&self) -> f64 {
        mean(&self.times_s)
    }

    pub(crate) fn energy_j(&self) -> f64 {
        mean(&self.energies_j)
    }

    /// The standard deviation of a step's time.
    pub(crate) fn time_sd_s(&self) -> f64 {
        deviation(&self.times_s)
    }

    /// The standard deviation of a step's energy.
    pub(crate) fn energy_sd_j(&self) -> f64 {
        deviation(&self.energies_j)
    }
}

/// The mean; not a number of no values.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of what these values are drawn from; 0 of a single one.
fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len().max(2) - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_that_of_what_the_values_are_drawn_from() {
        assert!((deviation(&[1.0, 2.0, 3.0, 4.0, 5.0]) - 2.5_f64.sqrt()).abs() < 1e-12);
        assert_eq!(deviation(&[1.0]), 0.0);
    }
}
