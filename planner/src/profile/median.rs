//! The median, and the scatter around it, which single outliers do not change.

/// From the median of absolute deviations of normal values to their standard deviation.
pub(crate) const MEDIAN_TO_SD: f64 = 1.4826;

/// The median; for an even number of values the mean of the two in the middle, for none 0.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2).copied().unwrap_or(0.0);
    if values.len() % 2 == 1 || values.is_empty() {
        return upper;
    }
    (values[values.len() / 2 - 1] + upper) / 2.0
}
