//! The terms of a lease: the keys of `[lease]`, each of which a rule may override.

use pfo_keeper::{BaseClock, GpuFacts};
use pfo_protocol::{Mhz, Milliwatts};
use pfo_service::Within;
use serde::Deserialize;

/// A bound of clocks, in MHz.
pub(crate) type ClockBound = Within<0, 10_000>;
/// A bound of power limits, in watts.
pub(crate) type PowerBound = Within<0, 100_000>;
/// Clock changes per second.
pub(crate) type ChangeRate = Within<1, 100_000>;
/// Sessions of one user.
pub(crate) type SessionCount = Within<1, 65_536>;
/// Seconds of silence.
pub(crate) type IdleLimit = Within<1, 86_400>;

/// The terms of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Terms {
    /// The lowest SM clock that may be locked, in MHz.
    pub min_mhz: ClockBound,
    /// The highest SM clock that may be locked, in MHz.
    pub max_mhz: ClockBound,
    /// The lowest power limit that may be set, in watts.
    pub min_power_limit_w: PowerBound,
    /// Clock changes that may be asked of the driver per second.
    pub changes_per_second: ChangeRate,
    /// What the SM clock is restored to.
    pub restore_to_mhz: BaseClock,
    /// Sessions that the user may have open at once.
    pub sessions_per_user: SessionCount,
    /// Seconds of silence after which the session ends.
    pub idle_limit_s: IdleLimit,
    /// Whether the peer must have the GPU's device file open.
    pub require_device: bool,
    /// Whether the peer must have a process on the GPU.
    pub require_process: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            min_mhz: ClockBound::of::<0>(),
            max_mhz: ClockBound::of::<10_000>(),
            min_power_limit_w: PowerBound::of::<0>(),
            changes_per_second: ChangeRate::of::<50>(),
            restore_to_mhz: BaseClock::Reset,
            sessions_per_user: SessionCount::of::<64>(),
            idle_limit_s: IdleLimit::of::<60>(),
            require_device: true,
            require_process: false,
        }
    }
}

impl Terms {
    /// The lowest and the highest SM clock that may be locked.
    #[must_use]
    pub fn bounds(&self) -> (Mhz, Mhz) {
        (Mhz(self.min_mhz.get()), Mhz(self.max_mhz.get()))
    }

    /// The lowest power limit that may be set.
    #[must_use]
    pub fn min_power_limit(&self) -> Milliwatts {
        Milliwatts::of_watts(self.min_power_limit_w.get())
    }

    /// The terms for one GPU: what the configuration leaves unbounded ends at half of what it can do.
    #[must_use]
    pub fn on(&self, gpu: &GpuFacts) -> Self {
        let mut terms = self.clone();
        if self.min_mhz == ClockBound::of::<0>() {
            let highest = gpu.sm_clocks.last().map_or(0, |mhz| mhz.0);
            let half = ClockBound::try_from(i64::from(highest.div_ceil(2)));
            terms.min_mhz = half.unwrap_or(self.max_mhz).min(self.max_mhz);
        }
        if self.min_power_limit_w == PowerBound::of::<0>() {
            let usual = gpu.default_power_limit.map_or(0, |limit| limit.0);
            let half = PowerBound::try_from(i64::from(usual.div_ceil(2000)));
            terms.min_power_limit_w = half.unwrap_or(self.min_power_limit_w);
        }
        terms
    }

    /// Checks that the keys are consistent.
    ///
    /// # Errors
    /// Which keys are not, in words.
    pub fn check(&self) -> Result<(), String> {
        let (min, max) = self.bounds();
        if min > max {
            return Err(format!("no clock is allowed: min_mhz is {min}, max_mhz {max}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pfo_keeper::example_gpu;

    use super::*;

    fn floors(text: &str) -> (u32, u32) {
        let terms = toml::from_str::<Terms>(text).unwrap().on(&example_gpu());
        terms.check().unwrap();
        (terms.min_mhz.get(), terms.min_power_limit_w.get())
    }

    #[test]
    fn half_of_what_the_gpu_can_do_is_the_floor_with_the_proof_of_the_device_or_without() {
        assert_eq!(floors(""), (705, 200));
        assert_eq!(floors("require_device = false"), (705, 200));
        assert_eq!(floors("max_mhz = 600"), (600, 200));
    }

    #[test]
    fn a_floor_of_the_configuration_stands_in_place_of_half() {
        let text = "min_mhz = 1\nmin_power_limit_w = 90";
        assert_eq!(floors(text), (1, 90));
    }

    #[test]
    fn a_gpu_that_tells_neither_clocks_nor_limits_has_no_floor() {
        let bare = GpuFacts { sm_clocks: Vec::new(), default_power_limit: None, ..example_gpu() };
        let terms = Terms::default();
        assert_eq!(terms.on(&bare), terms);
    }
}
