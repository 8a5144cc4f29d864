//! Late clocks: what they do to a step, and plans that account for them.
//!
//! A driver takes milliseconds to change a clock, as long as a short instruction. [`clocks`] is the
//! model, which every replay uses. [`step`] keeps a step up to date while its clocks change, and
//! [`plans`] improves plans with it.

pub(crate) mod clocks;
pub(crate) mod plans;
pub(crate) mod step;
