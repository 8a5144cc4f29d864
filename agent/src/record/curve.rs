//! The energy counter over time: what it showed between two readings is on the line between them.
//! Pure.

/// A reading of the counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Knot {
    /// When the counter changed to it (`CLOCK_MONOTONIC`, ns).
    pub(crate) at_ns: u64,
    /// What it showed, in joules.
    pub(crate) energy_j: f64,
}

/// What the counter showed at a time between two readings; none outside.
pub(crate) fn energy_between(before: Knot, after: Knot, at_ns: u64) -> Option<f64> {
    if !(before.at_ns..=after.at_ns).contains(&at_ns) {
        return None;
    }
    let whole_ns = after.at_ns.saturating_sub(before.at_ns).max(1) as f64;
    let part = at_ns.saturating_sub(before.at_ns) as f64 / whole_ns;
    Some(before.energy_j + part * (after.energy_j - before.energy_j))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_energies_of_parts_add_up_to_that_of_the_whole(
            length in 1u64..1_000_000_000,
            energy_j in 0.0..1e6f64,
            cuts in prop::collection::vec(0.0..1.0f64, 0..9),
        ) {
            let knot = |at_ns, energy_j| Knot { at_ns, energy_j };
            let (before, after) = (knot(5, 7.0), knot(5 + length, 7.0 + energy_j));
            let place = |cut: f64| 5 + (cut * length as f64) as u64;
            let mut cuts: Vec<_> = cuts.into_iter().map(place).collect();
            cuts.extend([5, 5 + length]);
            cuts.sort_unstable();
            let energy_at = |cut: &u64| energy_between(before, after, *cut).unwrap();
            let at: Vec<f64> = cuts.iter().map(energy_at).collect();
            prop_assert!(at.is_sorted());
            prop_assert!((at[at.len() - 1] - at[0] - energy_j).abs() <= 1e-9 * (1.0 + energy_j));
            prop_assert_eq!(energy_between(before, after, 4), None);
            prop_assert_eq!(energy_between(before, after, 6 + length), None);
        }
    }
}
