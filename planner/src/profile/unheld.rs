//! Requested clocks that GPUs did not hold, because of a power limit: each would measure the same
//! as the clock that they really had. The lowest one that leads to it is as fast, and is the only
//! one of them that a plan may have.

use std::collections::BTreeMap;

use pfo_vocabulary::{Instruction, Mhz, Stage};

use crate::profile::repeats::Line;

/// Observed clocks that differ by less, as a share, are the same one. Two clocks that a GPU supports
/// are 0.5 % or more apart.
const SAME: f64 = 0.0025;

/// Clocks of one instruction that were not held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unheld {
    /// The stage.
    pub stage: Stage,
    /// The instruction.
    pub instruction: Instruction,
    /// The highest requested clock.
    pub highest: Mhz,
    /// The highest useful one.
    pub useful: Mhz,
}

/// Removes the clocks from a table, which has its lines by clock and by measurer, at which the GPUs
/// really had no higher one than at a lower clock. Clocks that nobody observed stay.
pub(crate) fn leave_out_unheld<Who>(
    (stage, instruction): (Stage, Instruction),
    table: &mut BTreeMap<Mhz, BTreeMap<Who, Vec<Line>>>,
) -> Option<Unheld> {
    if instruction.is_fixed() {
        return None;
    }
    let highest = *table.last_key_value()?.0;
    let mut highest_mhz = 0.0_f64;
    table.retain(|_, lines| {
        let Some(mhz) = observed_mhz(lines.values().flatten()) else { return true };
        let is_higher = mhz > highest_mhz * (1.0 + SAME);
        highest_mhz = highest_mhz.max(mhz);
        is_higher
    });
    let useful = *table.last_key_value()?.0;
    (useful < highest).then_some(Unheld { stage, instruction, highest, useful })
}

/// The mean of what was observed.
fn observed_mhz<'a>(lines: impl Iterator<Item = &'a Line>) -> Option<f64> {
    let observed: Vec<f64> = lines.filter_map(|line| line.observed_mhz).collect();
    (!observed.is_empty()).then(|| observed.iter().sum::<f64>() / observed.len() as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::profile::measurement::Measurement;
    use crate::profile::repeats::Repeats;

    const FORWARD: (Stage, Instruction) = (Stage(0), Instruction::Forward);

    /// Clocks with what each measurer observed there.
    fn table(clocks: &[(u32, &[Option<f64>])]) -> BTreeMap<Mhz, BTreeMap<usize, Vec<Line>>> {
        let line = |mhz: u32, observed_mhz| Line {
            number: 2,
            measured: Measurement { frequency: Mhz(mhz), time_s: 1.0, energy_j: 1.0 },
            repeats: Repeats::default(),
            observed_mhz,
        };
        let lines = |&(mhz, observed): &(u32, &[Option<f64>])| {
            let lines = observed.iter().map(|&observed_mhz| vec![line(mhz, observed_mhz)]);
            (Mhz(mhz), lines.enumerate().collect())
        };
        clocks.iter().map(lines).collect()
    }

    fn kept(clocks: &[(u32, &[Option<f64>])]) -> (Vec<u32>, Option<Unheld>) {
        let mut table = table(clocks);
        let unheld = leave_out_unheld(FORWARD, &mut table);
        (table.keys().map(|mhz| mhz.0).collect(), unheld)
    }

    #[test]
    fn only_the_lowest_clock_that_leads_to_the_one_that_is_held_is_of_use() {
        let (clocks, unheld) = kept(&[
            (1410, &[Some(1247.0)]),
            (1290, &[Some(1248.5)]),
            (1260, &[Some(1247.5)]),
            (1230, &[Some(1229.0)]),
            (1200, &[Some(1200.0)]),
        ]);
        assert_eq!(clocks, [1200, 1230, 1260]);
        let unheld = unheld.unwrap();
        assert_eq!((unheld.useful, unheld.highest), (Mhz(1260), Mhz(1410)));
    }

    #[test]
    fn a_gpu_that_always_runs_a_bin_beside_its_lock_holds_every_clock() {
        let (clocks, unheld) =
            kept(&[(1410, &[Some(1395.0)]), (1395, &[Some(1380.0)]), (1380, &[Some(1365.0)])]);
        assert_eq!((clocks.len(), unheld), (3, None));
    }

    #[test]
    fn the_mean_of_all_ranks_decides_so_that_a_clock_that_some_hold_is_kept() {
        let both = [Some(1410.0), Some(1260.0)];
        let (clocks, _) = kept(&[(1410, &both), (1260, &[Some(1260.0); 2])]);
        assert_eq!(clocks, [1260, 1410]);
    }

    #[test]
    fn what_nobody_observed_is_kept_and_fixed_instructions_have_no_clock() {
        assert_eq!(kept(&[(1410, &[None]), (900, &[None])]), (vec![900, 1410], None));
        let mut fixed = table(&[(1410, &[Some(900.0)]), (900, &[Some(900.0)])]);
        assert_eq!(leave_out_unheld((Stage(0), Instruction::Load), &mut fixed), None);
        assert_eq!(fixed.len(), 2);
    }

    proptest! {
        #[test]
        fn whatever_the_cap_the_highest_observed_clock_stays_within_a_quarter_of_a_percent(
            cap in 300.0_f64..1500.0, step in 5_usize..40
        ) {
            let clocks: Vec<u32> = (300..=1410).step_by(step).collect();
            let observed: Vec<_> = clocks.iter().map(|&mhz| [Some(cap.min(mhz.into()))]).collect();
            let rows: Vec<_> =
                clocks.iter().zip(&observed).map(|(&mhz, mhz_seen)| (mhz, &mhz_seen[..])).collect();
            let (kept, unheld) = kept(&rows);
            let fastest = cap.min((*kept.last().unwrap()).into());
            let highest = cap.min((*clocks.last().unwrap()).into());
            prop_assert!(fastest >= highest * (1.0 - SAME));
            // Nothing above the first clock that the cap holds back is of use.
            prop_assert!(kept.iter().filter(|mhz| f64::from(**mhz) > cap).count() <= 1);
            let is_lower = kept.last() < clocks.last();
            prop_assert_eq!(unheld.is_some(), is_lower);
        }
    }
}
