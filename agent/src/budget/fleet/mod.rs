//! Budgets of all nodes of a fleet. Every node says what it draws and what its jobs can run. One of them,
//! whichever comes first, decides for all: it writes one blueprint, by comparison with the one before, so
//! that there are never two. When it is silent, another one continues. Each node carries out its part: jobs
//! of its own by local swaps, a job over several nodes by a swap of the whole job, which one of them asks for.
//!
//! What counts is what an administrator has signed, at nodes whose configuration says that they obey it.
//!
//! A node that does not reach the store keeps what it has, and holds itself to its share by power limits;
//! the others count it for that.

mod decider;
mod files;
mod link;
mod parts;
mod record;
mod signed;
#[cfg(test)]
mod tests;
mod turn;
mod whole;

pub(super) use link::Link;
pub(super) use signed::Record;
pub(super) use turn::{Look, Turns, given, is_cut_off};
pub(super) use whole::{Makers, Wholes, has_first_rank};
