//! The properties of a GPU that never change. It must not call the driver.

use pfo_vocabulary::{GpuName, GpuUuid, Mhz, Milliwatts, PciBusId};

use crate::power_limit::LimitRange;

/// The identity and the clocks of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    /// The driver's index, only shown to people.
    pub index: u32,
    /// The UUID.
    pub uuid: GpuUuid,
    /// The PCI bus id.
    pub pci_bus_id: PciBusId,
    /// The model.
    pub model: String,
    /// The SM clocks that it supports at its highest memory clock, ascending.
    pub sm_clocks: Vec<Mhz>,
    /// Its highest memory clock.
    pub memory_clock: Option<Mhz>,
    /// The power limits that it takes; `None` if it takes none.
    pub power_limits: Option<LimitRange>,
    /// The power limit that it has by itself.
    pub default_power_limit: Option<Milliwatts>,
    /// The minor number of its device file; `None` if it has none.
    pub minor: Option<u32>,
}

impl GpuFacts {
    /// Whether `name` means this GPU.
    #[must_use]
    pub fn is_named(&self, name: &GpuName) -> bool {
        match name {
            GpuName::Uuid(uuid) => self.uuid == *uuid,
            GpuName::PciBusId(id) => self.pci_bus_id.as_str().eq_ignore_ascii_case(id.as_str()),
        }
    }

    /// The highest supported SM clock that is not above `bound`, or the lowest if all are.
    #[must_use]
    pub fn highest_sm_clock(&self, bound: Mhz) -> Option<Mhz> {
        let allowed = self.sm_clocks.iter().rev().find(|clock| **clock <= bound);
        allowed.or(self.sm_clocks.first()).copied()
    }

    /// The supported SM clocks next to one that is not supported.
    #[must_use]
    pub fn nearest_sm_clocks(&self, mhz: Mhz) -> &[Mhz] {
        let above = self.sm_clocks.partition_point(|clock| *clock < mhz);
        &self.sm_clocks[above.saturating_sub(1)..above.saturating_add(1).min(self.sm_clocks.len())]
    }

    /// Whether two SM clocks are at most one supported clock apart: a GPU may run at the one below
    /// its lock.
    #[must_use]
    pub fn is_next_to(&self, one: Mhz, other: Mhz) -> bool {
        let place = |mhz| self.sm_clocks.partition_point(|clock| *clock < mhz);
        place(one).abs_diff(place(other)) <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::example_gpu;

    #[test]
    fn the_highest_clock_is_within_the_bound_if_any_is() {
        assert_eq!(example_gpu().highest_sm_clock(Mhz(10_000)), Some(Mhz(1410)));
        assert_eq!(example_gpu().highest_sm_clock(Mhz(1399)), Some(Mhz(1200)));
        assert_eq!(example_gpu().highest_sm_clock(Mhz(100)), Some(Mhz(210)));
    }

    #[test]
    fn the_nearest_clocks_are_those_around_a_missing_one() {
        assert_eq!(example_gpu().nearest_sm_clocks(Mhz(1000)), [Mhz(900), Mhz(1200)]);
        assert_eq!(example_gpu().nearest_sm_clocks(Mhz(5)), [Mhz(210)]);
        assert_eq!(example_gpu().nearest_sm_clocks(Mhz(2000)), [Mhz(1410)]);
    }

    #[test]
    fn clocks_are_next_to_each_other_if_no_supported_one_is_between_them() {
        let is_next = |one, other| example_gpu().is_next_to(Mhz(one), Mhz(other));
        assert!(
            is_next(900, 900) && is_next(900, 1200) && is_next(1200, 900) && is_next(1395, 1410)
        );
        assert!(!is_next(900, 1410) && !is_next(210, 1200) && !is_next(0, 1200));
    }

    #[test]
    fn a_gpu_is_known_by_uuid_and_by_bus_id_in_either_case() {
        assert!(example_gpu().is_named(&"GPU-1".parse().unwrap()));
        assert!(example_gpu().is_named(&"00000000:0a:00.0".parse().unwrap()));
        assert!(!example_gpu().is_named(&"GPU-2".parse().unwrap()));
    }
}
