//! Late clocks: what they do to a step, and plans that account for them.
//!
//! A driver takes milliseconds to change a clock, as long as a short instruction. [`clocks`] is the
//! model, which every replay uses. [`step`] keeps a step up to date while its clocks change,
//! [`search`] improves one plan with it, and [`plans`] makes them.

pub(crate) mod clocks;
pub(crate) mod plans;
pub(crate) mod search;
pub(crate) mod step;

use pfo_vocabulary::Watts;

use crate::step::delays::Delays;

/// A call that sets a clock holds the driver's lock, and may hold up what a rank asks of the driver.
/// A change costs this share of what a waiting GPU draws for the length of the call. Chosen by trial
/// on four stages: plans of instructions of 8 to 50 ms lose up to half of their changes by it, and
/// at most 0.3 % of the energy.
const CALL_SHARE: f64 = 0.3;

/// The cost of a change of clocks, in joules.
pub(crate) fn change_j(p2p_power: Watts, delays: Delays) -> f64 {
    CALL_SHARE * p2p_power.0 * delays.set_call_s
}
