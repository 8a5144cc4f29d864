//! A rank's session from hello to the end of its lease.

mod resume;
mod revocation_file;
mod revocations;

use std::convert::Infallible;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use pfo_keeper::{Clocks, DriverError, Entry, Gpu, restore_entry};
use pfo_policy::Permit;
use pfo_protocol::{
    ClientMessage, Closing, ClosingReason, DaemonMessage, GpuUuid, Hello, Holder, Refusal,
    RefusalCode, SessionId, Welcome,
};
use pfo_service::{Door, FileIdentity, Panicked, User, Whose, blocking, catch, register};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

pub(crate) use self::resume::resume;
pub(crate) use self::revocation_file::RevocationFile;
#[cfg(feature = "fuzzing")]
pub(crate) use self::revocation_file::parse_revocations;
pub(crate) use self::revocations::{Revocation, Revocations};
use crate::host::journal;
use crate::job::{Job, JobKey, Member};
use crate::lease::descriptor_store::keep;
use crate::lease::{Denied, Grant, Lease, Session};
use crate::node::Node;
use crate::rank::{End, Rank, no_process};

/// How long to wait for the previous session of the same rank to end, and how often to check.
const FORMER_SESSION_WAIT: Duration = Duration::from_secs(2);
const FORMER_SESSION_POLL: Duration = Duration::from_millis(10);

/// A peer that does not read delays the opening and the end of its session by no more than this.
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

impl Origin {
    fn is_hello(&self) -> bool {
        matches!(self, Self::Hello(_))
    }
}

/// A session that holds its lease and has yet to begin.
pub(crate) struct Opening {
    node: Arc<Node>,
    lease: Lease,
    gpu: Arc<Gpu>,
    hello: Hello,
    origin: Origin,
    watch: Option<AbortHandle>,
    begun: Option<oneshot::Sender<Infallible>>,
}

/// Checks a hello and takes the lease that it requests.
///
/// # Errors
/// Why there is no session.
pub(crate) async fn open(
    node: &Arc<Node>,
    permit: &Permit,
    hello: Hello,
    origin: Origin,
    socket: OwnedFd,
) -> Result<Opening, Refusal> {
    let peer = &permit.caller().peer;
    hello.position.check().map_err(|error| {
        let remedy = "ranks count from 0; check the degrees (pp, dp, tp) that the trainer gives";
        Refusal::new(RefusalCode::Malformed, error.to_string(), remedy)
    })?;
    node.drain.check()?;
    let (asked, name) = (Arc::clone(&node.driver), hello.gpu.clone());
    // A driver that is being loaded must not block the runtime.
    let gpu = blocking(move || asked.gpu(&name)).await??;
    let is_given = || match &origin {
        Origin::Hello(open) => node.is_given(peer.uid, &gpu, open),
        Origin::LastDaemon(_) => true,
    };
    let has_device = is_given();
    let grant = node.grant(peer, &gpu, has_device)?;
    // What the last daemon saw is known only where it had to look.
    let has_device = has_device && (origin.is_hello() || grant.terms.require_device);
    let key = JobKey { uid: peer.uid, name: hello.job.clone() };
    let holder = Holder {
        job: hello.job.clone(),
        rank: hello.position.rank,
        uid: peer.uid,
        pid: peer.pid,
        session: match origin {
            Origin::Hello(_) => node.next_session(),
            Origin::LastDaemon(session) => session,
        },
    };
    let session = Arc::new(Session::new(holder, peer.person, grant, UnixStream::from(socket)));
    session.set_has_device(has_device);
    if let Origin::LastDaemon(_) = origin {
        session.mark_kept();
        session.progress.forget_step();
    }
    let waiting_since = tokio::time::Instant::now();
    loop {
        match node.leases.acquire(&gpu.uuid, Arc::clone(&session)) {
            Ok(lease) => {
                // A reload, a revocation or the end of a grant that came in between did not see the
                // session.
                let has_device = has_device && is_given();
                session.set_has_device(has_device);
                session.grant.store(Arc::new(node.grant(peer, &gpu, has_device)?));
                node.revocations.check(&key, &gpu.uuid)?;
                node.drain.check()?;
                let node = Arc::clone(node);
                return Ok(Opening { node, lease, gpu, hello, origin, watch: None, begun: None });
            }
            Err(denied)
                if will_pass(&denied, &session.holder)
                    && waiting_since.elapsed() < FORMER_SESSION_WAIT =>
            {
                tokio::time::sleep(FORMER_SESSION_POLL).await;
            }
            Err(denied) => return Err(denial(&denied, permit, &gpu.uuid, &session.grant.load())),
        }
    }
}

/// Whether the GPU is held only by the end of a previous session, or by an attempt that may still
/// be refused: repeated attempts must not keep the GPU from other users.
fn will_pass(denied: &Denied, own: &Holder) -> bool {
    match denied {
        Denied::Held(session) => {
            let other = &session.holder;
            let former = (other.uid, &other.job, other.rank) == (own.uid, &own.job, own.rank);
            former || !session.has_begun()
        }
        Denied::Restoring => true,
        Denied::TooMany(_) | Denied::Closed => false,
    }
}

fn denial(denied: &Denied, permit: &Permit, gpu: &GpuUuid, grant: &Grant) -> Refusal {
    match denied {
        Denied::Held(session) => {
            let sees = permit.sees(session.holder.uid);
            let holder = if sees { in_words(session) } else { "another user".into() };
            Refusal::new(
                RefusalCode::GpuHeld,
                format!("GPU {gpu} is held by {holder}"),
                "use another GPU, or wait until that job ends",
            )
        }
        Denied::Restoring => Refusal::new(
            RefusalCode::GpuUnavailable,
            format!("the clocks that an earlier session left on GPU {gpu} are being restored"),
            "wait until that is over, or see `pfoctl status`",
        ),
        Denied::Closed => Refusal::new(
            RefusalCode::ShuttingDown,
            "pfod is stopping",
            "the session opens again when pfod is back",
        ),
        Denied::TooMany(own) => Refusal::new(
            RefusalCode::LimitReached,
            format!(
                "the user has {own} sessions, the administrator allows {} ({})",
                grant.terms.sessions_per_user.get(),
                grant.place
            ),
            "end some, or ask for a higher sessions_per_user",
        ),
    }
}

impl Opening {
    #[must_use]
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.lease.session
    }

    /// What to stop when the session ends.
    pub(crate) fn watched_by(&mut self, watch: AbortHandle) {
        self.watch = Some(watch);
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
            Err(refusal) => tell(&session, &DaemonMessage::Refusal(refusal)),
        }
        session.close();
        node.connections.close(Door::Users, session.person, session.stream());
    }

    /// Joins the job, and welcomes the rank.
    pub(crate) fn begin(&self) -> Result<(Rank, Arc<Job>), Refusal> {
        let Self { node, gpu, hello, .. } = self;
        let session = self.session();
        self.make_blocking().map_err(|error| internal(&error))?;
        self.check_gpu()?;
        self.check_process()?;
        let entry = self.entry();
        let (gpu_of_clocks, ledger) = (Arc::clone(gpu), Arc::clone(&node.ledger));
        let published = Arc::clone(&session.progress.published);
        let mut clocks =
            Clocks::new(gpu_of_clocks, ledger, entry, published).map_err(|e| unavailable(&e))?;
        let key = JobKey { uid: session.holder.uid, name: hello.job.clone() };
        let job = node.jobs.find_or_create(key, hello.position.pp_degree);
        let (hello, session, gpu) = (hello.clone(), Arc::clone(session), Arc::clone(&gpu.facts));
        let stage = hello.position.pp_rank;
        let joined = job.join(Member { hello, session, gpu })?;
        if node.settings().config.clocks.lock_memory_clock
            && let Err(error) = clocks.lock_memory()
        {
            // Training continues at the memory clock that the driver picks.
            self.session().progress.problem.store(Some(Arc::new(error.to_string())));
        }
        let session = Arc::clone(self.session());
        let rank = Rank::new(session, Arc::clone(&job), stage, clocks, joined);
        let rank = match self.origin {
            Origin::Hello(_) => {
                self.welcome();
                self.keep();
                rank
            }
            Origin::LastDaemon(_) => rank.in_the_middle(),
        };
        self.log_lease();
        self.session().mark_begun();
        Ok((rank, job))
    }

    /// Only a session that has its welcome is kept, because the next daemon sends none.
    fn keep(&self) {
        let session = self.session();
        let kept = ClientMessage::Hello(self.hello.clone())
            .to_frame()
            .map_err(io::Error::other)
            .and_then(|hello| keep(session.holder.session, session.stream(), &hello));
        match kept {
            Ok(true) => session.mark_kept(),
            Ok(false) => {}
            Err(error) => tracing::warn!(
                session = session.holder.session.0,
                "a restart of pfod will end the session of {}, which systemd cannot keep: {error}",
                in_words(session)
            ),
        }
    }

    fn make_blocking(&self) -> io::Result<()> {
        let stream = self.session().stream();
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        stream.set_read_timeout(Some(self.idle_limit()))
    }

    fn idle_limit(&self) -> Duration {
        Duration::from_secs(self.session().grant.load().terms.idle_limit_s.get().into())
    }

    /// The entry of the ledger while nothing is locked.
    fn entry(&self) -> Entry {
        let session = self.session();
        Entry {
            gpu_uuid: self.gpu.uuid.clone(),
            sm: false,
            memory: false,
            restore_to_mhz: session.grant.load().terms.restore_to_mhz,
            power_limit: None,
            job: self.hello.job.clone(),
            uid: session.holder.uid,
            pid: session.holder.pid,
            session: session.holder.session,
        }
    }

    fn check_gpu(&self) -> Result<(), Refusal> {
        let Self { node, gpu, .. } = self;
        if gpu.is_split_by_mig().map_err(|error| unavailable(&error))? {
            return Err(Refusal::new(
                RefusalCode::MigEnabled,
                format!(
                    "MIG is enabled on GPU {}: its clocks belong to all of its users",
                    gpu.uuid
                ),
                "use a GPU without MIG, or disable it with `nvidia-smi -mig 0`",
            ));
        }
        if gpu.sm_clocks.is_empty() {
            return Err(Refusal::new(
                RefusalCode::GpuUnavailable,
                format!("the driver lists no clocks for GPU {} ({})", gpu.uuid, gpu.model),
                "this model cannot be driven by pfo",
            ));
        }
        // A lost GPU that is back may still owe the locks of an earlier session, and so may any GPU
        // after a ledger was lost.
        let is_unknown = node.ledger.damage().is_some_and(|damage| damage.lost_entries);
        let unknown = || is_unknown.then(|| Entry { sm: true, memory: true, ..self.entry() });
        if let Some(owed) = node.ledger.entry(&gpu.uuid).or_else(unknown) {
            restore_entry(&*node.driver.ready()?, &owed, &node.ledger).map_err(|error| {
                Refusal::new(
                    RefusalCode::GpuUnavailable,
                    format!("the clocks of an earlier session are still locked: {error}"),
                    "ask an administrator for `pfoctl clocks reset`",
                )
            })?;
        }
        Ok(())
    }

    /// Refuses a peer that does not compute on the GPU, if the administrator requires that.
    fn check_process(&self) -> Result<(), Refusal> {
        let (gpu, holder, grant) = (&self.gpu, &self.session().holder, self.session().grant.load());
        // The watch of the process ends the session if the number belongs to another process by
        // now.
        if !grant.terms.require_process
            || gpu.is_computed_on_by(holder.pid).map_err(|error| unavailable(&error))?
        {
            return Ok(());
        }
        let message = no_process(holder, &gpu.uuid, &grant.place);
        let remedy = "use the GPU before the session opens; it retries by itself";
        Err(Refusal::new(RefusalCode::NoProcess, message, remedy))
    }

    fn welcome(&self) {
        let welcome = Welcome {
            daemon: concat!("pfod ", env!("CARGO_PKG_VERSION")).into(),
            session: self.session().holder.session,
            gpu_uuid: self.gpu.uuid.clone(),
            gpu_model: self.gpu.model.clone(),
            idle_limit_ms: self.idle_limit().as_millis() as u64,
        };
        tell(self.session(), &DaemonMessage::Welcome(welcome));
    }

    fn log_lease(&self) {
        let Session { holder, person, .. } = &**self.session();
        let how = match self.origin {
            Origin::Hello(_) => "leased",
            Origin::LastDaemon(_) => "leased again, after a restart of pfod,",
        };
        tracing::info!(
            name: journal::LEASED,
            job = %holder.job, rank = holder.rank.0, uid = holder.uid.0,
            owner_uid = person.0, pid = holder.pid.0, gpu_uuid = %self.gpu.uuid,
            session = holder.session.0, client = ?self.hello.client,
            "{how} GPU {} to {}", self.gpu.uuid, in_words(self.session())
        );
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
                tell(self.session(), &DaemonMessage::Refusal(Panicked.into()));
                "pfod failed while it served the rank"
            }
            End::Closed(reason, message) => {
                let closing = Closing { reason: *reason, message: message.clone() };
                tell(self.session(), &DaemonMessage::Closing(closing));
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

/// A refusal for a failure of the operating system.
pub(crate) fn internal(error: &impl Display) -> Refusal {
    Refusal::new(RefusalCode::Internal, error.to_string(), "")
}

fn unavailable(error: &DriverError) -> Refusal {
    let remedy = "see `nvidia-smi` and the kernel's log for this GPU";
    Refusal::new(RefusalCode::GpuUnavailable, error.to_string(), remedy)
}

/// Sends a message that the session does not depend on.
fn tell(session: &Session, message: &DaemonMessage) {
    if let Ok(frame) = message.to_frame() {
        let _ = session.stream().write_all(&frame);
    }
}

/// Gives a session the thread that it runs on until it ends, at the latest when its process does.
///
/// # Errors
/// If a thread cannot be started.
pub(crate) fn set_off(mut opening: Opening, process: Option<OwnedFd>) -> Result<(), Refusal> {
    if let Some(pidfd) = process {
        let session = Arc::downgrade(opening.session());
        opening.watched_by(tokio::spawn(end_with_process(pidfd, session)).abort_handle());
    }
    std::thread::Builder::new()
        .name(format!("rank {}", opening.session().holder.rank))
        .stack_size(RANK_STACK_BYTES)
        .spawn(move || opening.run())
        .map_err(|error| internal(&error))?;
    Ok(())
}

/// The trainer's children may hold a copy of its socket, so the end of the socket alone does not
/// show that the trainer has ended.
async fn end_with_process(pidfd: OwnedFd, session: Weak<Session>) {
    let Ok(pidfd) = register(pidfd) else {
        return;
    };
    if pidfd.readable().await.is_ok()
        && let Some(session) = session.upgrade()
    {
        session.hang_up();
    }
}

#[cfg(test)]
mod tests {
    use pfo_policy::{Action, Authority, Caller, Config};
    use pfo_protocol::{Pid, Rank, Uid};
    use pfo_service::{NodeAccounts, Peer};

    use super::*;
    use crate::lease::example_grant;

    fn holder(uid: u32, rank: u32) -> Holder {
        let (job, pid, session) = ("j".parse().unwrap(), Pid(1), SessionId(1));
        Holder { job, rank: Rank(rank), uid: Uid(uid), pid, session }
    }

    fn held(uid: u32, rank: u32, has_begun: bool) -> Denied {
        let stream = UnixStream::pair().unwrap().0;
        let session = Session::new(holder(uid, rank), Uid(uid), example_grant(""), stream);
        if has_begun {
            session.mark_begun();
        }
        Denied::Held(Arc::new(session))
    }

    #[test]
    fn a_rank_waits_for_the_end_of_its_former_session_and_for_no_other_that_has_begun() {
        let own = holder(7, 0);
        assert!(will_pass(&held(7, 0, true), &own));
        assert!(will_pass(&held(8, 0, false), &own), "it may be refused yet");
        assert!(will_pass(&Denied::Restoring, &own));
        assert!(!will_pass(&held(7, 1, true), &own));
        assert!(!will_pass(&held(8, 0, true), &own));
        assert!(!will_pass(&Denied::TooMany(3), &own) && !will_pass(&Denied::Closed, &own));
    }

    fn permit(uid: u32, door: Door) -> Permit {
        let config = Config::parse("[[rule]]\nusers = ['*']", "pfod.toml".as_ref()).unwrap();
        let (uid, person) = (Uid(uid), Uid(uid));
        let peer = Peer { uid, person, pid: Pid(3), groups: Vec::new(), cgroups: Vec::new() };
        let authority = Authority::new(&config, "node", &NodeAccounts);
        authority.permit(&Caller::new(peer, door), Action::SeeStatus).unwrap()
    }

    #[test]
    fn a_denial_names_who_holds_the_gpu_or_the_limit_and_what_set_it() {
        let gpu = "GPU-1".parse().unwrap();
        let root = permit(0, Door::Admin);
        let denied =
            |denied: &Denied| denial(denied, &root, &gpu, &example_grant("sessions_per_user = 3"));
        let refusal = denied(&held(8, 5, true));
        assert_eq!(refusal.code, RefusalCode::GpuHeld);
        let by = "GPU GPU-1 is held by job j, rank 5 (user 8, process 1)";
        assert_eq!(refusal.message, by);
        for (uid, by) in [(8, by), (7, "GPU GPU-1 is held by another user")] {
            let user = permit(uid, Door::Users);
            let refusal = denial(&held(8, 5, true), &user, &gpu, &example_grant(""));
            assert_eq!(refusal.message, by);
        }
        let refusal = denied(&Denied::TooMany(3));
        assert_eq!(refusal.code, RefusalCode::LimitReached);
        assert!(
            refusal.message.contains("has 3 sessions, the administrator allows 3"),
            "{refusal}"
        );
        assert_eq!(denied(&Denied::Restoring).code, RefusalCode::GpuUnavailable);
        assert_eq!(denied(&Denied::Closed).code, RefusalCode::ShuttingDown);
    }
}
