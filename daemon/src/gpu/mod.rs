//! The GPUs of the node: the driver, which may load late or unload, and the watches over it.

mod clock_watch;
pub(crate) mod device_file;
mod driver_watch;
mod late_driver;
mod owed;
mod reader;

pub(crate) use clock_watch::watch_clocks;
pub(crate) use driver_watch::watch_driver;
pub(crate) use late_driver::LateDriver;
pub(crate) use owed::Owed;
