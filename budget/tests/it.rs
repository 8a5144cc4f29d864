//! The integration tests of the budget: one program, so that it is linked once.

mod closed_loop;
mod cluster;
mod decision;
mod optimum;
mod simulated_cluster;
