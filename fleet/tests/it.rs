//! The integration tests of the agreement of a fleet: one program, so that it is linked once.

mod participant;
mod schedules;
