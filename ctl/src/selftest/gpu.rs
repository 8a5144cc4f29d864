//! One GPU, asked with an end to waiting, and within a budget where it is asked again and again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use crate::nvml;

/// Between two reads of one or two calls each: at most 400 calls a second.
const PAUSE: Duration = Duration::from_millis(5);

/// After a read, so many times as long as it took: reads have 8 % of the time, as those of `pfod`.
const REST: u32 = 12;

/// A GPU that did not answer in time.
#[derive(Debug)]
pub(crate) struct Silent;

/// A GPU.
#[derive(Clone, Copy)]
pub(crate) struct Gpu {
    pub(crate) nvml: &'static Nvml,
    /// The driver's index.
    pub(crate) index: u32,
}

/// One read of several.
pub(crate) struct Sample<T> {
    /// Since the first one began.
    pub(crate) at: Duration,
    /// How long it took.
    pub(crate) took: Duration,
    pub(crate) value: T,
}

impl Gpu {
    /// Asks the driver.
    pub(crate) fn ask<T: Send + 'static>(
        self,
        question: impl FnOnce(&Device<'static>) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<Result<T, NvmlError>, Silent> {
        nvml::in_time(move || question(&self.nvml.device_by_index(self.index)?)).ok_or(Silent)
    }

    /// The SM clock, in MHz.
    pub(crate) fn sm_clock(self) -> Result<Result<u32, NvmlError>, Silent> {
        self.ask(|device| device.clock_info(Clock::SM))
    }
}

/// Reads until it is enough, for at most so long, which is to be less than [`nvml::PATIENCE`].
pub(crate) fn sample<T>(
    for_at_most: Duration,
    mut read: impl FnMut() -> Result<T, NvmlError>,
    mut is_enough: impl FnMut(&[Sample<T>]) -> bool,
) -> Result<Vec<Sample<T>>, NvmlError> {
    let begin = Instant::now();
    let mut samples = Vec::new();
    loop {
        let at = begin.elapsed();
        let value = read()?;
        let took = begin.elapsed().saturating_sub(at);
        samples.push(Sample { at, took, value });
        let rest = PAUSE.max(took * REST);
        if is_enough(&samples) || begin.elapsed() + rest > for_at_most {
            return Ok(samples);
        }
        sleep(rest);
    }
}
