//! Reading a GPU without waiting for one that does not answer.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use pfo_keeper::{DriverError, Gpu, Reading};
use pfo_service::{lock, now_ns};

/// A sick GPU can block a call for minutes; a healthy one answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long to wait for somebody else's reading, in milliseconds: that of a healthy GPU is over by then.
const OTHERS_MS: u32 = 50;

/// How old a reading may be when the GPU has been read often: this, or this multiple of the time that
/// it took.
const RECENT_NS: u64 = 1_000_000_000;
const RECENT_PER_READ: u64 = 400;

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
    /// The last reading, and until when it is recent.
    last: Mutex<Option<(u64, Reading)>>,
}

impl Reader {
    /// What the driver reports about `gpu` now, or reported a moment ago if its readers have used
    /// up their budget.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn recent(&self, gpu: &Arc<Gpu>) -> Result<Reading, ReadingError> {
        let (now_ns, last) = (now_ns(), *lock(&self.last));
        match last.filter(|(until_ns, _)| now_ns < gpu.asked.paid_at_ns().min(*until_ns)) {
            Some((_, reading)) => Ok(reading),
            None => self.read(gpu),
        }
    }

    /// What the driver reports about `gpu` now.
    ///
    /// # Errors
    /// If the GPU is gone or does not answer.
    pub(crate) fn read(&self, gpu: &Arc<Gpu>) -> Result<Reading, ReadingError> {
        let mut left_ms = OTHERS_MS;
        while self.busy.swap(true, SeqCst) {
            left_ms = left_ms.checked_sub(1).ok_or(ReadingError::NoAnswer)?;
            thread::sleep(Duration::from_millis(1));
        }
        let (answer, answered) = mpsc::channel();
        let asked_ns = now_ns();
        let (gpu, busy) = (Arc::clone(gpu), Arc::clone(&self.busy));
        let spawned = thread::Builder::new().name("reading".into()).spawn(move || {
            let reading = gpu.read();
            // The driver must not stay loaded because of this thread.
            drop(gpu);
            busy.store(false, SeqCst);
            // The receiver is gone if the reading took too long.
            let _ = answer.send(reading);
        });
        spawned.inspect_err(|_| self.busy.store(false, SeqCst))?;
        match answered.recv_timeout(PATIENCE) {
            Ok(reading) => {
                let reading = reading?;
                let took_ns = now_ns().saturating_sub(asked_ns);
                let recent_ns = took_ns.saturating_mul(RECENT_PER_READ).max(RECENT_NS);
                *lock(&self.last) = Some((asked_ns.saturating_add(recent_ns), reading));
                Ok(reading)
            }
            Err(_) => Err(ReadingError::NoAnswer),
        }
    }
}
