//! What the driver reports about a GPU now, without waiting for a GPU that does not answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::Clock;
use pfo_planner::Mhz;

use crate::driver::{DriverError, Gpu};
use crate::power_limit::Milliwatts;

/// A sick GPU can keep a call for minutes; a healthy one answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the driver reports about a GPU at one moment. What it does not report is absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// The SM clock.
    pub sm_clock: Option<Mhz>,
    /// The power, in watts.
    pub power_w: Option<f64>,
    /// The power limit in force, whoever set it.
    pub power_limit: Option<Milliwatts>,
    /// Whether MIG splits the GPU.
    pub mig: bool,
    /// What keeps the clock lower than it was asked to be.
    pub held_back: Option<ThrottleReasons>,
}

/// Why there is no reading.
#[derive(Debug, thiserror::Error)]
pub enum ReadingError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// It takes longer than anybody waits.
    #[error("the driver does not answer")]
    NoAnswer,
    /// There cannot be another thread.
    #[error("cannot ask the driver: {0}")]
    NoThread(#[from] io::Error),
}

/// Reads GPUs, each on a thread of its own, and at most one for each GPU.
#[derive(Debug, Default)]
pub struct Reader {
    busy: Arc<AtomicBool>,
}

impl Reader {
    /// What the driver reports about `gpu` now.
    ///
    /// # Errors
    /// If the GPU is gone or does not answer.
    pub fn read(&self, gpu: &Arc<Gpu>) -> Result<Reading, ReadingError> {
        if self.busy.swap(true, SeqCst) {
            return Err(ReadingError::NoAnswer);
        }
        let (answer, answered) = mpsc::channel();
        let (gpu, busy) = (Arc::clone(gpu), Arc::clone(&self.busy));
        let spawned = thread::Builder::new().name("reading".into()).spawn(move || {
            let reading = ask(&gpu);
            // Whoever hears of a lost driver finds nobody who keeps it.
            drop(gpu);
            busy.store(false, SeqCst);
            // Nobody listens any more if it took too long.
            let _ = answer.send(reading);
        });
        if let Err(error) = spawned {
            self.busy.store(false, SeqCst);
            return Err(error.into());
        }
        match answered.recv_timeout(PATIENCE) {
            Ok(reading) => Ok(reading?),
            Err(_) => Err(ReadingError::NoAnswer),
        }
    }
}

fn ask(gpu: &Gpu) -> Result<Reading, DriverError> {
    let device = gpu.device()?;
    Ok(Reading {
        sm_clock: device.clock_info(Clock::SM).ok().map(Mhz),
        power_w: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
        power_limit: device.power_management_limit().ok().map(Milliwatts),
        mig: gpu.is_split_by_mig()?,
        held_back: device.current_throttle_reasons().ok().and_then(held_back),
    })
}

/// Those reasons that are no wish of anybody.
fn held_back(reasons: ThrottleReasons) -> Option<ThrottleReasons> {
    let wishes = ThrottleReasons::GPU_IDLE | ThrottleReasons::APPLICATIONS_CLOCKS_SETTING;
    let others = reasons - wishes;
    (!others.is_empty()).then_some(others)
}
