//! A rank's session from hello to the end of its lease.

mod begin;
mod open;
mod resume;
mod tenancy;

use std::convert::Infallible;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pfo_keeper::Gpu;
use pfo_protocol::{Closing, ClosingReason, DaemonMessage, Hello, Holder, Refusal, SessionId};
use pfo_service::{Door, FileIdentity, Panicked, User, Whose, catch};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

pub(crate) use self::open::open;
pub(crate) use self::resume::resume;
use crate::host::journal;
use crate::job::Job;
use crate::lease::{Lease, Session};
use crate::node::Node;
use crate::rank::{End, Rank};
use crate::refusal::internal;

/// A peer that does not read delays the opening and the end of its session, and the start of the
/// next daemon, by no more than this.
const WRITE_TIMEOUT: Duration = Duration::from_millis(200);

/// Stack of a rank's thread, which calls into the driver.
const RANK_STACK_BYTES: usize = 512 * 1024;

/// The origin of a session.
#[derive(Debug)]
pub(crate) enum Origin {
    /// The rank opens it now, and passed these files.
    Hello(Vec<FileIdentity>),
    /// The previous daemon left the session of this number behind, and has checked the device.
    LastDaemon(SessionId),
}

/// A session that holds its lease and has yet to begin.
pub(crate) struct Opening {
    node: Arc<Node>,
    lease: Lease,
    gpu: Arc<Gpu>,
    hello: Hello,
    origin: Origin,
    /// What to stop when the session ends.
    watch: Option<AbortHandle>,
    begun: Option<oneshot::Sender<Infallible>>,
}

impl Opening {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.lease.session
    }

    /// Ends as soon as the session has joined its job, or has failed to.
    pub(crate) fn begun(&mut self) -> oneshot::Receiver<Infallible> {
        let (begun, receiver) = oneshot::channel();
        self.begun = Some(begun);
        receiver
    }

    /// Runs the session to its end, on the thread of the rank.
    pub(crate) fn run(mut self) {
        let session = Arc::clone(self.session());
        let whose = Whose::of_rank(&session.holder, &self.gpu.uuid);
        let begun = catch(&whose, || self.begin());
        let begun = begun.unwrap_or_else(|panicked| {
            // It may have joined its job.
            self.node.jobs.all().iter().for_each(|job| job.leave(&session));
            Err(panicked.into())
        });
        self.begun = None;
        let result = begun.map(|(mut rank, job)| {
            let end = catch(&whose, || rank.serve()).unwrap_or(End::Failed);
            self.leave(rank, &job, end)
        });
        self.close(result);
    }

    /// Gives the lease back after the end of the session, or after its refusal.
    pub(crate) fn close(self, result: Result<End, Refusal>) {
        let session = Arc::clone(self.session());
        session.progress.ended.store(true, Relaxed);
        if let Some(watch) = &self.watch {
            watch.abort();
        }
        if let Err(refusal) = &result {
            self.log_refusal(refusal);
        }
        let node = Arc::clone(&self.node);
        // A peer that is refused may request the GPU again at once; and as long as the lease is
        // held, no other thread restores what it owes.
        drop(self);
        node.owed.notice();
        match result {
            Ok(End::HandedOver) => return,
            Ok(_) => {}
            Err(refusal) => tell(session.stream(), &DaemonMessage::Refusal(refusal)),
        }
        session.close();
        node.connections.close(Door::Users, session.person, session.stream());
    }

    /// Restores the clocks of a rank whose session has ended, and tells it why.
    pub(crate) fn leave(&self, mut rank: Rank, job: &Job, end: End) -> End {
        rank.measure_end();
        let Session { holder, person, .. } = &**self.session();
        if let End::Closed(ClosingReason::GpuLost, why) = &end {
            tracing::error!(
                name: journal::GPU_LOST,
                job = %holder.job, rank = holder.rank.0, uid = holder.uid.0,
                owner_uid = person.0, pid = holder.pid.0, gpu_uuid = %self.gpu.uuid,
                "lost GPU {} of {}: {why}", self.gpu.uuid, in_words(self.session())
            );
        }
        let old_mhz = rank.clocks().locked().map(|(mhz, _)| mhz.0);
        if let Err(error) = rank.clocks().restore() {
            tracing::error!(
                name: journal::STILL_LOCKED,
                job = %holder.job, rank = holder.rank.0, uid = holder.uid.0, pid = holder.pid.0,
                gpu_uuid = %self.gpu.uuid, "the clocks of GPU {} are not restored yet: {error}", self.gpu.uuid
            );
        }
        job.leave(self.session());
        let why = match &end {
            End::Goodbye => "the rank said goodbye",
            End::HungUp => "the connection ended",
            End::HandedOver => "the next pfod continues it",
            End::Failed => {
                tell(self.session().stream(), &DaemonMessage::Refusal(Panicked.into()));
                "pfod failed while it served the rank"
            }
            End::Closed(reason, message) => {
                let closing = Closing { reason: *reason, message: message.clone() };
                tell(self.session().stream(), &DaemonMessage::Closing(closing));
                message
            }
        };
        tracing::info!(
            name: journal::LEASE_ENDED,
            job = %holder.job, rank = holder.rank.0, uid = holder.uid.0,
            owner_uid = person.0, pid = holder.pid.0, gpu_uuid = %self.gpu.uuid,
            session = holder.session.0, old_mhz,
            "the lease of GPU {} by {} ended: {why}", self.gpu.uuid, in_words(self.session())
        );
        end
    }

    fn log_refusal(&self, refusal: &Refusal) {
        let Session { holder, person, .. } = &**self.session();
        tracing::warn!(
            name: journal::REFUSED,
            job = %holder.job, rank = holder.rank.0, uid = holder.uid.0,
            owner_uid = person.0, pid = holder.pid.0, gpu_uuid = %self.gpu.uuid,
            "refused a session on GPU {} to {}: {}", self.gpu.uuid, in_words(self.session()), refusal.message
        );
    }
}

fn in_words(session: &Session) -> String {
    let Holder { job, rank, uid, pid, .. } = &session.holder;
    let user = User { uid: *uid, person: session.person };
    format!("job {job}, rank {rank} ({user}, process {pid})")
}

/// Sends a message that the session does not depend on.
fn tell(mut stream: &UnixStream, message: &DaemonMessage) {
    if let Ok(frame) = message.to_frame() {
        let _ = stream.write_all(&frame);
    }
}

/// Gives a session the thread that it runs on until it ends, at the latest when its process does.
///
/// # Errors
/// If a thread cannot be started.
pub(crate) fn set_off(mut opening: Opening, process: Option<OwnedFd>) -> Result<(), Refusal> {
    let (node, gpu) = (Arc::clone(&opening.node), Arc::clone(&opening.gpu));
    let watch = tenancy::watch(node, gpu, process, Arc::downgrade(opening.session()));
    opening.watch = Some(tokio::spawn(watch).abort_handle());
    std::thread::Builder::new()
        .name(format!("rank {}", opening.session().holder.rank))
        .stack_size(RANK_STACK_BYTES)
        .spawn(move || opening.run())
        .map_err(|error| internal(&error))?;
    Ok(())
}
