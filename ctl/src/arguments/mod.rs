//! What several commands take as arguments: jobs, GPUs and figures, each with its own complaint.

mod gpu;
mod job;
pub(crate) mod number;
mod slowdown;

pub(crate) use self::gpu::{
    DeviceFile, GpuArgument, GpuArgumentError, GpuArguments, Indices, NoGpuName, resolve_option,
    uuid_among,
};
pub(crate) use self::job::{JobArguments, NoSuchJob};
pub(crate) use self::slowdown::Slowdown;
