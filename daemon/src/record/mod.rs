//! Recording what a job's instructions and waits take: the events of its ranks against the energy
//! counters of their GPUs.
//!
//! The thread of a rank puts what it sees into a [`ring`] and knows no more of all this. A
//! [`sampler`] for each GPU watches its counter and feeds both into a [`digest`].

pub mod curve;
pub mod digest;
pub mod found;
pub mod instructions;
pub mod recorded;
pub mod refresh;
pub mod regression;
pub mod rhythm;
pub mod ring;
pub mod sample;
pub mod sampler;
pub mod spread;
