//! Numbers that look random and are the same each time.

use std::f64::consts::TAU;

/// The generator that Steele, Lea and Flood published as `SplitMix64` (OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform, above 0 and at most 1.
    fn next_share(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Normally distributed with mean 0 and standard deviation 1, by Box and Muller's method.
    pub fn next_normal(&mut self) -> f64 {
        let (radius, angle) = (self.next_share(), self.next_share());
        (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_the_mean_and_the_spread_that_they_should() {
        let mut random = SplitMix::new(1);
        let numbers: Vec<_> = (0..100_000).map(|_| random.next_normal()).collect();
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
