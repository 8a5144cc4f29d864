//! What a session does first on its thread: it checks the GPU and the process, joins its job and
//! welcomes the rank.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pfo_keeper::{Clocks, DriverError, Entry, restore_entry};
use pfo_protocol::{ClientMessage, DaemonMessage, Refusal, RefusalCode, Welcome};

use super::{Opening, Origin, WRITE_TIMEOUT, in_words, tell, tenancy};
use crate::host::journal;
use crate::job::{Job, JobKey, Member};
use crate::lease::Session;
use crate::lease::descriptor_store::keep;
use crate::rank::Rank;
use crate::refusal::internal;

impl Opening {
    /// Joins the job, and welcomes the rank.
    pub(crate) fn begin(&self) -> Result<(Rank, Arc<Job>), Refusal> {
        let Self { node, gpu, hello, .. } = self;
        let session = self.session();
        self.make_blocking().map_err(|error| internal(&error))?;
        self.check_gpu()?;
        tenancy::check(node, gpu, session)?;
        let entry = self.entry();
        let (gpu_of_clocks, ledger) = (Arc::clone(gpu), Arc::clone(&node.ledger));
        let published = Arc::clone(&session.progress.published);
        let mut clocks =
            Clocks::new(gpu_of_clocks, ledger, entry, published).map_err(|e| unavailable(&e))?;
        let counter = node.meters.watch(session, gpu)?;
        let key = JobKey { uid: session.holder.uid, name: hello.job.clone() };
        let job = node.jobs.find_or_create(key, hello.position.pp_degree);
        let (hello, session, gpu) = (hello.clone(), Arc::clone(session), Arc::clone(&gpu.facts));
        let place = (hello.position.pp_rank, hello.position.dp_rank);
        let joined = job.join(Member { hello, session, gpu })?;
        if node.settings().config.clocks.lock_memory_clock
            && let Err(error) = clocks.lock_memory()
        {
            // Training continues at the memory clock that the driver picks.
            self.session().progress.problem.store(Some(Arc::new(error.to_string())));
        }
        let session = Arc::clone(self.session());
        let rank = Rank::new(session, Arc::clone(&job), place, clocks, counter, joined);
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
            let uuid = &gpu.uuid;
            let message =
                format!("MIG is enabled on GPU {uuid}: its clocks belong to all of its users");
            let remedy = "use a GPU without MIG, or disable it with `nvidia-smi -mig 0`";
            return Err(Refusal::new(RefusalCode::MigEnabled, message, remedy));
        }
        if gpu.sm_clocks.is_empty() {
            let message =
                format!("the driver lists no clocks for GPU {} ({})", gpu.uuid, gpu.model);
            let remedy = "this model cannot be driven by pfo";
            return Err(Refusal::new(RefusalCode::GpuUnavailable, message, remedy));
        }
        // A lost GPU that is back may still owe the locks of an earlier session, and so may any GPU
        // after a ledger was lost.
        let is_unknown = node.ledger.damage().is_some_and(|damage| damage.lost_entries);
        let unknown = || is_unknown.then(|| Entry { sm: true, memory: true, ..self.entry() });
        if let Some(owed) = node.ledger.entry(&gpu.uuid).or_else(unknown) {
            restore_entry(&*node.driver.ready()?, &owed, &node.ledger).map_err(|error| {
                let message = format!("the clocks of an earlier session are still locked: {error}");
                let remedy = "ask an administrator for `pfoctl clocks reset`";
                Refusal::new(RefusalCode::GpuUnavailable, message, remedy)
            })?;
        }
        Ok(())
    }

    fn welcome(&self) {
        let welcome = Welcome {
            daemon: concat!("pfod ", env!("CARGO_PKG_VERSION")).into(),
            session: self.session().holder.session,
            gpu_uuid: self.gpu.uuid.clone(),
            gpu_model: self.gpu.model.clone(),
            idle_limit_ms: self.idle_limit().as_millis() as u64,
        };
        tell(self.session().stream(), &DaemonMessage::Welcome(welcome));
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
}

pub(super) fn unavailable(error: &DriverError) -> Refusal {
    let remedy = "see `nvidia-smi` and the kernel's log for this GPU";
    Refusal::new(RefusalCode::GpuUnavailable, error.to_string(), remedy)
}
