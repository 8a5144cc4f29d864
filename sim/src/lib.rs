//! A simulated NVIDIA driver library.
//!
//! As a shared library this crate is a `libnvidia-ml.so.1` that NVML's users load unchanged. As a
//! Rust library it is the hardware behind it: [`machine`] makes a machine, [`driver`] opens it,
//! [`attachment`] puts a process to work on a GPU. All of a machine's state is in one file that is
//! mapped by everybody, so that what one process sets outlives it, as in a real driver.

pub mod attachment;
pub mod clock_table;
pub mod curve;
pub mod driver;
pub mod driver_version;
pub mod error;
pub mod fault;
pub mod gpu_state;
pub mod heat;
pub mod identity;
pub mod like;
pub mod machine;
pub mod model;
mod nvml;
pub mod nvml_result;
mod occupation;
pub mod random;
pub mod sensor;
pub mod set_call;
pub mod silicon;
mod state;
pub mod timeline;
pub mod units;
pub mod work;

pub use occupation::DriverTime;
pub use state::file::{DEFAULT_STATE, STATE_VARIABLE, state_path};
