//! Mean and standard deviation of figures that are not kept. Pure.

/// What is known of the figures so far, after Welford: no difference of large sums is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Spread {
    /// Adds a figure.
    pub fn add(&mut self, figure: f64) {
        self.count += 1;
        let off = figure - self.mean;
        self.mean += off / self.count as f64;
        self.squares += off * (figure - self.mean);
    }

    /// How many figures.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 of none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Their standard deviation, as that of a sample; 0 of fewer than two.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        if self.count < 2 { 0.0 } else { (self.squares / (self.count - 1) as f64).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_the_figures_however_far_these_are_from_zero() {
        let mut spread = Spread::default();
        assert_eq!((spread.mean(), spread.deviation()), (0.0, 0.0));
        for figure in [4.0, 7.0, 13.0, 16.0] {
            spread.add(1e9 + figure);
        }
        assert_eq!((spread.count(), spread.mean()), (4, 1e9 + 10.0));
        assert!((spread.deviation() - 30f64.sqrt()).abs() < 1e-6);
    }
}
