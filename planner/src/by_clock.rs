//! Figures that were measured at some clocks.

use pfo_vocabulary::Mhz;

/// The figure at a clock, from points by rising clock: interpolated between two of them, beyond them that
/// of the nearest one; none without points.
pub(crate) fn at<T: Copy>(
    points: &[(Mhz, T)],
    clock: Mhz,
    figure: impl Fn(T) -> f64,
) -> Option<f64> {
    let above = points.partition_point(|point| point.0 < clock);
    let low = points.get(above.saturating_sub(1))?;
    let high = points.get(above).unwrap_or(low);
    if low.0 == high.0 {
        return Some(figure(low.1));
    }
    let share = f64::from(clock.0 - low.0.0) / f64::from(high.0.0 - low.0.0);
    Some(figure(low.1) + share * (figure(high.1) - figure(low.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_interpolated_between_clocks_and_constant_beyond_them() {
        let points = [(Mhz(900), 4.0), (Mhz(1000), 8.0), (Mhz(1200), 7.0)];
        let at = |clock| at(&points, Mhz(clock), |figure| figure);
        let found = [1, 900, 925, 1000, 1100, 1200, 1500].map(at);
        assert_eq!(found, [4.0, 4.0, 5.0, 8.0, 7.5, 7.0, 7.0].map(Some));
        assert_eq!(super::at(&[], Mhz(900), |figure: f64| figure), None);
    }
}
