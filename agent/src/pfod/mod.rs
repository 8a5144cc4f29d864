//! The agent as a client of `pfod`: what it asks, in whose name, and what it does while `pfod` is
//! away.

mod connection;
mod error;
mod questions;
mod resting;

pub(crate) use connection::{Asker, Connection, Pfod, lets_in, unexpected};
pub(crate) use error::PfodError;
pub(crate) use questions::Questions;
pub(crate) use resting::{Resting, SIGN_OF_LIFE};
