//! A driver that may load after the daemon starts, and unload while it runs.
//!
//! NVML never recovers from a driver that was unloaded under it, and keeps a driver in use that is
//! to be unloaded. So the library is released as soon as no GPU is left, and loaded again when
//! there is one. Loading it may take for ever: one thread does that, and others wait for it for as
//! long as they like.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use pfo_keeper::{Driver, DriverError, Gpu, LastUser, OnLost, Reading};
use pfo_protocol::{GpuName, GpuUuid, Refusal, RefusalCode};
use pfo_service::lock;
use tokio::sync::Notify;

use super::reader::{Reader, ReadingError};

/// A driver that could not be loaded is retried at most this often.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// How long the driver may take to be loaded, for a client that waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// The driver, whenever there is one.
#[derive(Debug)]
pub(crate) struct LateDriver {
    library: PathBuf,
    loaded: ArcSwapOption<Driver>,
    missing: Mutex<Missing>,
    /// Wakes those who wait for a search.
    searched: Condvar,
    readers: Mutex<HashMap<GpuUuid, Arc<Reader>>>,
    /// Wakes the driver watch after a GPU was lost.
    pub lost: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Missing {
    /// Since when a thread loads the driver, or looks for GPUs that did not answer.
    searching_since: Option<Instant>,
    /// When that was last tried.
    searched: Option<Instant>,
    /// Why there is no driver.
    why: String,
    /// As long as this has a user, loading returns the driver that is gone.
    former: LastUser,
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
    pub(crate) fn new(library: &Path) -> Self {
        Self {
            library: library.to_owned(),
            loaded: ArcSwapOption::empty(),
            missing: Mutex::default(),
            searched: Condvar::new(),
            readers: Mutex::default(),
            lost: Arc::default(),
        }
    }

    /// The driver, after an attempt to load it unless one was made just now.
    ///
    /// # Errors
    /// Why it could not be loaded, in words.
    pub(crate) fn get(self: &Arc<Self>) -> Result<Arc<Driver>, String> {
        self.get_within(PATIENCE)
    }

    /// As [`get`](Self::get), for a caller with another patience.
    ///
    /// # Errors
    /// Why it could not be loaded, in words.
    pub(crate) fn get_within(self: &Arc<Self>, patience: Duration) -> Result<Arc<Driver>, String> {
        if let Some(driver) = self.loaded.load_full() {
            return Ok(driver);
        }
        self.search(patience);
        self.loaded.load_full().ok_or_else(|| {
            let missing = lock(&self.missing);
            match missing.searching_since {
                _ if missing.released => {
                    "the driver is released until this node is undrained".into()
                }
                Some(since) => {
                    format!("the driver has been loading for {} s", since.elapsed().as_secs())
                }
                None => missing.why.clone(),
            }
        })
    }

    /// The driver, or a refusal that says why it is missing.
    ///
    /// # Errors
    /// Why the driver is missing.
    pub(crate) fn ready(self: &Arc<Self>) -> Result<Arc<Driver>, Refusal> {
        self.get().map_err(|why| {
            let remedy = "see `nvidia-smi` and `pfoctl status`";
            Refusal::new(RefusalCode::DriverUnavailable, why, remedy)
        })
    }

    /// The GPU with that name.
    ///
    /// # Errors
    /// If the driver is not there or has no such GPU.
    pub(crate) fn gpu(self: &Arc<Self>, name: &GpuName) -> Result<Arc<Gpu>, Refusal> {
        if let Some(gpu) = self.ready()?.gpu(name) {
            return Ok(Arc::clone(gpu));
        }
        self.look_for_missing();
        self.ready()?.gpu(name).cloned().ok_or_else(|| {
            let message = format!("this node has no GPU {name}");
            let remedy = "`pfoctl gpus` lists the GPUs of this node";
            Refusal::new(RefusalCode::UnknownGpu, message, remedy)
        })
    }

    /// Looks for GPUs that did not answer when the driver was loaded, unless it just did.
    pub(crate) fn look_for_missing(self: &Arc<Self>) {
        self.search(PATIENCE);
    }

    /// Has a thread load the driver, or look for GPUs that did not answer, unless one just did, and
    /// waits until it has taken that long.
    fn search(self: &Arc<Self>, patience: Duration) {
        let mut missing = lock(&self.missing);
        if missing.searching_since.is_none() && self.is_worth_a_search(&missing) {
            let searcher = Arc::clone(self);
            let thread = thread::Builder::new().name("driver".into());
            match thread.spawn(move || searcher.load_or_look()) {
                Ok(_) => missing.searching_since = Some(Instant::now()),
                Err(error) => missing.why = format!("cannot start a thread to load it: {error}"),
            }
        }
        let Some(since) = missing.searching_since else { return };
        let left = patience.saturating_sub(since.elapsed());
        let searches =
            |missing: &mut Missing| missing.searching_since == Some(since) && !missing.released;
        drop(self.searched.wait_timeout_while(missing, left, searches));
    }

    fn is_worth_a_search(&self, missing: &Missing) -> bool {
        let is_incomplete = match self.loaded.load_full() {
            Some(driver) => !driver.missing.is_empty(),
            None => missing.former.strong_count() == 0,
        };
        let just_did = missing.searched.is_some_and(|searched| searched.elapsed() < RETRY_EVERY);
        is_incomplete && !just_did && !missing.released
    }

    fn load_or_look(&self) {
        let lost = Arc::clone(&self.lost);
        let lost = OnLost::new(move || lost.notify_one());
        let loaded = self.loaded.load_full();
        let found = match &loaded {
            None => Driver::load(&self.library, &lost).map(Some),
            Some(driver) => Ok(driver.with_returned(&lost)),
        };
        self.keep(loaded.as_ref(), found);
        // While this thread has a driver that is not kept, it is in use.
        drop(loaded);
        lock(&self.missing).searching_since = None;
        self.searched.notify_all();
    }

    /// Keeps what was found in the place of what was loaded before, unless that is gone meanwhile.
    fn keep(&self, before: Option<&Arc<Driver>>, found: Result<Option<Driver>, DriverError>) {
        let mut missing = lock(&self.missing);
        missing.searched = Some(Instant::now());
        let is_as_before = self.loaded.load_full().as_ref().map(Arc::as_ptr)
            == before.map(Arc::as_ptr)
            && !missing.released;
        match found {
            Err(error) => missing.why = error.to_string(),
            Ok(Some(driver)) if is_as_before => {
                if before.is_none() {
                    missing.searched = None;
                }
                tracing::info!("driver {} with {} GPUs", driver.version, driver.gpus.len());
                self.loaded.store(Some(Arc::new(driver)));
            }
            Ok(unwanted) => {
                drop(missing);
                drop(unwanted);
            }
        }
    }

    /// What the driver reports about a GPU now.
    ///
    /// # Errors
    /// If the GPU is gone or does not answer.
    pub(crate) fn read(&self, gpu: &Arc<Gpu>) -> Result<Reading, ReadingError> {
        self.reader(gpu).read(gpu)
    }

    /// What the driver reports about a GPU, or reported a moment ago if it was read often.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_recently(&self, gpu: &Arc<Gpu>) -> Result<Reading, ReadingError> {
        self.reader(gpu).recent(gpu)
    }

    fn reader(&self, gpu: &Gpu) -> Arc<Reader> {
        Arc::clone(lock(&self.readers).entry(gpu.uuid.clone()).or_default())
    }

    /// Asks every GPU, if there is a driver.
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
            missing.searched = Some(Instant::now());
            missing.why = format!("the driver is gone: {why}");
        }
    }

    /// Releases the driver, and does not load it again until it is taken up.
    pub(crate) fn release(&self) {
        let mut missing = lock(&self.missing);
        missing.released = true;
        if let Some(driver) = self.loaded.swap(None) {
            missing.former = driver.last_user();
        }
        self.searched.notify_all();
    }

    /// Whether a released driver is still in use.
    pub(crate) fn is_in_use(&self) -> bool {
        let missing = lock(&self.missing);
        missing.searching_since.is_some() || missing.former.strong_count() > 0
    }

    /// Loads a released driver again when it is needed next.
    pub(crate) fn take_up(&self) {
        let mut missing = lock(&self.missing);
        (missing.released, missing.searched) = (false, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_not_there_is_refused_with_the_reason_and_nobody_is_kept_waiting() {
        let driver = Arc::new(LateDriver::new(Path::new("/no/such/libnvidia-ml.so")));
        let refusal = driver.ready().unwrap_err();
        assert_eq!(refusal.code, RefusalCode::DriverUnavailable);
        assert_eq!(driver.get().unwrap_err(), refusal.message, "it is not tried again at once");
        assert!(driver.gpu(&"GPU-1".parse().unwrap()).is_err());
        assert_eq!(driver.health(), Health::Present, "what is not loaded cannot go");
        driver.let_go("nothing is loaded");
        assert_eq!(driver.get().unwrap_err(), refusal.message);
    }
}
