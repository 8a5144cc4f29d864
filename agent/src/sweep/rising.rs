//! When a sweep has gone far enough down: below some clock, leakage and idle power make every
//! instruction take more energy the slower it runs, and no plan wants clocks from there.

use std::collections::BTreeMap;

/// Rises of an instruction's energy in a row that count; one rise alone may be noise. Merak's
/// profiler stops after as many.
const RISES: u32 = 5;

/// The energies of instructions at falling clocks, as far as they matter.
#[derive(Debug)]
pub(crate) struct Rising<K>(BTreeMap<K, Course>);

#[derive(Debug, Default)]
struct Course {
    last_j: f64,
    rises: u32,
    /// It stays so.
    far_enough: bool,
}

impl<K: Ord> Default for Rising<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Rising<K> {
    /// Adds the energies at the next lower clock, in joules. An instruction without one continues
    /// from its last one.
    pub(crate) fn add(&mut self, energies: impl IntoIterator<Item = (K, f64)>) {
        for (instruction, energy_j) in energies {
            let course = self.0.entry(instruction).or_insert(Course {
                last_j: f64::INFINITY,
                rises: 0,
                far_enough: false,
            });
            course.rises =
                if energy_j > course.last_j { course.rises.saturating_add(1) } else { 0 };
            course.last_j = energy_j;
            course.far_enough |= course.rises >= RISES;
        }
    }

    /// Whether the energy of every instruction has risen often enough.
    pub(crate) fn far_enough(&self) -> bool {
        !self.0.is_empty() && self.0.values().all(|course| course.far_enough)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// At which of the clocks the sweep ends.
    fn end(clocks: &[Vec<f64>]) -> Option<usize> {
        let mut rising = Rising::default();
        clocks.iter().position(|energies| {
            rising.add(energies.iter().copied().enumerate());
            rising.far_enough()
        })
    }

    #[test]
    fn four_rises_and_a_fall_begin_anew() {
        let falls_late = [5.0, 4.0, 5.0, 6.0, 7.0, 8.0, 7.5, 8.0, 9.0, 10.0, 11.0, 12.0];
        assert_eq!(end(&falls_late.map(|energy_j| vec![energy_j])), Some(11));
    }

    #[test]
    fn nothing_measured_is_never_far_enough() {
        assert_eq!(end(&vec![Vec::new(); 50]), None);
    }

    #[test]
    fn a_clock_at_which_an_instruction_was_not_measured_neither_counts_nor_begins_anew() {
        let clocks = [1.0, 2.0, 3.0, f64::NAN, 4.0, 5.0, f64::NAN, 6.0];
        let measured = |energy_j: f64| Some(energy_j).filter(|j| !j.is_nan()).into_iter().collect();
        assert_eq!(end(&clocks.map(measured)), Some(7));
    }

    proptest! {
        #[test]
        fn a_sweep_goes_five_clocks_beyond_the_deepest_valley_and_no_further(
            valleys in prop::collection::vec((0usize..30, 0.1f64..10.0, 1.0f64..100.0), 1..6),
        ) {
            let energy_j = |clock: usize, &(valley, slope, depth): &(usize, f64, f64)| {
                depth + slope * clock.abs_diff(valley) as f64
            };
            let clocks: Vec<Vec<f64>> = (0..60)
                .map(|clock| valleys.iter().map(|valley| energy_j(clock, valley)).collect())
                .collect();
            let deepest = valleys.iter().map(|(valley, ..)| *valley).max().unwrap();
            prop_assert_eq!(end(&clocks), Some(deepest + 5));
        }
    }
}
