//! The closest curve that only falls, or only rises, by weighted least squares.
//!
//! Pool-adjacent-violators: neighbours in the wrong order are replaced by their mean until none is
//! left (Ayer et al., An empirical distribution function for sampling with incomplete information,
//! 1955). Values in the right order stay as they are, to the bit.

/// The closest values that never rise.
pub(super) fn falling(values: &[f64], weights: &[f64]) -> Vec<f64> {
    let mut blocks: Vec<Block> = Vec::new();
    for (&mean, &weight) in values.iter().zip(weights) {
        let mut last = Block { mean, weight, len: 1 };
        while let Some(before) = blocks.pop_if(|before| before.mean < last.mean) {
            let weight = before.weight + last.weight;
            let mean = (before.weight * before.mean + last.weight * last.mean) / weight;
            last = Block { mean, weight, len: before.len + last.len };
        }
        blocks.push(last);
    }
    blocks.iter().flat_map(|block| std::iter::repeat_n(block.mean, block.len)).collect()
}

/// The closest values that never fall.
pub(super) fn rising(values: &[f64], weights: &[f64]) -> Vec<f64> {
    let turned: Vec<f64> = values.iter().map(|value| -value).collect();
    falling(&turned, weights).iter().map(|value| -value).collect()
}

/// Neighbours that were replaced by their mean.
struct Block {
    mean: f64,
    weight: f64,
    len: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Values on a coarse grid, so that all curves on it can be tried, and weights.
    fn small() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
        prop::collection::vec((1_u32..=5, 1_u32..=4), 1..=5).prop_map(|rows| {
            let of = |f: fn(&(u32, u32)) -> u32| rows.iter().map(|row| f(row).into()).collect();
            (of(|row| row.0), of(|row| row.1))
        })
    }

    fn any() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
        prop::collection::vec((0.1_f64..10.0, 1.0_f64..9.0), 0..40)
            .prop_map(|rows| rows.into_iter().unzip())
    }

    fn error(values: &[f64], curve: &[f64], weights: &[f64]) -> f64 {
        let rows = values.iter().zip(curve).zip(weights);
        rows.map(|((value, curve), weight)| weight * (value - curve).powi(2)).sum()
    }

    fn falls(curve: &[f64]) -> bool {
        curve.is_sorted_by(|a, b| a >= b)
    }

    /// All falling curves of `len` values through a grid of halves.
    fn falling_curves(len: usize) -> Vec<Vec<f64>> {
        let mut curves = vec![Vec::new()];
        for _ in 0..len {
            let longer = |curve: &Vec<f64>| {
                let curve = curve.clone();
                (2..=10).map(move |halves| [&curve[..], &[f64::from(halves) / 2.0]].concat())
            };
            curves = curves.iter().flat_map(longer).filter(|curve| falls(curve)).collect();
        }
        curves
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn no_other_falling_curve_is_closer((values, weights) in small()) {
            let closest = error(&values, &falling(&values, &weights), &weights);
            for curve in falling_curves(values.len()) {
                prop_assert!(closest <= error(&values, &curve, &weights) + 1e-9, "{curve:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn curves_have_their_shape_and_the_mean_of_the_values((values, weights) in any()) {
            let (fell, rose) = (falling(&values, &weights), rising(&values, &weights));
            prop_assert!(falls(&fell) && rose.is_sorted());
            let mean = |of: &[f64]| of.iter().zip(&weights).map(|(v, w)| v * w).sum::<f64>();
            prop_assert!((mean(&fell) - mean(&values)).abs() < 1e-9);
            prop_assert!((mean(&rose) - mean(&values)).abs() < 1e-9);
        }

        #[test]
        fn what_has_its_shape_stays_as_it_is((values, weights) in any()) {
            let (fell, rose) = (falling(&values, &weights), rising(&values, &weights));
            prop_assert_eq!(&falling(&fell, &weights), &fell);
            prop_assert_eq!(&rising(&rose, &weights), &rose);
        }
    }

    #[test]
    fn a_row_of_more_weight_moves_less() {
        assert_eq!(falling(&[1.0, 4.0], &[2.0, 1.0]), [2.0, 2.0]);
        assert_eq!(rising(&[1.0, 4.0, 2.0], &[1.0, 1.0, 3.0]), [1.0, 2.5, 2.5]);
    }
}
