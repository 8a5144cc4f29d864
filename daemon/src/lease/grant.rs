//! What a session was granted with its lease: the terms, what decided them, and how the thread of
//! the rank is to be driven.

use pfo_keeper::GpuFacts;
use pfo_policy::{Clocks, ForeignClock, Place, Terms};
use pfo_protocol::Mhz;

/// A lease on its terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub terms: Terms,
    /// What decided the terms.
    pub place: Place,
    /// How the rank is driven.
    pub rules: Rules,
}

/// How a rank is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// The clock of mismatched steps.
    pub highest: Mhz,
    /// Clock changes that the rank may ask of the driver per second.
    pub changes_per_second: u32,
    /// How long after it was asked for a clock is in force, if that was not measured, in nanoseconds.
    pub settle_ns: u64,
    /// Whether to set a clock again that another program has replaced.
    pub set_again: bool,
    /// Mismatched steps in a row before the plan is suspended.
    pub suspend_after: u32,
}

impl Grant {
    /// A lease of that GPU.
    pub(crate) fn new(terms: Terms, place: Place, gpu: &GpuFacts, clocks: &Clocks) -> Self {
        let (_, max) = terms.bounds();
        let rules = Rules {
            highest: gpu.highest_sm_clock(max).unwrap_or(max),
            changes_per_second: terms.changes_per_second.get(),
            settle_ns: u64::from(clocks.settle_ms.get()).saturating_mul(1_000_000),
            set_again: clocks.on_foreign_clock == ForeignClock::SetAgain,
            suspend_after: clocks.suspend_after_mismatches.get(),
        };
        Self { terms, place, rules }
    }
}

#[cfg(test)]
pub(crate) fn example(lease: &str) -> Grant {
    let terms = toml::from_str(lease).unwrap();
    Grant::new(terms, Place::Lease, &pfo_keeper::example_gpu(), &Clocks::default())
}
