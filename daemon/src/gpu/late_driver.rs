//! A driver that may load after the daemon starts, and unload while it runs.
//!
//! NVML never recovers from a driver that was unloaded under it, and keeps a driver in use that is
//! to be unloaded. So the library is released as soon as no GPU is left, and loaded again when
//! there is one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use pfo_keeper::{Driver, Gpu, LastUser, OnLost, Reading};
use pfo_protocol::{GpuName, GpuUuid, Refusal, RefusalCode};
use pfo_service::lock;
use tokio::sync::Notify;

use super::reader::{Reader, ReadingError};

/// A driver that could not be loaded is retried at most this often.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// How long to wait for another thread that loads the driver, and how often to look.
const PATIENCE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(5);

/// The driver, whenever there is one.
#[derive(Debug)]
pub(crate) struct LateDriver {
    library: PathBuf,
    loaded: ArcSwapOption<Driver>,
    missing: Mutex<Missing>,
    readers: Mutex<HashMap<GpuUuid, Arc<Reader>>>,
    /// Wakes the driver watch after a GPU was lost.
    pub lost: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Missing {
    /// When loading was last tried, and why it failed.
    tried: Option<(Instant, String)>,
    /// As long as this has a user, loading returns the driver that is gone.
    former: LastUser,
    /// When GPUs that did not answer were looked for last.
    looked: Option<Instant>,
    /// Whether it is not to be loaded, so that others can work on it.
    released: bool,
}

/// How many of the GPUs still answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// At least one answers.
    Present,
    /// Those that answer are lost, and others do not answer.
    Unclear,
    /// All are lost: the first one's reason.
    Gone(String),
}

impl LateDriver {
    /// A driver that is not loaded yet.
    #[must_use]
    pub(crate) fn new(library: &Path) -> Self {
        Self {
            library: library.to_owned(),
            loaded: ArcSwapOption::empty(),
            missing: Mutex::default(),
            readers: Mutex::default(),
            lost: Arc::default(),
        }
    }

    /// The driver, after an attempt to load it unless one was made just now.
    ///
    /// # Errors
    /// Why it could not be loaded, in words.
    pub(crate) fn get(&self) -> Result<Arc<Driver>, String> {
        if let Some(driver) = self.loaded.load_full() {
            return Ok(driver);
        }
        let Some(mut missing) = self.missing_within(PATIENCE) else {
            return Err("the driver is being loaded, and does not answer".into());
        };
        if let Some(driver) = self.loaded.load_full() {
            return Ok(driver);
        }
        if missing.released {
            return Err("it is released for maintenance until this node is undrained".into());
        }
        if let Some((when, why)) = &missing.tried
            && (when.elapsed() < RETRY_EVERY || missing.former.is_there())
        {
            return Err(why.clone());
        }
        let lost = Arc::clone(&self.lost);
        match Driver::load(&self.library, &OnLost::new(move || lost.notify_one())) {
            Ok(driver) => {
                let driver = Arc::new(driver);
                tracing::info!("driver {} with {} GPUs", driver.version, driver.gpus.len());
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

    /// The driver, or a refusal that says why it is missing.
    ///
    /// # Errors
    /// Why the driver is missing.
    pub(crate) fn ready(&self) -> Result<Arc<Driver>, Refusal> {
        self.get().map_err(|why| {
            let remedy = "see `nvidia-smi` and `pfoctl status`";
            Refusal::new(RefusalCode::DriverUnavailable, why, remedy)
        })
    }

    /// The GPU with that name.
    ///
    /// # Errors
    /// If the driver is not there or has no such GPU.
    pub(crate) fn gpu(&self, name: &GpuName) -> Result<Arc<Gpu>, Refusal> {
        if let Some(gpu) = self.ready()?.gpu(name) {
            return Ok(Arc::clone(gpu));
        }
        self.look_for_missing();
        self.ready()?.gpu(name).cloned().ok_or_else(|| {
            Refusal::new(
                RefusalCode::UnknownGpu,
                format!("this node has no GPU {name}"),
                "`pfoctl gpus` lists the GPUs of this node",
            )
        })
    }

    /// Looks for GPUs that did not answer when the driver was loaded, unless it just did.
    pub(crate) fn look_for_missing(&self) {
        let Some(mut missing) = self.missing_within(Duration::ZERO) else { return };
        // A driver that is released meanwhile must stay so.
        let Some(driver) = self.loaded.load_full() else { return };
        let just_did = missing.looked.is_some_and(|looked| looked.elapsed() < RETRY_EVERY);
        if driver.missing.is_empty() || just_did {
            return;
        }
        missing.looked = Some(Instant::now());
        let lost = Arc::clone(&self.lost);
        if let Some(found) = driver.with_returned(&OnLost::new(move || lost.notify_one())) {
            tracing::info!(
                "found {} GPUs that did not answer before",
                found.gpus.len().saturating_sub(driver.gpus.len())
            );
            self.loaded.store(Some(Arc::new(found)));
        }
    }

    /// What the driver reports about a GPU now.
    ///
    /// # Errors
    /// If the GPU is gone or does not answer.
    pub(crate) fn read(&self, gpu: &Arc<Gpu>) -> Result<Reading, ReadingError> {
        let reader = {
            let mut readers = lock(&self.readers);
            Arc::clone(readers.entry(gpu.uuid.clone()).or_default())
        };
        reader.read(gpu)
    }

    /// Asks every GPU, if there is a driver.
    #[must_use]
    pub(crate) fn health(&self) -> Health {
        let Some(driver) = self.loaded.load_full() else {
            return Health::Present;
        };
        let mut first_lost = None;
        let mut silent = false;
        for gpu in &driver.gpus {
            match self.read(gpu) {
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

    /// Releases a driver that is gone.
    pub(crate) fn let_go(&self, why: &str) {
        let mut missing = lock(&self.missing);
        if let Some(driver) = self.loaded.swap(None) {
            missing.former = driver.last_user();
            missing.tried = Some((Instant::now(), format!("the driver is gone: {why}")));
        }
    }

    /// Releases the driver, and does not load it again until it is taken up. Returns what tells
    /// whether it is still in use.
    pub(crate) fn release(&self) -> LastUser {
        let mut missing = lock(&self.missing);
        missing.released = true;
        if let Some(driver) = self.loaded.swap(None) {
            missing.former = driver.last_user();
        }
        missing.former.clone()
    }

    /// Loads a released driver again when it is needed next.
    pub(crate) fn take_up(&self) {
        let mut missing = lock(&self.missing);
        (missing.released, missing.tried) = (false, None);
    }

    /// Loading takes as long as a sick driver takes; no other thread waits for it longer than this.
    fn missing_within(&self, patience: Duration) -> Option<MutexGuard<'_, Missing>> {
        let began = Instant::now();
        loop {
            match self.missing.try_lock() {
                Ok(missing) => return Some(missing),
                Err(TryLockError::Poisoned(_)) => return Some(lock(&self.missing)),
                Err(TryLockError::WouldBlock) if began.elapsed() > patience => return None,
                Err(TryLockError::WouldBlock) => thread::sleep(POLL),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_not_there_is_refused_with_the_reason_and_nobody_is_kept_waiting() {
        let driver = LateDriver::new(Path::new("/no/such/libnvidia-ml.so"));
        let refusal = driver.ready().unwrap_err();
        assert_eq!(refusal.code, RefusalCode::DriverUnavailable);
        assert_eq!(driver.get().unwrap_err(), refusal.message, "it is not tried again at once");
        assert!(driver.gpu(&"GPU-1".parse().unwrap()).is_err());
        assert_eq!(driver.health(), Health::Present, "what is not loaded cannot go");
        driver.let_go("nothing is loaded");
        assert_eq!(driver.get().unwrap_err(), refusal.message);
    }
}
