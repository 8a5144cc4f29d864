//! The restore of GPUs that no session answers for, because a predecessor or a lost GPU left locks
//! behind. Each GPU is restored on a thread of its own, so that one that hangs does not delay the
//! others.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use pfo_keeper::{Entry, Ledger, restore_entry};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::LateDriver;
use crate::host::journal;
use crate::lease::Leases;

/// Retry interval for clocks that could not be restored.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// What is owed, and the attempts to restore it.
#[derive(Debug)]
pub(crate) struct Owed {
    ledger: Arc<Ledger>,
    leases: Arc<Leases>,
    driver: Arc<LateDriver>,
    more: Notify,
}

impl Owed {
    /// Restores the entries of `ledger` whose GPUs `leases` gives to no session.
    pub(crate) fn new(ledger: Arc<Ledger>, leases: Arc<Leases>, driver: Arc<LateDriver>) -> Self {
        Self { ledger, leases, driver, more: Notify::new() }
    }

    /// Entries of the ledger that no session answers for.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let held = |entry: &Entry| self.leases.holder(&entry.gpu_uuid).is_some();
        self.ledger.entries().into_iter().filter(|entry| !held(entry)).collect()
    }

    /// A session left something locked.
    pub(crate) fn notice(&self) {
        self.more.notify_one();
    }

    /// Retries until nothing is owed, for as long as the daemon runs.
    pub(crate) async fn restore(self: Arc<Self>) {
        loop {
            for entry in self.entries() {
                // If no thread can be started, the next attempt will do.
                drop(self.start(entry));
            }
            if self.entries().is_empty() {
                self.more.notified().await;
            } else {
                sleep(RETRY_EVERY).await;
            }
        }
    }

    /// Tries to restore a GPU on a thread of its own, unless another attempt runs. Sends the
    /// outcome; without a thread there is none.
    fn start(self: &Arc<Self>, entry: Entry) -> Receiver<Result<(), String>> {
        let (result, received) = channel();
        let owed = Arc::clone(self);
        let attempt = move || drop(result.send(owed.restore_one(&entry)));
        let _ = thread::Builder::new().name("restore".into()).spawn(attempt);
        received
    }

    /// Restores everything that is owed, and waits for it. Returns what could not be restored in
    /// time, with the reason.
    pub(crate) fn restore_now(self: &Arc<Self>, patience: Duration) -> Vec<(Entry, String)> {
        let start = |entry: Entry| (self.start(entry.clone()), entry);
        let attempts: Vec<_> = self.entries().into_iter().map(start).collect();
        let began = Instant::now();
        let failed = |(received, entry): (Receiver<Result<(), String>>, Entry)| {
            let why = match received.recv_timeout(patience.saturating_sub(began.elapsed())) {
                Ok(outcome) => outcome.err()?,
                Err(RecvTimeoutError::Timeout) => self
                    .driver
                    .get()
                    .map_or_else(|why| why, |_| "the driver does not answer".to_owned()),
                Err(RecvTimeoutError::Disconnected) => "cannot start another thread".to_owned(),
            };
            Some((entry, why))
        };
        attempts.into_iter().filter_map(failed).collect()
    }

    fn restore_one(&self, owed: &Entry) -> Result<(), String> {
        let gpu = &owed.gpu_uuid;
        let Some(_restoring) = self.leases.restore(gpu) else {
            // A session that opened since answers for the entry itself, or another thread restores
            // it.
            return Err("it is being restored".into());
        };
        // A session may have opened, restored it and ended since.
        let Some(entry) = self.ledger.entry(gpu) else { return Ok(()) };
        // Nobody waits for this thread longer than for a GPU that hangs.
        let mut driver = self.driver.get_within(Duration::MAX)?;
        if driver.gpus.iter().all(|found| found.uuid != *gpu) {
            self.driver.look_for_missing();
            driver = self.driver.get()?;
        }
        let old_clock =
            restore_entry(&driver, &entry, &self.ledger).map_err(|error| error.to_string())?;
        tracing::info!(
            name: journal::RESTORED,
            gpu_uuid = %entry.gpu_uuid, job = %entry.job, uid = entry.uid.0, pid = entry.pid.0,
            old_mhz = old_clock.map(|clock| clock.0),
            "restored the clocks of GPU {} that a session of job {} of user {} had left locked",
            entry.gpu_uuid, entry.job, entry.uid
        );
        Ok(())
    }
}
