//! What is left free below the budget: what no counter admits, and the noise of all together.

/// The share that the newest reading counts.
const GAIN: f64 = 0.1;
/// How many standard deviations are kept free.
const DEVIATIONS: f64 = 3.0;
/// A reading is too uncertain if it may be off by more than this share.
const UNCERTAIN: f64 = 0.001;
/// At least this share of the budget is kept free.
const LEAST: f64 = 0.001;

/// Watts between what a meter reads and what the jobs are counted for.
///
/// Like a job's factor it is a mean of what was seen. Which points the jobs run cancels out, because the
/// count is taken at the points that they run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reserve {
    hidden_w: f64,
    variance_w2: f64,
    is_begun: bool,
}

impl Reserve {
    /// Takes a reading of the meter and what was counted for the same time, which may be off by so much
    /// because nobody knows what ran when. Of a reading that is too uncertain, only what exceeds even
    /// that counts, and none of it as noise.
    pub(crate) fn take(&mut self, meter_w: f64, counted_w: f64, uncertain_w: f64) {
        let difference_w = meter_w - counted_w;
        if !difference_w.is_finite() || meter_w <= 0.0 {
            return;
        }
        if uncertain_w > UNCERTAIN * counted_w {
            let least_w = difference_w - uncertain_w;
            if least_w > self.hidden_w.max(0.0) {
                self.hidden_w += GAIN * (least_w - self.hidden_w);
            }
            return;
        }
        if !self.is_begun {
            *self = Self { hidden_w: difference_w, variance_w2: 0.0, is_begun: true };
            return;
        }
        let surprise_w = difference_w - self.hidden_w;
        self.hidden_w += GAIN * surprise_w;
        self.variance_w2 += GAIN * (surprise_w * surprise_w - self.variance_w2);
    }

    /// Watts to keep free of this budget.
    pub(crate) fn watts(self, budget_w: f64) -> f64 {
        let noise_w = DEVIATIONS * self.variance_w2.max(0.0).sqrt();
        self.hidden_w.max(0.0) + noise_w.max(LEAST * budget_w)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_admits_is_kept_free_and_a_low_meter_gives_nothing() {
        let mut reserve = Reserve::default();
        for _ in 0..100 {
            reserve.take(10_500.0, 10_000.0, 0.0);
        }
        assert!((reserve.watts(1000.0) - 501.0).abs() < 1.0, "{}", reserve.watts(1000.0));
        for _ in 0..1000 {
            reserve.take(9_000.0, 10_000.0, 0.0);
        }
        assert!((reserve.watts(1000.0) - 1.0).abs() < 0.1, "{}", reserve.watts(1000.0));
    }

    #[test]
    fn a_meter_that_reads_no_number_is_not_read() {
        let mut reserve = Reserve::default();
        for hostile in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            reserve.take(hostile, 10.0, 0.0);
        }
        assert_eq!(reserve, Reserve::default());
    }
}
