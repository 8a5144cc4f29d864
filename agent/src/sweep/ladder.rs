//! The clocks of a sweep, from the highest down.

use std::collections::BTreeSet;

use pfo_protocol::Mhz;

/// The highest clock, and from each clock the next one that is at least `stride` lower, down to
/// `floor`.
pub(crate) fn ladder(allowed: &BTreeSet<Mhz>, stride: Mhz, floor: Mhz) -> Vec<Mhz> {
    let mut ladder: Vec<Mhz> = Vec::new();
    for &clock in allowed.range(floor..).rev() {
        if ladder.last().is_none_or(|last| last.0.saturating_sub(clock.0) >= stride.0) {
            ladder.push(clock);
        }
    }
    ladder
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clocks(mhz: impl IntoIterator<Item = u32>) -> BTreeSet<Mhz> {
        mhz.into_iter().map(Mhz).collect()
    }

    #[test]
    fn a_stride_leads_down_from_the_highest_clock_whatever_it_is_a_multiple_of() {
        let a100 = clocks((210..=1410).step_by(15));
        let ladder = ladder(&a100, Mhz(90), Mhz(1000));
        assert_eq!(ladder, [1410, 1320, 1230, 1140, 1050].map(Mhz));
    }

    #[test]
    fn no_stride_means_every_clock() {
        let a100 = clocks((210..=1410).step_by(15));
        assert_eq!(ladder(&a100, Mhz(0), Mhz(0)).len(), 81);
    }

    proptest! {
        #[test]
        fn every_rung_is_the_highest_clock_that_is_far_enough_below_the_one_before(
            allowed in prop::collection::btree_set((1u32..2000).prop_map(Mhz), 0..40),
            stride in 0u32..300,
            floor in 0u32..2000,
        ) {
            let ladder = ladder(&allowed, Mhz(stride), Mhz(floor));
            let in_reach: Vec<_> = allowed.into_iter().filter(|clock| clock.0 >= floor).collect();
            prop_assert_eq!(ladder.first(), in_reach.last());
            for (index, rung) in ladder.iter().enumerate() {
                let below = |clock: &&Mhz| *clock < rung && rung.0 - clock.0 >= stride;
                prop_assert_eq!(ladder.get(index + 1), in_reach.iter().rfind(below));
            }
        }
    }
}
