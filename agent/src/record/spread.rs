//! Mean, standard deviation and median of figures that are not all kept. Pure.

/// Figures kept for the median. Whenever there are more, every second one is dropped.
const KEPT: usize = 512;

/// What is known of the figures so far, after Welford: no difference of large sums is taken.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spread {
    count: u64,
    mean: f64,
    squares: f64,
    /// Every `stride`-th figure, the first among them.
    kept: Vec<f64>,
    stride: u64,
}

impl Default for Spread {
    fn default() -> Self {
        Self { count: 0, mean: 0.0, squares: 0.0, kept: Vec::new(), stride: 1 }
    }
}

impl FromIterator<f64> for Spread {
    fn from_iter<T: IntoIterator<Item = f64>>(figures: T) -> Self {
        let mut spread = Self::default();
        figures.into_iter().for_each(|figure| spread.add(figure));
        spread
    }
}

impl Spread {
    pub(crate) fn add(&mut self, figure: f64) {
        if self.count.is_multiple_of(self.stride) {
            if self.kept.len() == KEPT {
                let mut stays = false;
                self.kept.retain(|_| {
                    stays = !stays;
                    stays
                });
                self.stride = self.stride.saturating_mul(2);
            }
            self.kept.push(figure);
        }
        self.count = self.count.saturating_add(1);
        let off = figure - self.mean;
        self.mean += off / self.count as f64;
        self.squares += off * (figure - self.mean);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 of none.
    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// Their standard deviation, as that of a sample; 0 of fewer than two.
    pub(crate) fn deviation(&self) -> f64 {
        if self.count < 2 {
            0.0
        } else {
            (self.squares / self.count.saturating_sub(1) as f64).sqrt()
        }
    }

    /// The standard error of their mean; 0 of fewer than two.
    pub(crate) fn error_of_mean(&self) -> f64 {
        self.deviation() / (self.count.max(1) as f64).sqrt()
    }

    /// The mean of the middle half, from a few hundred of them spread over all; 0 of none. Unlike the
    /// mean it is not changed by a few that are far off; unlike the median it lies between two values
    /// that take turns.
    pub(crate) fn middle_mean(&self) -> f64 {
        let mut kept = self.kept.clone();
        kept.sort_by(f64::total_cmp);
        let beside = kept.len() / 4;
        let middle = kept.get(beside..kept.len().saturating_sub(beside)).unwrap_or_default();
        middle.iter().sum::<f64>() / middle.len().max(1) as f64
    }

    /// Their median, from a few hundred of them spread over all; 0 of none.
    pub(crate) fn median(&self) -> f64 {
        let mut kept = self.kept.clone();
        kept.sort_by(f64::total_cmp);
        let middle = |place: usize| kept.get(place).copied().unwrap_or(0.0);
        f64::midpoint(middle(kept.len().saturating_sub(1) / 2), middle(kept.len() / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_the_figures_however_far_these_are_from_zero() {
        let mut spread = Spread::default();
        assert_eq!((spread.mean(), spread.deviation(), spread.median()), (0.0, 0.0, 0.0));
        for figure in [4.0, 7.0, 13.0, 16.0] {
            spread.add(1e9 + figure);
        }
        assert_eq!((spread.count(), spread.mean(), spread.median()), (4, 1e9 + 10.0, 1e9 + 10.0));
        assert!((spread.deviation() - 30f64.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn the_median_of_many_is_near_that_of_all_and_takes_no_more_memory() {
        let mut spread = Spread::default();
        for figure in 0..1_000_000u64 {
            // Every figure below 10,007 about as often, and one in a hundred far off.
            let stray = if figure % 100 == 0 { 1e6 } else { 0.0 };
            spread.add((figure * 7919 % 10_007) as f64 + stray);
        }
        assert!(spread.kept.len() <= KEPT && spread.kept.len() >= KEPT / 2);
        assert!((spread.median() / 5003.0 - 1.0).abs() < 0.1, "{}", spread.median());
        assert!(spread.mean() > 2.0 * spread.median());
    }

    #[test]
    fn the_mean_of_the_middle_half_follows_two_that_take_turns_and_no_few_that_are_far_off() {
        let mut spread = Spread::default();
        assert_eq!(spread.middle_mean(), 0.0);
        (0..40).for_each(|n| spread.add(if n % 2 == 0 { 945.0 } else { 960.0 }));
        assert_eq!(spread.middle_mean(), 952.5);
        (0..4).for_each(|_| spread.add(1410.0));
        assert!((940.0..960.0).contains(&spread.middle_mean()), "{}", spread.middle_mean());
    }
}
