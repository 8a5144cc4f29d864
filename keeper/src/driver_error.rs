//! Why the driver did not do what it was asked.

use std::path::PathBuf;

use nvml_wrapper::error::NvmlError;
use pfo_vocabulary::NameError;

/// Why the driver did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// NVML could not be loaded or did not start.
    #[error("cannot use the driver library {library}: {source}")]
    Load {
        /// The library.
        library: PathBuf,
        /// Why.
        source: NvmlError,
    },
    /// The library read no version when it started, and now it does.
    #[error("driver {0} did not tell its version at first, and is loaded again for its fields")]
    Numbering(String),
    /// No GPU answers.
    #[error("driver {version} lists no GPU that answers{}{missing}", if .missing.is_empty() { "" } else { ": " })]
    NoGpu {
        /// The driver's version.
        version: String,
        /// Why GPUs are missing.
        missing: String,
    },
    /// A call failed.
    #[error("{call} failed on GPU {gpu}: {source}")]
    Call {
        /// What was called, in words.
        call: &'static str,
        /// The GPU, by UUID or by index while its UUID is unknown.
        gpu: String,
        /// Why.
        source: NvmlError,
    },
    /// The driver is not to be asked for a change.
    #[error("pfod only observes ([driver] mode, --observe) and asks no driver for a change")]
    OnlyObserved,
    /// The driver returned an invalid name.
    #[error("the driver gives GPU {index} a name that pfo does not understand: {source}")]
    Name {
        /// The driver's index.
        index: u32,
        /// What is wrong.
        source: NameError,
    },
}

impl DriverError {
    /// Whether the GPU is gone, alone or with the driver: nothing can be set or restored on it
    /// until it is back.
    #[must_use]
    pub fn is_gpu_lost(&self) -> bool {
        matches!(
            self,
            Self::Call {
                source: NvmlError::GpuLost
                    | NvmlError::ResetRequired
                    | NvmlError::DriverNotLoaded
                    | NvmlError::LibRmVersionMismatch
                    | NvmlError::Uninitialized,
                ..
            }
        )
    }

    /// Whether this GPU or driver does not have the function at all.
    #[must_use]
    pub fn is_not_supported(&self) -> bool {
        matches!(
            self,
            Self::Call {
                source: NvmlError::NotSupported
                    | NvmlError::FunctionNotFound
                    | NvmlError::FailedToLoadSymbol(_),
                ..
            }
        )
    }
}
