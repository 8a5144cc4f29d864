//! Leases: the exclusive right of one session to have a GPU's clocks changed on its behalf.

pub(crate) mod descriptor_store;
mod drain;
mod gpu_grants;
mod grant;
mod lent;
mod progress;
mod session;
mod tap;
mod windows;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use pfo_protocol::GpuUuid;
use pfo_service::lock;
use tokio::sync::Notify;

pub(crate) use self::drain::Drain;
pub(crate) use self::gpu_grants::GpuGrants;
#[cfg(test)]
pub(crate) use self::grant::example as example_grant;
pub(crate) use self::grant::{Grant, Rules};
pub(crate) use self::progress::Progress;
pub(crate) use self::session::{Ending, Session};
pub(crate) use self::tap::Queue;
pub(crate) use self::windows::{Measured, RankWindows};

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
    pub(crate) fn holder(&self, gpu: &GpuUuid) -> Option<Arc<Session>> {
        lock(&self.taken).held.get(gpu).cloned()
    }

    /// Every GPU that is held, with its session.
    pub(crate) fn held(&self) -> Vec<(GpuUuid, Arc<Session>)> {
        lock(&self.taken).held.clone().into_iter().collect()
    }

    /// Every open session.
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
    use std::os::unix::net::UnixStream;

    use super::*;
    use pfo_protocol::{ClosingReason, Holder, Pid, Rank, SessionId, Uid};

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
