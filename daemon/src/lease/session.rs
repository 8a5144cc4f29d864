//! An open session, as the rest of the daemon sees it, and the ways in which the daemon ends it.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use pfo_protocol::{Closing, ClosingReason, Holder, SettleTimes, Uid};
use pfo_service::interrupt_thread;

use super::descriptor_store;
use super::grant::Grant;
use super::progress::Progress;

/// A frame that a rank has begun to send when its session is handed over must be complete within
/// this time.
const REST_OF_A_FRAME: Duration = Duration::from_millis(100);

/// An open session, as the rest of the daemon sees it.
#[derive(Debug)]
pub(crate) struct Session {
    /// The rank and its process.
    pub holder: Holder,
    /// The person that its user counts as.
    pub person: Uid,
    /// When the session opened.
    pub since: SystemTime,
    /// What the session was granted.
    pub grant: ArcSwap<Grant>,
    /// How far the rank is.
    pub progress: Arc<Progress>,
    stream: UnixStream,
    /// The session has opened, and can no longer be refused.
    begun: AtomicBool,
    ending: OnceLock<Ending>,
    /// The peer had the GPU's device file open when the session opened.
    has_device: AtomicBool,
    /// The next daemon finds the connection in the descriptor store.
    kept: AtomicBool,
    /// The thread that reads from the connection, 0 if none does.
    reader: AtomicI32,
}

/// Why the daemon ends a session.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The rank is notified, and the connection ends.
    Closed(Closing),
    /// The connection stays open for the next daemon.
    HandedOver,
}

impl Session {
    /// A session over a connected socket.
    pub(crate) fn new(holder: Holder, person: Uid, grant: Grant, stream: UnixStream) -> Self {
        Self {
            holder,
            person,
            since: SystemTime::now(),
            grant: ArcSwap::from_pointee(grant),
            progress: Arc::default(),
            stream,
            begun: AtomicBool::new(false),
            ending: OnceLock::new(),
            has_device: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            reader: AtomicI32::new(0),
        }
    }

    /// When clocks are in force: as the agent has measured it, or else as it is configured.
    pub(crate) fn settle_times(&self) -> SettleTimes {
        let configured = || SettleTimes::always(self.grant.load().rules.settle_ns);
        self.progress.settle.get().map_or_else(configured, |measured| measured.1.clone())
    }

    /// The connection. Only the rank's thread reads from it.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Makes the rank's thread end the session, and with it the lease. The first reason stays.
    pub(crate) fn end(&self, reason: ClosingReason, message: impl Into<String>) {
        let _ = self.ending.set(Ending::Closed(Closing { reason, message: message.into() }));
        self.hang_up();
    }

    /// Makes the rank's thread see the end of the connection. The peer's process has ended, even if
    /// a child of it still holds the other end.
    pub(crate) fn hang_up(&self) {
        // It fails only if the peer has closed already, which has the same effect.
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    /// Marks the session as open: it was not refused.
    pub(crate) fn mark_begun(&self) {
        self.begun.store(true, SeqCst);
    }

    /// Whether it is more than an attempt to open a session.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(SeqCst)
    }

    /// Records whether the peer had the GPU's device file open when the session opened.
    pub(crate) fn set_has_device(&self, has_device: bool) {
        self.has_device.store(has_device, SeqCst);
    }

    /// Whether the peer had the GPU's device file open when the session opened.
    pub(crate) fn has_device(&self) -> bool {
        self.has_device.load(SeqCst)
    }

    /// Marks the connection as kept in the descriptor store.
    pub(crate) fn mark_kept(&self) {
        self.kept.store(true, SeqCst);
    }

    /// Makes the rank's thread end the lease, while the connection stays open for the next daemon.
    /// False if the connection is not in the descriptor store. Follow it by
    /// [`interrupt`](Self::interrupt) until the lease has ended.
    pub(crate) fn hand_over(&self) -> bool {
        if !self.kept.load(SeqCst) {
            return false;
        }
        let _ = self.stream.set_read_timeout(Some(REST_OF_A_FRAME));
        let _ = self.ending.set(Ending::HandedOver);
        true
    }

    /// Ends the blocked read of a silent rank, so that its thread notices a request to end. A read
    /// that is only about to begin is not ended.
    pub(crate) fn interrupt(&self) {
        let thread = self.reader.load(SeqCst);
        let in_driver = self.progress.published.in_driver_since_ns.load(SeqCst) > 0;
        if thread != 0 && !in_driver {
            interrupt_thread(thread);
        }
    }

    /// Stops the interrupts of a thread that has noticed the request to end, so that it can read
    /// on.
    pub(crate) fn noticed_interruption(&self) {
        if self.ending().is_some() {
            self.reader.store(0, SeqCst);
        }
    }

    /// Records which thread reads from the connection, until the result is dropped.
    pub(crate) fn read_by_this_thread(&self) -> Reading<'_> {
        self.reader.store(nix::unistd::gettid().as_raw(), SeqCst);
        Reading(self)
    }

    /// Why the daemon ends the session, if it does.
    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    /// Shuts the connection down, also for other processes that have a copy of it.
    pub(crate) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if self.kept.load(SeqCst) {
            descriptor_store::forget(self.holder.session);
        }
    }
}

/// A thread reads from a session's connection.
pub(crate) struct Reading<'a>(&'a Session);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.reader.store(0, SeqCst);
    }
}
