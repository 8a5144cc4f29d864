//! Simulated trainers.
