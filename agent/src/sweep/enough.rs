//! How many steps are enough to measure a clock well. Pure.

/// No energy should have a larger standard error than this, as a share of it.
pub(crate) const GOOD_ERROR: f64 = 0.005;

/// Limits on how long a trial is made for that: its time in seconds, and its steps. The planner
/// smooths the rest.
const LONG_ENOUGH_S: f64 = 20.0;
const MOST_STEPS: f64 = 10_000.0;

/// Factors on the number of steps: to be sure of the error, and where an energy could not be
/// measured at all.
const SPARE: f64 = 1.5;
const MORE: f64 = 4.0;

/// The steps of the next trial, at least `asked`, after `steps` of `step_s` seconds left an error
/// of the energy, or none where the energy of some instruction is unknown.
pub(crate) fn steps(asked: u32, steps: u32, step_s: f64, error: Option<f64>) -> u32 {
    let wanting = error.map_or(MORE, |error| (error / GOOD_ERROR).powi(2));
    let most = (LONG_ENOUGH_S / step_s).min(MOST_STEPS);
    ((SPARE * wanting * f64::from(steps)).min(most) as u32).max(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_times_the_steps_halve_an_error_and_no_trial_becomes_endless() {
        assert_eq!(steps(10, 10, 0.1, Some(2.0 * GOOD_ERROR)), 60);
        assert_eq!(steps(10, 60, 0.1, Some(GOOD_ERROR / 100.0)), 10);
        assert_eq!(steps(10, 10, 0.1, None), 60);
        assert_eq!(steps(10, 10, 0.1, Some(1.0)), 200);
        assert_eq!(steps(10, 10, 30.0, Some(1.0)), 10);
        assert_eq!(steps(10, 10, 0.0, Some(f64::INFINITY)), 10_000);
    }
}
