//! Leases: the exclusive right of one session to have a GPU's clocks changed on its behalf.

pub(crate) mod descriptor_store;
mod drain;
mod gpu_grants;
mod grant;
mod progress;
mod windows;

use std::collections::{HashMap, HashSet};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use pfo_protocol::{Closing, ClosingReason, GpuUuid, Holder, Refusal, SettleTimes, Uid};
use pfo_service::{interrupt_thread, lock};
use tokio::sync::Notify;

pub(crate) use self::drain::Drain;
pub(crate) use self::gpu_grants::GpuGrants;
#[cfg(test)]
pub(crate) use self::grant::example as example_grant;
pub(crate) use self::grant::{Grant, Rules};
pub(crate) use self::progress::Progress;
pub(crate) use self::windows::{Measured, RankWindows};
use crate::measure::{Meter, Refresh};

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
    /// When clocks are in force, if the agent has said so.
    pub settle: ArcSwapOption<SettleTimes>,
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
    /// Reads the energy counter of the GPU and takes the rank's records, while a listener wants
    /// them.
    meter: Mutex<Weak<Meter>>,
    /// The rhythm of that counter, as the last meter knew it.
    pub refresh: Mutex<Refresh>,
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
    #[must_use]
    pub(crate) fn new(holder: Holder, person: Uid, grant: Grant, stream: UnixStream) -> Self {
        Self {
            holder,
            person,
            since: SystemTime::now(),
            grant: ArcSwap::from_pointee(grant),
            settle: ArcSwapOption::empty(),
            progress: Arc::default(),
            stream,
            begun: AtomicBool::new(false),
            ending: OnceLock::new(),
            has_device: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            reader: AtomicI32::new(0),
            meter: Mutex::default(),
            refresh: Mutex::default(),
        }
    }

    /// When clocks are in force: as the agent has measured it, or else as it is configured.
    #[must_use]
    pub(crate) fn settle_times(&self) -> SettleTimes {
        let configured = || SettleTimes::always(self.grant.load().rules.settle_ns);
        self.settle.load().as_deref().cloned().unwrap_or_else(configured)
    }

    /// The connection. Only the rank's thread reads from it.
    #[must_use]
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

    /// The session's only meter, started by `start` if there is none.
    ///
    /// # Errors
    /// As `start`.
    pub(crate) fn meter(
        &self,
        start: impl FnOnce() -> Result<Arc<Meter>, Refusal>,
    ) -> Result<Arc<Meter>, Refusal> {
        let mut known = lock(&self.meter);
        if let Some(meter) = known.upgrade() {
            return Ok(meter);
        }
        let meter = start()?;
        *known = Arc::downgrade(&meter);
        Ok(meter)
    }

    /// Marks the session as open: it was not refused.
    pub(crate) fn mark_begun(&self) {
        self.begun.store(true, SeqCst);
    }

    /// Whether it is more than an attempt to open a session.
    #[must_use]
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(SeqCst)
    }

    /// Records whether the peer had the GPU's device file open when the session opened.
    pub(crate) fn set_has_device(&self, has_device: bool) {
        self.has_device.store(has_device, SeqCst);
    }

    /// Whether the peer had the GPU's device file open when the session opened.
    #[must_use]
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
    #[must_use]
    pub(crate) fn read_by_this_thread(&self) -> Reading<'_> {
        self.reader.store(nix::unistd::gettid().as_raw(), SeqCst);
        Reading(self)
    }

    /// Why the daemon ends the session, if it does.
    #[must_use]
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

/// The sessions that hold GPUs.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    taken: Mutex<Taken>,
    given: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    held: HashMap<GpuUuid, Arc<Session>>,
    restoring: HashSet<GpuUuid>,
    closed: bool,
}

/// Why a lease was denied.
#[derive(Debug)]
pub(crate) enum Denied {
    /// A session holds the GPU.
    Held(Arc<Session>),
    /// What an earlier session left locked on the GPU is being undone.
    Restoring,
    /// The person has as many sessions as allowed.
    TooMany(u32),
    /// The daemon is stopping.
    Closed,
}

impl Leases {
    /// Gives a GPU to a session, if it is free and its person has no more sessions than granted.
    ///
    /// # Errors
    /// Which session holds the GPU, or how many sessions the person has.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        gpu: &GpuUuid,
        session: Arc<Session>,
    ) -> Result<Lease, Denied> {
        let mut taken = lock(&self.taken);
        if taken.closed {
            return Err(Denied::Closed);
        }
        if let Some(holder) = taken.held.get(gpu) {
            return Err(Denied::Held(Arc::clone(holder)));
        }
        if taken.restoring.contains(gpu) {
            return Err(Denied::Restoring);
        }
        let person = session.person;
        let own = taken.held.values().filter(|other| other.person == person).count() as u32;
        if own >= session.grant.load().terms.sessions_per_user.get() {
            return Err(Denied::TooMany(own));
        }
        taken.held.insert(gpu.clone(), Arc::clone(&session));
        self.given.notify_one();
        Ok(Lease { leases: Arc::clone(self), gpu: gpu.clone(), session })
    }

    /// Waits until there is a lease, without a wake-up before. For a single watch only.
    pub(crate) async fn wait_for_any(&self) {
        while lock(&self.taken).held.is_empty() {
            self.given.notified().await;
        }
    }

    /// Grants no more leases.
    pub(crate) fn close(&self) {
        lock(&self.taken).closed = true;
    }

    /// Keeps sessions off a GPU while its clocks are restored or reset, so that it has one writer.
    /// `None` if a session holds it or another restore runs.
    pub(crate) fn restore(self: &Arc<Self>, gpu: &GpuUuid) -> Option<Restoring> {
        let mut taken = lock(&self.taken);
        let free = !taken.held.contains_key(gpu) && taken.restoring.insert(gpu.clone());
        free.then(|| Restoring { leases: Arc::clone(self), gpu: gpu.clone() })
    }

    /// The session that holds a GPU.
    #[must_use]
    pub(crate) fn holder(&self, gpu: &GpuUuid) -> Option<Arc<Session>> {
        lock(&self.taken).held.get(gpu).cloned()
    }

    /// Every GPU that is held, with its session.
    #[must_use]
    pub(crate) fn held(&self) -> Vec<(GpuUuid, Arc<Session>)> {
        lock(&self.taken).held.clone().into_iter().collect()
    }

    /// Every open session.
    #[must_use]
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        lock(&self.taken).held.values().cloned().collect()
    }
}

/// A lease. Dropping it frees the GPU for others; its clocks must be restored by then.
#[derive(Debug)]
pub(crate) struct Lease {
    leases: Arc<Leases>,
    gpu: GpuUuid,
    /// The session that holds it.
    pub session: Arc<Session>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.leases.taken).held.remove(&self.gpu);
    }
}

/// The right to restore the clocks of a GPU that no session holds. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Restoring {
    leases: Arc<Leases>,
    gpu: GpuUuid,
}

impl Drop for Restoring {
    fn drop(&mut self) {
        lock(&self.leases.taken).restoring.remove(&self.gpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfo_protocol::{Pid, Rank, SessionId};

    fn session(uid: u32) -> Arc<Session> {
        subordinate_session(uid, uid)
    }

    fn subordinate_session(uid: u32, person: u32) -> Arc<Session> {
        let holder = Holder {
            job: "j".parse().unwrap(),
            rank: Rank(0),
            uid: Uid(uid),
            pid: Pid(1),
            session: SessionId(1),
        };
        let stream = UnixStream::pair().unwrap().0;
        Arc::new(Session::new(holder, Uid(person), example_grant(""), stream))
    }

    fn only_session(uid: u32, person: u32) -> Arc<Session> {
        let session = subordinate_session(uid, person);
        session.grant.store(Arc::new(example_grant("sessions_per_user = 1")));
        session
    }

    #[test]
    fn a_held_gpu_is_denied_with_its_holder_and_free_again_after_the_lease() {
        let leases = Arc::new(Leases::default());
        let gpu = "GPU-a".parse().unwrap();
        let lease = leases.acquire(&gpu, session(7)).unwrap();
        match leases.acquire(&gpu, session(8)) {
            Err(Denied::Held(holder)) => assert_eq!(holder.holder.uid, Uid(7)),
            other => panic!("{other:?}"),
        }
        assert!(leases.acquire(&"GPU-b".parse().unwrap(), session(8)).is_ok());
        drop(lease);
        assert!(leases.acquire(&gpu, session(8)).is_ok());
    }

    #[test]
    fn a_gpu_is_leased_or_restored_but_never_both() {
        let leases = Arc::new(Leases::default());
        let gpu = "GPU-a".parse().unwrap();
        let restoring = leases.restore(&gpu).unwrap();
        assert!(leases.restore(&gpu).is_none());
        assert!(matches!(leases.acquire(&gpu, session(7)), Err(Denied::Restoring)));
        drop(restoring);
        let lease = leases.acquire(&gpu, session(7)).unwrap();
        assert!(leases.restore(&gpu).is_none());
        drop(lease);
        assert!(leases.restore(&gpu).is_some());
    }

    #[test]
    fn a_person_gets_no_more_sessions_than_allowed_whatever_its_uids() {
        let leases = Arc::new(Leases::default());
        let _one = leases.acquire(&"GPU-a".parse().unwrap(), only_session(7, 7)).unwrap();
        let other = "GPU-b".parse().unwrap();
        for uid in [7, 100_004] {
            let refused = leases.acquire(&other, only_session(uid, 7));
            assert!(matches!(refused, Err(Denied::TooMany(1))), "{uid}");
        }
        assert!(leases.acquire(&other, only_session(8, 8)).is_ok());
    }

    #[test]
    fn the_first_reason_to_end_a_session_stays() {
        let session = session(1);
        session.end(ClosingReason::Revoked, "first");
        session.end(ClosingReason::ShuttingDown, "second");
        let ending = session.ending().unwrap();
        assert!(matches!(ending, Ending::Closed(closing) if closing.message == "first"));
    }
}
