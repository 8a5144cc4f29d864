//! Recording what a job's instructions and waits take, from the tap of its ranks.
//!
//! A [`trial`] is run by `pfod`; a [`recorder`] thread feeds the taps of its ranks into a
//! [`digest`] each.

mod curve;
mod digest;
mod found;
mod instructions;
mod late;
mod limits;
mod looks;
mod observed;
mod own_order;
mod recorded;
mod recorder;
mod regression;
mod sample;
mod samples;
mod spread;
mod trial;

pub(crate) use looks::{Looks, Piece, Shown};
pub(crate) use observed::observe;
pub(crate) use own_order::own_order;
pub(crate) use regression::Solution;
pub(crate) use sample::BY_POWER;
pub(crate) use samples::{MOST_SAMPLES, TrialSamples};
pub(crate) use spread::Spread;
pub(crate) use trial::{Order, run};
#[cfg(feature = "fuzzing")]
pub(crate) use {
    digest::{Digest, RecordedGpu},
    recorder::Recording,
    trial::together,
};
