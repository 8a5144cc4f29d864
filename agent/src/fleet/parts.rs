//! Which jobs this node takes part in, and what drives its part.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fmt, mem};

use pfo_fleet::{Digest, Node, SlowStage, View};
use pfo_protocol::JobView;
use pfo_service::lock;
use pfo_store::{Asked, Etcd, EtcdSettings, JobId, Shown, Store, StoreError, drive};
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::carried::Former;
use super::config::FleetConfig;
use super::local::NodeJob;
use super::measured::History;
use crate::job::JobKey;
use crate::pfod::{Pfod, Questions};
use crate::straggler::SlowStages;

/// How often the node makes sure that it is in the fleet, and forgets jobs that have left it.
const RHYTHM: Duration = Duration::from_secs(5);

/// How long a job may have no rank before the node leaves it: ranks and `pfod` may be started anew.
const ABSENT: Duration = Duration::from_secs(10);

/// Questions about a job that may wait.
const QUESTIONS: usize = 16;

/// Jobs whose last run is remembered.
const MOST_RUNS: usize = 1024;

/// How long a part may take to show itself.
const SHOW_TIMEOUT: Duration = Duration::from_secs(2);

/// The fleet, as this node takes part in it.
pub(crate) struct Fleet {
    pub(super) settings: EtcdSettings,
    /// What its signed budgets call it.
    pub(crate) called: String,
    participant: pfo_fleet::Settings,
    pfod: Pfod,
    pub(super) questions: Arc<Questions>,
    store: OnceCell<Arc<Etcd>>,
    parts: Mutex<BTreeMap<JobKey, Part>>,
    problem: Mutex<Option<StoreError>>,
    /// What this node has measured of its jobs.
    pub(super) histories: Mutex<BTreeMap<JobKey, History>>,
    /// The stages of its jobs that do not run as they were profiled, and what the others hear of them.
    pub(super) slow: Arc<Mutex<SlowOf>>,
    /// The run of each job that this node had a part of last.
    runs: Mutex<BTreeMap<JobKey, JobId>>,
    /// What former runs have left.
    pub(super) carried: Mutex<BTreeMap<JobKey, Former>>,
    /// Why the store has not taken what was written last.
    unwritten: Mutex<Option<StoreError>>,
}

/// What this node says of the slow stages of its jobs.
pub(super) type SlowOf = BTreeMap<JobKey, (SlowStages, Vec<SlowStage>)>;

/// This node's part in one job.
struct Part {
    /// Which run of the job.
    run: Option<String>,
    ask: mpsc::Sender<Asked>,
    driving: JoinHandle<()>,
    began: Instant,
    absent_since: Option<Instant>,
    /// The newest committed swap that the ledger of savings knows of.
    accounted: u64,
    /// The frontier of which it is settled whether the store has it.
    settled: Option<Digest>,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The fleet, for a job that has ranks on other nodes.
pub(crate) fn fleet_of<'a>(fleet: Option<&'a Arc<Fleet>>, job: &JobView) -> Option<&'a Arc<Fleet>> {
    fleet.filter(|_| spans_nodes(job))
}

/// Whether a job has ranks on other nodes.
pub(crate) fn spans_nodes(job: &JobView) -> bool {
    job.ranks.first().is_some_and(|rank| rank.position.ranks() > job.ranks.len() as u64)
}

/// Which run of it a job is in: that of the rank that opened its session last, if that says so.
fn run_of(job: &JobView) -> Option<String> {
    job.ranks.iter().max_by_key(|rank| rank.session)?.run.clone()
}

fn id_of(JobKey { uid, name }: &JobKey, run: Option<String>) -> JobId {
    JobId { uid: *uid, name: name.clone(), run }
}

/// The run whose plan and guard the next run takes over: the run before it, or the one that this had yet to
/// take over. A run that ended before it had a swap has left nothing of its own.
fn left_for(run: &JobId, before: JobId, pending: Option<JobId>) -> JobId {
    pending.filter(|pending| pending != run).unwrap_or(before)
}

impl Fleet {
    /// The fleet of a configuration; none if that has none, or names this node in no way.
    pub(crate) fn new(
        config: &FleetConfig,
        pfod: Pfod,
        questions: Arc<Questions>,
    ) -> Option<Arc<Self>> {
        if !config.is_set() {
            return None;
        }
        let settings = config.store().inspect_err(|why| {
            tracing::error!("this node is in no fleet: {why} in agent.toml, and restart pfo-agent");
        });
        Some(Arc::new(Self {
            settings: settings.ok()?,
            called: config.name.0.clone(),
            participant: config.settings(),
            pfod,
            questions,
            store: OnceCell::new(),
            parts: Mutex::default(),
            problem: Mutex::default(),
            histories: Mutex::default(),
            slow: Arc::default(),
            runs: Mutex::default(),
            carried: Mutex::default(),
            unwritten: Mutex::default(),
        }))
    }

    /// The name of this node.
    pub(super) fn node(&self) -> &Node {
        &self.settings.node
    }

    /// The store, as soon as the credentials for it can be read.
    pub(super) async fn store(&self) -> Arc<Etcd> {
        let open = async || loop {
            let opened = Etcd::open(&self.settings).await;
            // With the certificate of another node, this one would speak for that.
            match opened.and_then(|etcd| etcd.check_name().map(|()| etcd)) {
                Ok(etcd) => return Arc::new(etcd),
                Err(error) => self.note(Some(error)),
            }
            sleep(RHYTHM).await;
        };
        Arc::clone(self.store.get_or_init(open).await)
    }

    /// The store, if the credentials for it could be read.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn store_now(&self) -> Result<Arc<Etcd>, StoreError> {
        let not_yet = || StoreError::Away("it was not asked yet".into());
        let why = || lock(&self.problem).clone().unwrap_or_else(not_yet);
        self.store.get().map(Arc::clone).ok_or_else(why)
    }

    /// Whether the store has answered, and taken what was written, when it was asked last.
    pub(crate) fn reaches_store(&self) -> bool {
        self.store.get().is_some() && lock(&self.problem).is_none()
    }

    /// Reports once that the store does not answer, and once that it does.
    fn note(&self, why: Option<StoreError>) {
        let mut problem = lock(&self.problem);
        match (&*problem, &why) {
            (None, Some(why)) => {
                tracing::warn!("{why}; jobs keep what they run, and the agent retries");
            }
            (Some(_), None) => tracing::info!("the store of the fleet answers again"),
            _ => {}
        }
        *problem = why;
    }

    pub(super) fn note_written(&self, written: Result<(), StoreError>) {
        *lock(&self.unwritten) = written.err();
    }

    /// Keeps the node in the fleet for as long as the agent runs.
    pub(crate) async fn run(self: &Arc<Self>) {
        let store = self.store().await;
        tokio::join!(self.keep_enrolled(&store), self.tell_measured(&*store), self.carry_over());
    }

    async fn keep_enrolled(self: &Arc<Self>, store: &Etcd) {
        loop {
            // A node that is enrolled writes nothing.
            let enrolled = store.enrol(env!("CARGO_PKG_VERSION")).await;
            let unwritten = lock(&self.unwritten).clone();
            self.note(enrolled.err().or(unwritten));
            self.renew_parts();
            sleep(RHYTHM).await;
        }
    }

    /// Leaves jobs that have left the node, and drives those anew whose driving has panicked.
    fn renew_parts(self: &Arc<Self>) {
        let mut parts = lock(&self.parts);
        parts.retain(|_, part| part.absent_since.is_none_or(|since| since.elapsed() < ABSENT));
        for (key, part) in parts.iter_mut() {
            if part.driving.is_finished() {
                *part = self.take_part(key, part.run.clone());
            }
        }
    }

    /// Takes part in the jobs of this node that have ranks on others.
    pub(crate) fn see(self: &Arc<Self>, jobs: &[JobView]) {
        let spanning = jobs.iter().filter(|job| spans_nodes(job));
        let spanning: BTreeMap<_, _> = spanning.map(|job| (JobKey::of(job), run_of(job))).collect();
        let mut parts = lock(&self.parts);
        for (key, part) in parts.iter_mut() {
            let since = || part.absent_since.unwrap_or_else(Instant::now);
            part.absent_since = (!spanning.contains_key(key)).then(since);
        }
        lock(&self.slow).retain(|key, _| spanning.contains_key(key));
        for (key, run) in spanning {
            if parts.get(&key).is_none_or(|part| part.run != run) {
                // What is here of another run leaves with its part.
                lock(&self.histories).remove(&key);
                self.note_run(&key, run.clone());
                let part = self.take_part(&key, run);
                parts.insert(key, part);
            }
        }
    }

    /// Takes note of a run of a job, and of the one before it.
    fn note_run(&self, key: &JobKey, run: Option<String>) {
        let mut runs = lock(&self.runs);
        let id = id_of(key, run);
        if let Some(former) = runs.insert(key.clone(), id.clone()).filter(|former| *former != id) {
            let mut carried = lock(&self.carried);
            let pending = carried.get(key).map(|pending| pending.id.clone());
            carried.insert(key.clone(), Former::of(left_for(&id, former, pending)));
        }
        if runs.len() > MOST_RUNS {
            runs.pop_first();
        }
    }

    fn take_part(self: &Arc<Self>, key: &JobKey, run: Option<String>) -> Part {
        let named = run.clone();
        let (ask, asked) = mpsc::channel(QUESTIONS);
        let (fleet, key) = (Arc::clone(self), key.clone());
        let driving = tokio::spawn(async move {
            let store = fleet.store().await;
            let job = id_of(&key, run);
            let me = (fleet.settings.node.clone(), fleet.participant);
            let (pfod, questions) = (fleet.pfod.clone(), Arc::clone(&fleet.questions));
            let slow = Arc::clone(&fleet.slow);
            let locks = Arc::default();
            let local = Arc::new(NodeJob { pfod, questions, key, slow, locks });
            drop(fleet);
            drive(store, job, me, local, asked).await;
        });
        Part {
            run: named,
            ask,
            driving,
            began: Instant::now(),
            absent_since: None,
            accounted: 0,
            settled: None,
        }
    }

    /// What a job is called in the store.
    pub(crate) fn id_of(&self, key: &JobKey) -> JobId {
        id_of(key, lock(&self.parts).get(key).and_then(|part| part.run.clone()))
    }

    /// Takes note that the ledger of savings knows of a job's swaps up to this one. Returns up to which it
    /// did before.
    pub(super) fn see_swaps(&self, key: &JobKey, newest: u64) -> u64 {
        let mut parts = lock(&self.parts);
        parts.get_mut(key).map_or(newest, |part| mem::replace(&mut part.accounted, newest))
    }

    /// Whether it is settled that the store has a frontier in this run of its job, or a later one.
    pub(crate) fn has_settled(&self, key: &JobKey, frontier: Digest) -> bool {
        lock(&self.parts).get(key).is_none_or(|part| part.settled == Some(frontier))
    }

    pub(crate) fn settle(&self, key: &JobKey, frontier: Digest) {
        if let Some(part) = lock(&self.parts).get_mut(key) {
            part.settled = Some(frontier);
        }
    }

    /// The jobs that this node takes part in.
    pub(crate) fn jobs(&self) -> Vec<JobKey> {
        lock(&self.parts).keys().cloned().collect()
    }

    /// Asks this node's part in a job. Returns whether there is one that can be asked.
    pub(super) fn ask(&self, key: &JobKey, asked: Asked) -> bool {
        lock(&self.parts).get(key).is_some_and(|part| part.ask.try_send(asked).is_ok())
    }

    /// So much of a job in the store, as this node last saw it; none if this node takes no part in it.
    /// To see the whole of a job costs the store a message for each node.
    pub(super) async fn show(&self, key: &JobKey, view: View) -> Option<Shown> {
        let began = lock(&self.parts).get(key)?.began;
        let (answer, shown) = oneshot::channel();
        let unknown = || Shown { shared: None, view, away: Some(began.elapsed()) };
        if !self.ask(key, Asked::Show(view, answer)) {
            return Some(unknown());
        }
        let shown = timeout(SHOW_TIMEOUT, shown).await;
        Some(shown.ok().and_then(Result::ok).unwrap_or_else(unknown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_ended_before_it_had_a_swap_leaves_what_the_one_before_it_left() {
        let key = JobKey { uid: pfo_protocol::Uid(7), name: "j".parse().unwrap() };
        let run = |name: &str| id_of(&key, Some(name.to_owned()));
        assert_eq!(left_for(&run("b"), run("a"), None), run("a"));
        assert_eq!(left_for(&run("c"), run("b"), Some(run("a"))), run("a"));
        assert_eq!(left_for(&run("a"), run("b"), Some(run("a"))), run("b"));
    }
}
