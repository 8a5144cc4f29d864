//! Single repeats that cannot be right: a window in which something else ran, a counter that was
//! read late.
//!
//! A line is left out if its time or its energy is further than five standard deviations from the
//! median of its repeats. The standard deviation is estimated robustly, from the median of all such
//! distances in the table of the stage and instruction, because the few repeats at one clock say
//! too little. With only two repeats, or with more than a third of them far off, it is unknown
//! which are wrong: then all stay, and their scatter is reported.

use std::collections::BTreeMap;

use pfo_vocabulary::{Instruction, Mhz, Stage};

use crate::profile::measurement::Measurement;
use crate::profile::median::{MEDIAN_TO_SD, median};
use crate::profile::repeats::Line;

/// In standard deviations: fewer than one in a million normal measurements lie beyond.
const FAR: f64 = 5.0;

/// A deviation of at most this share of the median does no harm.
const HARMLESS: f64 = 0.02;

/// A larger share is wrong even where the repeats are too few to estimate the scatter.
const ABSURD: f64 = 0.5;

/// Fewer distances do not give a scatter.
const ENOUGH: usize = 4;

/// A line that is left out of its row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeftOut {
    /// The stage of the line.
    pub stage: Stage,
    /// The instruction of the line.
    pub instruction: Instruction,
    /// Its number in the profile, counted from 1 at the header.
    pub line: u64,
    /// The time and energy that it has.
    pub measured: Measurement,
    /// The medians of the line and its repeats.
    pub median: Measurement,
    /// The number of repeats, this line included.
    pub repeats: usize,
}

/// Removes the lines to leave out from a table, which has the repeats by clock and by measurer.
pub(crate) fn leave_out<Who>(
    (stage, instruction): (Stage, Instruction),
    table: &mut BTreeMap<Mhz, BTreeMap<Who, Vec<Line>>>,
) -> Vec<LeftOut> {
    let repeats = || table.values().flat_map(BTreeMap::values).map(Vec::as_slice);
    let far_time = far(repeats(), |measured| measured.time_s);
    let far_energy = far(repeats(), |measured| measured.energy_j);

    let mut left_out = Vec::new();
    for lines in table.values_mut().flat_map(BTreeMap::values_mut) {
        let Some(first) = lines.first().filter(|_| lines.len() > 2) else { continue };
        let median = Measurement {
            frequency: first.measured.frequency,
            time_s: median(lines.iter().map(|line| line.measured.time_s)),
            energy_j: median(lines.iter().map(|line| line.measured.energy_j)),
        };
        let is_far = |line: &Line| {
            distance(line.measured.time_s, median.time_s) > far_time
                || distance(line.measured.energy_j, median.energy_j) > far_energy
        };
        let far_off = lines.iter().filter(|line| is_far(line)).count();
        if far_off == 0 || 3 * far_off > lines.len() {
            continue;
        }
        let repeats = lines.len();
        let out = lines.extract_if(.., |line| is_far(line)).map(|line| LeftOut {
            stage,
            instruction,
            line: line.number,
            measured: line.measured,
            median,
            repeats,
        });
        left_out.extend(out);
    }
    left_out
}

/// The distance from the median, as a share of it, beyond which a line is left out.
fn far<'a>(
    repeats: impl Iterator<Item = &'a [Line]>,
    quantity: impl Fn(&Measurement) -> f64,
) -> f64 {
    let mut distances = Vec::new();
    for lines in repeats.filter(|lines| lines.len() > 2) {
        let values = || lines.iter().map(|line| quantity(&line.measured));
        let median = median(values());
        let mut of_lines: Vec<f64> = values().map(|value| distance(value, median)).collect();
        of_lines.sort_by(f64::total_cmp);
        // The nearest is (close to) the median itself and says nothing.
        distances.extend(&of_lines[1..]);
    }
    if distances.len() < ENOUGH {
        return ABSURD;
    }
    distances.sort_by(f64::total_cmp);
    (FAR * MEDIAN_TO_SD * distances[(distances.len() - 1) / 2]).max(HARMLESS)
}

fn distance(value: f64, median: f64) -> f64 {
    (value / median - 1.0).abs()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::profile::repeats::Repeats;

    /// For each clock, the seconds of its repeats; lines are numbered through.
    fn table(clocks: &[&[f64]]) -> BTreeMap<Mhz, BTreeMap<(), Vec<Line>>> {
        let mut number = 1;
        let mut line = |frequency, time_s: f64| {
            number += 1;
            let measured = Measurement { frequency, time_s, energy_j: 200.0 * time_s };
            Line { number, measured, repeats: Repeats::default(), observed_mhz: None }
        };
        (0..)
            .map(|index| Mhz(1410 - 15 * index))
            .zip(clocks)
            .map(|(clock, times)| {
                let lines = times.iter().map(|&time_s| line(clock, time_s)).collect();
                (clock, BTreeMap::from([((), lines)]))
            })
            .collect()
    }

    fn lines_left_out(clocks: &[&[f64]]) -> Vec<u64> {
        let mut table = table(clocks);
        let left_out = leave_out((Stage(0), Instruction::Forward), &mut table);
        let stay: usize = table.values().map(|ranks| ranks[&()].len()).sum();
        assert_eq!(stay + left_out.len(), clocks.concat().len());
        let mut lines: Vec<u64> = left_out.iter().map(|out| out.line).collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn a_line_far_from_its_repeats_is_left_out_whichever_of_both_is_far() {
        let clocks = [&[0.50, 0.51, 0.49][..], &[0.53, 0.70, 0.52], &[0.55, 0.56, 0.54]];
        assert_eq!(lines_left_out(&clocks), [6]);
        let mut table = table(&clocks[2..]);
        table.values_mut().next().unwrap().get_mut(&()).unwrap()[1].measured.energy_j = 999.0;
        let left_out = leave_out((Stage(3), Instruction::Backward), &mut table);
        assert_eq!((left_out.len(), left_out[0].line, left_out[0].repeats), (1, 3, 3));
        assert_eq!((left_out[0].stage, left_out[0].median.time_s), (Stage(3), 0.55));
    }

    #[test]
    fn of_two_repeats_neither_is_left_out() {
        assert!(lines_left_out(&[&[0.5, 5.0], &[0.5, 0.5], &[0.6, 0.6], &[0.6, 0.6]]).is_empty());
    }

    #[test]
    fn where_many_are_far_off_none_is_left_out() {
        let steady: &[f64] = &[0.50, 0.51, 0.49, 0.50, 0.50];
        assert!(lines_left_out(&[steady, steady, &[0.5, 0.5, 0.5, 0.9, 0.9]]).is_empty());
        assert_eq!(lines_left_out(&[steady, steady, &[0.5, 0.5, 0.5, 0.5, 0.9]]), [16]);
    }

    #[test]
    fn equal_repeats_do_not_make_a_harmless_difference_an_error() {
        let equal: &[f64] = &[0.5; 5];
        assert!(lines_left_out(&[equal, equal, &[0.5, 0.5, 0.5, 0.5, 0.509]]).is_empty());
        assert_eq!(lines_left_out(&[equal, equal, &[0.5, 0.5, 0.5, 0.5, 0.52]]), [16]);
    }

    proptest! {
        #[test]
        fn what_scatters_evenly_is_kept_whole(
            // So many that their median distance is known, whatever the seed.
            clocks in prop::collection::vec(prop::collection::vec(0.9_f64..1.1, 6..9), 30..40),
        ) {
            let clocks: Vec<&[f64]> = clocks.iter().map(Vec::as_slice).collect();
            prop_assert!(lines_left_out(&clocks).is_empty());
        }
    }
}
