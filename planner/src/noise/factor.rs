//! Perseus' noise factor: where noise leaves too few unbeaten rows, rows that are beaten by little
//! count, too.
//!
//! Perseus keeps the rows of a table that no other row beats in both time and energy, and fits a
//! curve through them. If three or fewer are left, it tries again and drops a row only if another
//! beats it in both by more than 5 %. A plan here chooses rows, not points of a curve, and a beaten
//! row is never worth choosing; so the energies of the rows that are kept are replaced by the
//! closest ones that fall with time. Tables with more unbeaten rows stay unchanged, and so do
//! times: this rescues a table that noise left hardly any choice, and does little for others.

use super::isotonic::falling;
use crate::profile::measurement::Measurement;

/// Perseus' own limit.
const TOO_FEW: usize = 3;

/// The treated energies of a table; `weights` are the numbers of measurements.
pub(super) fn energies(rows: &[Measurement], weights: &[f64], slack: f64) -> Vec<f64> {
    let mut energies: Vec<f64> = rows.iter().map(|row| row.energy_j).collect();
    if kept(rows, 0.0).len() > TOO_FEW {
        return energies;
    }
    let mut kept = kept(rows, slack);
    kept.sort_by(|&a, &b| rows[a].time_s.total_cmp(&rows[b].time_s));
    let of_kept = |of: &[f64]| kept.iter().map(|&index| of[index]).collect::<Vec<_>>();
    let closest = falling(&of_kept(&energies), &of_kept(weights));
    for (&index, energy_j) in kept.iter().zip(closest) {
        energies[index] = energy_j;
    }
    energies
}

/// The rows that no other beats in both time and energy by more than this share.
fn kept(rows: &[Measurement], slack: f64) -> Vec<usize> {
    let is_beaten = |row: &Measurement| {
        rows.iter().any(|other| {
            other.time_s < row.time_s * (1.0 - slack)
                && other.energy_j < row.energy_j * (1.0 - slack)
        })
    };
    (0..rows.len()).filter(|&index| !is_beaten(&rows[index])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfo_vocabulary::Mhz;

    fn rows(rows: &[(f64, f64)]) -> Vec<Measurement> {
        (0..)
            .zip(rows)
            .map(|(index, &(time_s, energy_j))| Measurement {
                frequency: Mhz(1000 + 15 * index),
                time_s,
                energy_j,
            })
            .collect()
    }

    #[test]
    fn rows_that_are_beaten_by_little_are_smoothed_and_others_stay() {
        let table = rows(&[(0.20, 10.0), (0.18, 9.8), (0.16, 9.6), (0.15, 14.0), (0.10, 11.0)]);
        let energies = energies(&table, &[1.0; 5], 0.05);
        assert_eq!(energies[3..], [14.0, 11.0]);
        // Of the others the fastest beats the slowest by 4 % in energy.
        assert!(energies[..3].iter().all(|energy| (energy - 9.8).abs() < 1e-12), "{energies:?}");
    }

    #[test]
    fn a_table_with_enough_to_choose_from_stays_as_it_is() {
        let table = rows(&[(0.2, 8.0), (0.18, 9.0), (0.16, 10.0), (0.14, 12.0), (0.141, 12.1)]);
        let measured: Vec<f64> = table.iter().map(|row| row.energy_j).collect();
        assert_eq!(energies(&table, &[1.0; 5], 0.05), measured);
    }
}
