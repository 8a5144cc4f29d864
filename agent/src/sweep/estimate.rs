//! How long a sweep will still take.

use pfo_protocol::Mhz;

/// Upper bound in seconds for a number of steps at each of these clocks, from the time of a step at
/// a clock that is not below them: no step slows down by more than its clocks do.
pub(crate) fn at_most_s(left: &[Mhz], steps: u32, measured: (Mhz, f64)) -> f64 {
    let (clock, step_s) = measured;
    let step_at = |mhz: &Mhz| step_s * f64::from(clock.0) / f64::from(mhz.0);
    f64::from(steps) * left.iter().map(step_at).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_clock_takes_at_most_twice_the_time() {
        let left = [Mhz(1400), Mhz(700)];
        assert_eq!(at_most_s(&left, 10, (Mhz(1400), 2.0)), 10.0 * (2.0 + 4.0));
        assert_eq!(at_most_s(&[], 10, (Mhz(1400), 2.0)), 0.0);
    }
}
