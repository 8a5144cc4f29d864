//! What the clock and the power of a GPU are, from its model, its silicon and its curves.
//!
//! Pure: what changes about the GPU comes in as arguments.

use super::Activity;
use crate::clock_table::ClockRange;
use crate::curve::{CurveIndex, CurveSlot};
use crate::heat::{Microcelsius, Slowdown};
use crate::model::ModelFacts;
use crate::silicon::Silicon;
use crate::state::layout::CURVES_PER_GPU;
use crate::timeline::ClockLimits;
use crate::units::{Mhz, Milliwatts};

/// What is not in the state but decides about clock and power.
#[derive(Clone, Copy)]
pub struct Board<'a> {
    /// The model.
    pub facts: &'a ModelFacts,
    /// What the GPU is like.
    pub silicon: Silicon,
    /// The installed curves.
    pub curves: Option<&'a Curves>,
}

/// The curves of a GPU.
pub type Curves = [CurveSlot; CURVES_PER_GPU];

impl Board<'_> {
    /// Power of computing; the model's built-in curve where none is installed.
    fn compute_power(&self, curve: CurveIndex, clock: Mhz, warmth: Microcelsius) -> Milliwatts {
        let curve = self.curves.and_then(|curves| curves[curve.number()].at(clock));
        let built_in = || Milliwatts::from_watts(self.facts.compute_power_w(clock));
        self.silicon.heat.power(curve.unwrap_or_else(built_in), warmth)
    }

    /// Power of waiting for a neighbour.
    fn blocked_power(&self, clock: Mhz, warmth: Microcelsius) -> Milliwatts {
        let watts = if self.silicon.waits_follow_the_clock {
            self.facts.blocked_power_w(clock)
        } else {
            self.facts.p2p_blocking_w
        };
        self.silicon.heat.power(Milliwatts::from_watts(watts), warmth)
    }

    /// The clocks that a lock allows.
    fn allowed(&self, lock: Option<ClockRange>) -> ClockRange {
        let Some(wish) = lock else {
            return ClockRange { min: self.facts.lowest(), max: self.facts.highest() };
        };
        let snapped = self.facts.snap_sm(wish);
        let max = self.held(snapped.max);
        ClockRange { min: snapped.min.min(max), max }
    }

    /// The clock that is held in place of a locked one, where the power allows it: every fourth may be
    /// held one step lower.
    pub fn held(&self, clock: Mhz) -> Mhz {
        if !self.silicon.beside_the_lock {
            return clock;
        }
        let clocks = self.facts.sm_clocks();
        let place = clocks.partition_point(|&supported| supported < clock);
        if place % 4 == 2 { clocks[place - 1] } else { clock }
    }

    /// The power above which work is slowed.
    fn power_limit(&self, limits: ClockLimits) -> Option<Milliwatts> {
        let default = || self.silicon.power_limit_binds.then(|| self.facts.default_power_limit());
        limits.power_cap.or_else(default)
    }

    /// The highest clock that a GPU so warm has, locked or not.
    fn ceiling(&self, warmth: Microcelsius) -> Mhz {
        let slowdown = self.silicon.heat.slowdown(warmth);
        if slowdown == Slowdown::default() {
            return self.facts.highest();
        }
        let clocks = self.facts.sm_clocks();
        let software = clocks[clocks.len().saturating_sub(1 + slowdown.clocks)];
        let half = Mhz(self.facts.highest().0 / 2);
        let ceiling = if slowdown.hardware { software.min(half) } else { software };
        self.facts.snap_sm(ClockRange::exactly(ceiling)).max
    }

    /// The SM clock under some limits.
    pub fn clock(&self, limits: ClockLimits, activity: Activity, warmth: Microcelsius) -> Mhz {
        let allowed = self.allowed(limits.lock);
        let highest = allowed.max.min(self.ceiling(warmth));
        match (activity, self.power_limit(limits)) {
            (Activity::Idle, _) => allowed.min,
            (Activity::Blocked, _) | (Activity::Computing(_), None) => highest,
            (Activity::Computing(curve), Some(cap)) => {
                let clocks = self.facts.sm_clocks();
                let fits = |clock: &&Mhz| {
                    **clock <= highest && self.compute_power(curve, **clock, warmth) <= cap
                };
                clocks.iter().rev().find(fits).copied().unwrap_or(self.facts.lowest())
            }
        }
    }

    /// Power under some limits.
    pub fn power(
        &self,
        limits: ClockLimits,
        activity: Activity,
        warmth: Microcelsius,
    ) -> Milliwatts {
        let clock = self.clock(limits, activity, warmth);
        match activity {
            Activity::Idle => Milliwatts::from_watts(self.facts.idle_w),
            Activity::Blocked => self.blocked_power(clock, warmth),
            Activity::Computing(curve) => self.compute_power(curve, clock, warmth),
        }
    }
}
