//! What an instruction of a trial used. The counter of a GPU says nothing of one that is very short.

use pfo_protocol::TrialRow;

/// Whether the time and the energy of an instruction were measured.
pub(crate) fn is_known(row: &TrialRow) -> bool {
    let is_figure = |figure: f64| figure.is_finite() && figure > 0.0;
    row.count > 0 && is_figure(row.time_median_s) && row.energy_median_j.is_some_and(is_figure)
}

/// The mean power of a rank in the instructions whose time depends on the clock, in watts.
#[must_use]
pub fn mean_w(rows: &[TrialRow]) -> Option<f64> {
    let free = rows.iter().filter(|row| is_known(row) && !row.instruction.is_fixed());
    let sums = free.fold((0.0, 0.0), |(joules, seconds), row| {
        let energy_j = row.energy_median_j.unwrap_or(0.0);
        (joules + energy_j, seconds + row.time_median_s)
    });
    (sums.1 > 0.0).then_some(sums.0 / sums.1)
}

/// The median energy of an instruction, in joules. An instruction of fixed time without an energy, or with one that
/// is less than its scatter, is taken to draw the mean power of its rank, if that is given.
#[must_use]
pub fn energy_j(row: &TrialRow, mean_w: Option<f64>) -> Option<f64> {
    let is_short = row.instruction.is_fixed() && row.count > 0 && row.time_median_s > 0.0;
    let is_doubtful = !is_known(row) || row.energy_sd_j > row.energy_median_j;
    match mean_w.filter(|_| is_short && is_doubtful) {
        Some(mean_w) => Some(mean_w * row.time_median_s),
        None => row.energy_median_j.filter(|_| is_known(row)),
    }
}
