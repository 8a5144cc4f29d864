//! What a job draws over what its curve says, from its counters.

/// The share that the newest measurement counts once there are many.
const GAIN: f64 = 0.1;
/// Less than this share of its curve is not believed: a counter that stands still, a node that lies.
const LEAST: f64 = 0.85;
/// More than this neither.
const MOST: f64 = 1.5;

/// The mean of what was measured, in which old measurements fade.
///
/// Every value is a mean of what was measured and believed, with weights that sum to 1. So it never
/// leaves the interval of the job's true ratios, independently of decisions meanwhile and of how
/// late a measurement comes: this is a measurement, not an integral of the budget's error, and
/// cannot swing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factor {
    mean: f64,
    taken: u32,
}

impl Default for Factor {
    fn default() -> Self {
        Self { mean: 1.0, taken: 0 }
    }
}

impl Factor {
    /// Takes a measurement of a window under one point. One that is no number is none.
    pub(crate) fn take(&mut self, measured_w: f64, predicted_w: f64) {
        let ratio = measured_w / predicted_w;
        if !(ratio.is_finite() && measured_w > 0.0) {
            return;
        }
        self.taken = self.taken.saturating_add(1);
        // What the curve says counts as one measurement.
        let gain = GAIN.max(1.0 / (1.0 + f64::from(self.taken)));
        self.mean += gain * (ratio.clamp(LEAST, MOST) - self.mean);
    }

    pub(crate) fn value(self) -> f64 {
        self.mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_to_what_is_measured_and_stays_there() {
        let mut factor = Factor::default();
        for _ in 0..100 {
            factor.take(1080.0, 1000.0);
        }
        assert!((factor.value() - 1.08).abs() < 1e-3, "{}", factor.value());
    }

    #[test]
    fn what_cannot_be_is_no_measurement_or_is_bounded() {
        let mut factor = Factor::default();
        for hostile in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -5.0] {
            factor.take(hostile, 1000.0);
        }
        assert_eq!(factor, Factor::default());
        for _ in 0..1000 {
            factor.take(1e-3, 1000.0);
        }
        assert!((factor.value() - LEAST).abs() < 1e-9);
        for _ in 0..1000 {
            factor.take(1e9, 1000.0);
        }
        assert!((factor.value() - MOST).abs() < 1e-9);
    }
}
