//! The parts of the daemon, put together: what sessions and requests work on.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use pfo_keeper::{GpuFacts, Ledger};
use pfo_policy::{Config, Settings};
use pfo_protocol::{Refusal, RefusalCode, SessionId, Uid};
use pfo_service::{Attempt, Connections, FileIdentity, NodeAccounts, Peer, People};

use crate::cli::ConfigSource;
use crate::gpu::{LateDriver, Owed, device_file};
use crate::job::{JobFiles, Jobs};
use crate::lease::{Drain, GpuGrants, Grant, Leases};
use crate::measure::Meters;
use crate::revocation::{RevocationFile, Revocations};

/// One node and its daemon.
#[derive(Debug)]
pub(crate) struct Node {
    /// Where the configuration is read from.
    pub source: ConfigSource,
    /// Held while another configuration is applied.
    pub reloading: Mutex<()>,
    /// Why the file is not in force, if it is not.
    pub config_refused: ArcSwapOption<String>,
    /// The keys whose new values require a restart.
    pub restart_needed_for: ArcSwap<Vec<String>>,
    settings: ArcSwap<Settings>,
    pub driver: Arc<LateDriver>,
    /// Whom users count as in quotas.
    pub people: Arc<People>,
    pub connections: Arc<Connections>,
    /// What is locked.
    pub ledger: Arc<Ledger>,
    /// Which session holds which GPU.
    pub leases: Arc<Leases>,
    /// Whether leases are to be had at all.
    pub drain: Drain,
    /// Which GPUs an administrator has given to users.
    pub gpu_grants: GpuGrants,
    /// The GPUs whose restore no session answers for.
    pub owed: Arc<Owed>,
    /// Revoked leases, which are not to be granted again.
    pub revocations: Revocations,
    pub jobs: Arc<Jobs>,
    /// What reads the energy counters of leased GPUs.
    pub meters: Meters,
    /// What this daemon takes up from the last one.
    pub attempt: Attempt,
    /// When the daemon started.
    pub started: Instant,
    sessions_opened: AtomicU64,
}

impl Node {
    /// A node without sessions.
    pub(crate) fn new(source: ConfigSource, config: Config, ledger: Ledger) -> Self {
        let driver = Arc::new(LateDriver::new(&config.driver.library));
        let drain = Drain::beside(&config.paths.ledger);
        if drain.standing().is_some_and(|drained| drained.driver_released) {
            driver.release();
        }
        let (ledger, leases) = (Arc::new(ledger), Arc::<Leases>::default());
        let files = JobFiles::beside(&config.paths.ledger);
        let people = Arc::new(People::in_file(&config.paths.subordinate_uids));
        let owed = Owed::new(Arc::clone(&ledger), Arc::clone(&leases), Arc::clone(&driver));
        let meters = Meters::new(Arc::clone(&driver));
        Self {
            source,
            reloading: Mutex::default(),
            config_refused: ArcSwapOption::empty(),
            restart_needed_for: ArcSwap::default(),
            driver,
            ledger,
            leases,
            drain,
            gpu_grants: GpuGrants::beside(&config.paths.ledger),
            owed: Arc::new(owed),
            revocations: Revocations::kept_in(RevocationFile::beside(&config.paths.ledger)),
            meters,
            jobs: Arc::new(Jobs::new(files, Arc::clone(&people))),
            people,
            connections: Arc::default(),
            attempt: Attempt::beside(&config.paths.ledger),
            started: Instant::now(),
            sessions_opened: AtomicU64::new(0),
            settings: ArcSwap::from_pointee(Settings::new(config, &NodeAccounts)),
        }
    }

    /// The configuration in force.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// How long what the agent has asked for, or anybody holds, lasts without another request.
    pub(crate) fn agent_silence(&self) -> Duration {
        Duration::from_secs(self.settings().config.limits.agent_silence_s.get().into())
    }

    /// Replaces the configuration in force. Running sessions are not changed by this.
    pub(crate) fn replace_settings(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// A number that no session of this daemon has had.
    pub(crate) fn next_session(&self) -> SessionId {
        SessionId(self.sessions_opened.fetch_add(1, Relaxed).wrapping_add(1))
    }

    /// Reserves the number of a session, so that no other gets it.
    pub(crate) fn session_was_opened(&self, session: SessionId) {
        self.sessions_opened.fetch_max(session.0, Relaxed);
    }

    /// Whether a user was given a GPU: by an administrator, or by whoever let it open the device
    /// file.
    pub(crate) fn is_given(&self, uid: Uid, gpu: &GpuFacts, open: &[FileIdentity]) -> bool {
        self.gpu_grants.gives(uid, &gpu.uuid) || self.is_device_open(gpu, open)
    }

    /// Whether the device file of a GPU is among files that a client has open.
    pub(crate) fn is_device_open(&self, gpu: &GpuFacts, open: &[FileIdentity]) -> bool {
        device_file::is_open(gpu, &self.settings().config.driver.devices, open)
    }

    /// Grants a peer the lease of a GPU, if the policy allows it.
    ///
    /// # Errors
    /// A refusal that names what decided.
    pub(crate) fn grant(
        &self,
        peer: &Peer,
        gpu: &GpuFacts,
        has_device: bool,
    ) -> Result<Grant, Refusal> {
        let settings = self.settings();
        let (terms, place) = settings.authority.lease(peer, gpu)?;
        self.gpu_grants.check(peer.uid, &gpu.uuid)?;
        if terms.require_device && !has_device {
            let Peer { uid, pid, .. } = peer;
            let (device, remedy) = device_file::in_words(gpu, &settings.config.driver.devices);
            let message =
                format!("user {uid} (process {pid}) did not pass {device} (required by {place})");
            return Err(Refusal::new(RefusalCode::NotAuthorized, message, remedy));
        }
        Ok(Grant::new(terms, place, gpu, &settings.config.clocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(directory: &tempfile::TempDir) -> Node {
        let mut config = Config::default();
        config.paths.ledger = directory.path().join("ledger.json");
        let ledger = Ledger::open(&config.paths.ledger).unwrap();
        Node::new(ConfigSource::default(), config, ledger)
    }

    #[test]
    fn a_new_session_has_a_number_above_those_of_the_last_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(&directory);
        assert_eq!(node.next_session(), SessionId(1));
        [7, 5].into_iter().for_each(|session| node.session_was_opened(SessionId(session)));
        assert_eq!(node.next_session(), SessionId(8));
    }

    #[test]
    fn the_session_after_the_last_number_does_no_harm() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(&directory);
        node.session_was_opened(SessionId(u64::MAX));
        let (first, second) = (node.next_session(), node.next_session());
        assert_ne!(first, second);
    }
}
