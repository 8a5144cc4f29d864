//! Everything that the daemon knows about its node, shared by all connections.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use pfo_protocol::{GpuName, Refusal, RefusalCode};
use tokio::sync::Notify;

use crate::accounts::NodeAccounts;
use crate::cli::ConfigSource;
use crate::config::Config;
use crate::driver::{Driver, Gpu};
use crate::grant::Grant;
use crate::job_file::JobFiles;
use crate::jobs::Jobs;
use crate::journal;
use crate::late_driver::LateDriver;
use crate::lease::Leases;
use crate::ledger::{Entry, Ledger};
use crate::p2p::store::P2pStore;
use crate::peer::Peer;
use crate::profile_store::ProfileStore;
use crate::restore::restore_entry;
use crate::revocation_file::RevocationFile;
use crate::revocations::Revocations;
use crate::settings::Settings;
use crate::sweep::file::SweepFiles;
use crate::sweep::sweeps::Sweeps;

/// One node and its daemon.
#[derive(Debug)]
pub struct Node {
    /// Where the configuration comes from.
    pub source: ConfigSource,
    /// Held while another configuration is put into force.
    pub reloading: Mutex<()>,
    /// Why the file is not in force, if it is not.
    pub config_refused: ArcSwapOption<String>,
    /// The keys whose new values take a restart.
    pub restart_needed_for: ArcSwap<Vec<String>>,
    settings: ArcSwap<Settings>,
    /// The driver.
    pub driver: LateDriver,
    /// What is locked.
    pub ledger: Arc<Ledger>,
    /// Who holds which GPU.
    pub leases: Arc<Leases>,
    /// Who is not to hold them again.
    pub revocations: Revocations,
    /// The jobs.
    pub jobs: Jobs,
    /// The sweeps of jobs.
    pub sweeps: Sweeps,
    /// The profiles that sweeps have measured.
    pub profiles: ProfileStore,
    /// What GPUs draw while they wait.
    pub p2p: P2pStore,
    /// When the daemon started.
    pub started: Instant,
    /// Wakes the task that restores what could not be restored at once.
    pub owed: Notify,
    sessions_opened: AtomicU64,
}

impl Node {
    /// A node on which nothing has happened yet.
    #[must_use]
    pub fn new(source: ConfigSource, config: Config, ledger: Ledger) -> Self {
        Self {
            source,
            reloading: Mutex::default(),
            config_refused: ArcSwapOption::empty(),
            restart_needed_for: ArcSwap::default(),
            driver: LateDriver::new(&config.driver.library),
            ledger: Arc::new(ledger),
            leases: Arc::default(),
            revocations: Revocations::kept_in(RevocationFile::beside(&config.paths.ledger)),
            jobs: Jobs::new(JobFiles::beside(&config.paths.ledger)),
            sweeps: Sweeps::new(SweepFiles::under(&config.paths.state)),
            profiles: ProfileStore::under(&config.paths.state),
            p2p: P2pStore::under(&config.paths.state),
            started: Instant::now(),
            owed: Notify::new(),
            sessions_opened: AtomicU64::new(0),
            settings: ArcSwap::from_pointee(Settings::new(config, &NodeAccounts)),
        }
    }

    /// What the administrator has settled, as of now.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Settles something else. What is running does not follow by itself.
    pub fn replace_settings(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// A number that no session of this daemon had before.
    pub fn next_session(&self) -> u64 {
        self.sessions_opened.fetch_add(1, Relaxed) + 1
    }

    /// No session is to have this number again.
    pub fn session_was_opened(&self, session: u64) {
        self.sessions_opened.fetch_max(session, Relaxed);
    }

    /// A lease of a GPU for a peer, if it may have one.
    ///
    /// # Errors
    /// A refusal that names what decided.
    pub fn grant(&self, peer: &Peer, gpu: &Gpu) -> Result<Grant, Refusal> {
        let settings = self.settings();
        let (terms, place) = settings.authority.lease(peer, gpu)?;
        Ok(Grant::new(terms, place, gpu, &settings.config.clocks))
    }

    /// Entries of the ledger that no session answers for: a predecessor or a lost GPU left them.
    #[must_use]
    pub fn owed_entries(&self) -> Vec<Entry> {
        let held = |entry: &Entry| self.leases.holder(&entry.gpu_uuid).is_some();
        self.ledger.entries().into_iter().filter(|entry| !held(entry)).collect()
    }

    /// Restores what no session answers for. Returns what is still owed, each with the reason.
    pub fn restore_owed(&self) -> Vec<(Entry, String)> {
        let owed = self.owed_entries();
        if owed.is_empty() {
            return Vec::new();
        }
        let driver = match self.driver.get() {
            Ok(driver) => driver,
            Err(why) => return owed.into_iter().map(|entry| (entry, why.clone())).collect(),
        };
        owed.into_iter().filter_map(|entry| self.restore_one(&driver, entry)).collect()
    }

    fn restore_one(&self, driver: &Driver, owed: Entry) -> Option<(Entry, String)> {
        let gpu = &owed.gpu_uuid;
        let Some(_restoring) = self.leases.restore(gpu) else {
            // A session that came since answers for the entry itself.
            let free = self.leases.holder(gpu).is_none();
            return free.then(|| (owed, "somebody else is restoring it".into()));
        };
        // A session may have come, restored it and gone since.
        let entry = self.ledger.entry(gpu)?;
        match restore_entry(driver, &entry, &self.ledger) {
            Ok(old_clock) => {
                tracing::info!(
                    name: journal::RESTORED,
                    gpu_uuid = %entry.gpu_uuid, job = %entry.job, uid = entry.uid, pid = entry.pid,
                    old_mhz = old_clock.map(|clock| clock.0),
                    "restored the clocks that an ended session had left"
                );
                None
            }
            Err(error) => Some((entry, error.to_string())),
        }
    }

    /// The driver, for somebody who needs it.
    ///
    /// # Errors
    /// Why it is not there.
    pub fn ready_driver(&self) -> Result<Arc<Driver>, Refusal> {
        self.driver.get().map_err(|why| {
            let remedy = "see `nvidia-smi` and `pfoctl status`";
            Refusal::new(RefusalCode::DriverUnavailable, why, remedy)
        })
    }

    /// The GPU with that name.
    ///
    /// # Errors
    /// If the driver is not there or has no such GPU.
    pub fn gpu(&self, name: &GpuName) -> Result<Arc<Gpu>, Refusal> {
        self.ready_driver()?.gpu(name).cloned().ok_or_else(|| {
            Refusal::new(
                RefusalCode::UnknownGpu,
                format!("this node has no GPU {name}"),
                "see `pfoctl gpus` for those that it has",
            )
        })
    }
}
