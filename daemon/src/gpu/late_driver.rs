//! A driver that comes later than the daemon, and may go while it runs.
//!
//! NVML never recovers from a driver that was unloaded under it, and keeps one that shall be unloaded in
//! use. So it is let go of as soon as no GPU is left, and loaded anew when there is one again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use nvml_wrapper::Nvml;
use tokio::sync::Notify;

use crate::driver::Driver;
use crate::reading::ReadingError;

/// A driver that could not be loaded is tried again at most this often.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// The driver, whenever there is one.
#[derive(Debug)]
pub struct LateDriver {
    library: PathBuf,
    loaded: ArcSwapOption<Driver>,
    missing: Mutex<Missing>,
    /// Wakes whoever looks whether it is gone, after a GPU was lost.
    pub lost: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Missing {
    /// When it was last looked for, and why it was not found.
    tried: Option<(Instant, String)>,
    /// As long as this has a user, loading finds the driver that is gone.
    former: Weak<Nvml>,
}

/// What is left of the GPUs.
#[derive(Debug, PartialEq, Eq)]
pub enum Health {
    /// At least one answers.
    Present,
    /// Those that answer are lost, and some do not.
    Unclear,
    /// All are lost: the first one's reason.
    Gone(String),
}

impl LateDriver {
    /// A driver that is not loaded yet.
    #[must_use]
    pub fn new(library: &Path) -> Self {
        Self {
            library: library.to_owned(),
            loaded: ArcSwapOption::empty(),
            missing: Mutex::default(),
            lost: Arc::default(),
        }
    }

    /// The driver, after trying to load it if that was not tried just now.
    ///
    /// # Errors
    /// Why it could not be loaded, in words.
    pub fn get(&self) -> Result<Arc<Driver>, String> {
        if let Some(driver) = self.loaded.load_full() {
            return Ok(driver);
        }
        let mut missing = self.missing();
        if let Some(driver) = self.loaded.load_full() {
            return Ok(driver);
        }
        if let Some((when, why)) = &missing.tried
            && (when.elapsed() < RETRY_EVERY || missing.former.strong_count() > 0)
        {
            return Err(why.clone());
        }
        match Driver::load(&self.library, &self.lost) {
            Ok(driver) => {
                let driver = Arc::new(driver);
                tracing::info!("driver {}, {} GPUs", driver.version, driver.gpus.len());
                self.loaded.store(Some(Arc::clone(&driver)));
                Ok(driver)
            }
            Err(error) => {
                let why = error.to_string();
                missing.tried = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// Asks every GPU, if there is a driver.
    #[must_use]
    pub fn health(&self) -> Health {
        let Some(driver) = self.loaded.load_full() else {
            return Health::Present;
        };
        let mut first_lost = None;
        let mut silent = false;
        for gpu in &driver.gpus {
            match gpu.reader.read(gpu) {
                Err(ReadingError::Driver(error)) if error.is_gpu_lost() => {
                    first_lost.get_or_insert(error);
                }
                Err(ReadingError::NoAnswer | ReadingError::NoThread(_)) => silent = true,
                Ok(_) | Err(ReadingError::Driver(_)) => return Health::Present,
            }
        }
        match first_lost {
            Some(error) if !silent => Health::Gone(error.to_string()),
            Some(_) => Health::Unclear,
            None => Health::Present,
        }
    }

    /// Lets go of a driver that is gone.
    pub fn let_go(&self, why: &str) {
        let mut missing = self.missing();
        if let Some(driver) = self.loaded.swap(None) {
            missing.former = driver.last_user();
            missing.tried = Some((Instant::now(), format!("the driver is gone: {why}")));
        }
    }

    fn missing(&self) -> MutexGuard<'_, Missing> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
