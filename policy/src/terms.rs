//! The terms of a lease: the keys of `[lease]`, each of which a rule may override.

use pfo_keeper::BaseClock;
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
    /// Whether the peer must have a process on the GPU.
    pub require_process: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            min_mhz: ClockBound::of::<0>(),
            max_mhz: ClockBound::of::<10_000>(),
            min_power_limit_w: PowerBound::of::<0>(),
            changes_per_second: ChangeRate::of::<1000>(),
            restore_to_mhz: BaseClock::Reset,
            sessions_per_user: SessionCount::of::<64>(),
            idle_limit_s: IdleLimit::of::<60>(),
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
