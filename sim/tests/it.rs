//! The integration tests of the simulated driver and trainer: one program, so that it is linked once.

mod clocks;
mod command_line;
mod energy;
mod gpu_kit;
mod identity;
mod kills;
mod laws;
mod machine;
mod nvidia_ml_py;
mod python;
mod trainer;
