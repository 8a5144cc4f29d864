//! Reading a GPU without waiting for one that does not answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pfo_keeper::{DriverError, Gpu, Reading};

/// A sick GPU can block a call for minutes; a healthy one answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why there is no reading.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadingError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The call takes too long.
    #[error("the driver does not answer")]
    NoAnswer,
    /// The thread could not be started.
    #[error("cannot ask the driver: {0}")]
    NoThread(#[from] io::Error),
}

/// Reads one GPU, on a thread of its own, and on at most one.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    busy: Arc<AtomicBool>,
}

impl Reader {
    /// What the driver reports about `gpu` now.
    ///
    /// # Errors
    /// If the GPU is gone or does not answer.
    pub(crate) fn read(&self, gpu: &Arc<Gpu>) -> Result<Reading, ReadingError> {
        if self.busy.swap(true, SeqCst) {
            return Err(ReadingError::NoAnswer);
        }
        let (answer, answered) = mpsc::channel();
        let (gpu, busy) = (Arc::clone(gpu), Arc::clone(&self.busy));
        let spawned = thread::Builder::new().name("reading".into()).spawn(move || {
            let reading = gpu.read();
            // The driver must not stay loaded because of this thread.
            drop(gpu);
            busy.store(false, SeqCst);
            // The receiver is gone if the reading took too long.
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
