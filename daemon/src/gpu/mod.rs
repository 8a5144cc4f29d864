//! The GPUs of the node: the driver, which may load late or unload, and the watches over it.

pub(crate) mod device_file;
mod driver_watch;
mod late_driver;
mod owed;
mod reader;
mod throttle_watch;

pub(crate) use driver_watch::watch_driver;
pub(crate) use late_driver::LateDriver;
pub(crate) use owed::Owed;
pub(crate) use throttle_watch::watch_throttling;
