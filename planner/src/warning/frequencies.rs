//! Findings about the measured frequencies and the missing ones.

use pfo_vocabulary::Mhz;

use crate::limits;
use crate::profile::Profile;
use crate::profile::Table;
use crate::profile::measurement::Measurement;
use crate::profile::median::median;
use crate::warning::finding::{Finding, Warning};

/// Perseus' limit: with this few options it doubts the measurement.
const FEW: usize = 3;

/// A step of the grid that is wider than the typical one by this factor is a gap. Grids of NVIDIA
/// GPUs have steps of 15 MHz, or of 7 and 8 MHz in turn.
const WIDE: f64 = 1.5;

/// If more than one step in this many is wide, the grid is uneven on purpose.
const WIDE_AMONG: usize = 4;

/// The share of the others' range that may be missing.
const NARROWER: f64 = 0.1;

pub(super) fn warnings(profile: &Profile) -> Vec<Warning> {
    let tables: Vec<Table> = profile.tables().collect();
    let mut warnings = Vec::new();
    for &Table { stage, instruction, rows, .. } in &tables {
        let mut warn = |finding| warnings.push(Warning { stage, instruction, finding });
        if rows.len() <= FEW {
            warn(Finding::FewFrequencies { found: rows.len() });
        }
        if rows.len() > limits::TABLE_ROWS {
            warn(Finding::ManyFrequencies { found: rows.len(), planned: limits::TABLE_ROWS });
        }
        let others: Vec<&[Measurement]> = tables
            .iter()
            .filter(|other| other.instruction == instruction && other.stage != stage)
            .map(|other| other.rows)
            .collect();
        gaps(rows, &others).into_iter().for_each(&mut warn);
        let others = tables.iter().filter(|other| !std::ptr::eq(other.rows, rows));
        narrow_range(rows, others.map(|other| other.rows)).into_iter().for_each(&mut warn);
    }
    warnings
}

/// Steps of the grid in which most other stages have rows, or that are wider than the rest.
fn gaps(rows: &[Measurement], others: &[&[Measurement]]) -> Vec<Finding> {
    let steps: Vec<(Mhz, Mhz)> =
        rows.windows(2).map(|pair| (pair[0].frequency, pair[1].frequency)).collect();
    let width = |&(from, to): &(Mhz, Mhz)| f64::from(to.0 - from.0);
    let typical = median(steps.iter().map(width));
    let is_wide = |step: &(Mhz, Mhz)| width(step) > WIDE * typical;
    let is_even = steps.iter().filter(|step| is_wide(step)).count() * WIDE_AMONG <= steps.len();
    let measured_elsewhere = |&(from, to): &(Mhz, Mhz)| {
        let within = |row: &Measurement| from < row.frequency && row.frequency < to;
        let with_rows = others.iter().filter(|other| other.iter().any(within)).count();
        2 * with_rows > others.len()
    };
    steps
        .into_iter()
        .filter(|step| is_even && is_wide(step) || measured_elsewhere(step))
        .map(|(from_mhz, to_mhz)| Finding::Gap { from_mhz, to_mhz })
        .collect()
}

/// The range that most tables cover and this one does not.
fn narrow_range<'a>(
    rows: &[Measurement],
    others: impl Iterator<Item = &'a [Measurement]>,
) -> Option<Finding> {
    let (from_mhz, to_mhz) = ends(rows)?;
    let (mut lowest, mut highest): (Vec<Mhz>, Vec<Mhz>) = others.filter_map(ends).unzip();
    lowest.sort_unstable();
    highest.sort_unstable();
    let others_from_mhz = *lowest.get(lowest.len() / 2)?;
    let others_to_mhz = *highest.get(highest.len().checked_sub(1)? / 2)?;
    let missing = f64::from(from_mhz.0.saturating_sub(others_from_mhz.0))
        .max(f64::from(others_to_mhz.0.saturating_sub(to_mhz.0)));
    let range = f64::from(others_to_mhz.0.saturating_sub(others_from_mhz.0));
    (missing > NARROWER * range).then_some(Finding::NarrowRange {
        from_mhz,
        to_mhz,
        others_from_mhz,
        others_to_mhz,
    })
}

fn ends(rows: &[Measurement]) -> Option<(Mhz, Mhz)> {
    Some((rows.first()?.frequency, rows.last()?.frequency))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfo_vocabulary::{Instruction, Stage};

    /// A profile of a forward on each stage with these clocks.
    fn found(stages: &[Vec<u32>]) -> Vec<(u16, Finding)> {
        let mut rows = Vec::new();
        for (stage, clocks) in (0..).map(Stage).zip(stages) {
            for &mhz in clocks {
                let time_s = 100.0 / f64::from(mhz);
                let measured = Measurement { frequency: Mhz(mhz), time_s, energy_j: 10.0 };
                rows.push((stage, Instruction::Forward, measured));
            }
        }
        let profile = Profile::from_measurements(rows).unwrap();
        warnings(&profile).into_iter().map(|warning| (warning.stage.0, warning.finding)).collect()
    }

    fn grid(from: u32, to: u32, step: usize) -> Vec<u32> {
        (from..=to).step_by(step).collect()
    }

    fn gap(from: u32, to: u32) -> Finding {
        Finding::Gap { from_mhz: Mhz(from), to_mhz: Mhz(to) }
    }

    #[test]
    fn grids_as_gpus_have_them_are_not_odd() {
        let v100: Vec<u32> =
            (0..60).map(|index| 1530 - 15 * (index / 2) - 8 * (index % 2)).collect();
        for grid in [v100, grid(855, 1410, 15), grid(810, 1530, 90)] {
            assert_eq!(found(&[grid.clone(), grid]), []);
        }
        let finer_at_the_top = [grid(600, 1200, 60), grid(1215, 1410, 15)].concat();
        assert_eq!(found(&[finer_at_the_top]), []);
    }

    #[test]
    fn missing_rows_within_a_grid_are_a_gap() {
        let mut clocks = grid(855, 1410, 15);
        clocks.retain(|mhz| !(1000..1040).contains(mhz));
        assert_eq!(found(&[clocks]), [(0, gap(990, 1050))]);
    }

    #[test]
    fn rows_that_most_other_stages_have_are_a_gap_where_they_are_missing() {
        let (fine, coarse) = (grid(900, 1300, 40), vec![900, 1020, 1140, 1180, 1300]);
        let found = found(&[fine.clone(), fine, coarse]);
        assert_eq!(found, [(2, gap(900, 1020)), (2, gap(1020, 1140)), (2, gap(1180, 1300))]);
    }

    #[test]
    fn few_frequencies_are_told_unless_the_time_is_fixed() {
        assert_eq!(found(&[vec![900, 1000, 1100]]), [(0, Finding::FewFrequencies { found: 3 })]);
        assert_eq!(found(&[vec![900, 1000, 1100, 1200]]), []);
        let measured = Measurement { frequency: Mhz(900), time_s: 0.1, energy_j: 9.0 };
        let load = [(Stage(0), Instruction::Load, measured)];
        assert_eq!(warnings(&Profile::from_measurements(load).unwrap()), []);
    }

    #[test]
    fn a_stage_that_was_measured_over_less_than_the_others_is_reported_with_both_ranges() {
        let whole = || grid(855, 1410, 15);
        let narrow = Finding::NarrowRange {
            from_mhz: Mhz(855),
            to_mhz: Mhz(1335),
            others_from_mhz: Mhz(855),
            others_to_mhz: Mhz(1410),
        };
        assert_eq!(found(&[whole(), grid(855, 1335, 15), whole()]), [(1, narrow)]);
        assert_eq!(found(&[whole(), grid(870, 1395, 15), whole()]), []);
        let wider = grid(300, 1410, 15);
        assert_eq!(found(&[whole(), wider, whole()]), []);
    }
}
