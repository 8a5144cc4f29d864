//! The sweeps of the node: who begins, pauses, resumes and stops them, and what of it is on disk.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pfo_protocol::{
    JobSelector, Refusal, RefusalCode, SweepControl, SweepEnd, SweepState, SweepStatus, TrialResult,
};
use tokio::task::AbortHandle;

use crate::job::JobKey;
use crate::node::Node;
use crate::session::internal;
use crate::sweep::file::SweepFiles;
use crate::sweep::record::{Next, Pause, SweepRecord};
use crate::sweep::runner;

/// Sweeps of one user that are not over.
const UNFINISHED_PER_USER: usize = 16;

/// Sweeps of one user that are over and still shown.
const OVER_PER_USER: usize = 16;

/// All sweeps.
#[derive(Debug)]
pub(crate) struct Sweeps {
    known: Mutex<BTreeMap<JobKey, Arc<Sweep>>>,
    files: Arc<SweepFiles>,
}

/// One sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    now: Mutex<Now>,
    files: Arc<SweepFiles>,
}

#[derive(Debug)]
struct Now {
    record: SweepRecord,
    state: SweepState,
    run: Run,
    task: Option<AbortHandle>,
    /// Who waits for it, without whom it is paused.
    attendant: Option<Attendant>,
}

/// One time that a sweep goes on, from its begin or a pause to the next pause or its end. What a run does
/// that is over counts no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run(u64);

/// One time that somebody waits for a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attendant(u64);

static ATTENDANTS: AtomicU64 = AtomicU64::new(0);

impl Sweeps {
    /// No sweeps yet; those that are not over are kept in these files.
    pub(crate) fn new(files: SweepFiles) -> Self {
        Self { known: Mutex::default(), files: Arc::new(files) }
    }

    /// Goes on with the sweeps of an earlier daemon. To be called on the runtime.
    pub(crate) fn restore(&self, node: &Arc<Node>) {
        let mut known = self.lock();
        for mut record in self.files.read() {
            let key = record.key();
            if record.attended && record.pause.is_none() {
                let why = "pfod has restarted, and whoever waited for the sweep is not back".into();
                record.pause = Some(Pause { why: Some(why) });
            }
            let sweep = Sweep::new(record, &self.files);
            if sweep.now().record.pause.is_none() {
                sweep.set_off(node);
            }
            known.insert(key, sweep);
        }
    }

    /// Begins a sweep. To be called on the runtime, or on a thread of it.
    ///
    /// # Errors
    /// If the job has one that is not over, its user has too many, or it cannot be kept on disk.
    pub(crate) fn start(&self, node: &Arc<Node>, record: SweepRecord) -> Result<Arc<Sweep>, Refusal> {
        let mut known = self.lock();
        let key = record.key();
        let unfinished = |sweep: &Arc<Sweep>| !sweep.is_over();
        if known.get(&key).is_some_and(unfinished) {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!("job {} is being swept", key.name),
                "`pfoctl profile status` shows how far it is; resume it, or stop it first",
            ));
        }
        known.remove(&key);
        let own = known.iter().filter(|(other, _)| other.uid == key.uid);
        let (busy, over): (Vec<_>, Vec<_>) = own.partition(|(_, sweep)| unfinished(sweep));
        if busy.len() >= UNFINISHED_PER_USER {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!("user {} has {} sweeps that are not over", key.uid, busy.len()),
                "stop those that nobody needs",
            ));
        }
        let forgotten: Vec<JobKey> =
            over.into_iter().skip(OVER_PER_USER - 1).map(|(other, _)| other.clone()).collect();
        known.retain(|other, _| !forgotten.contains(other));
        self.files.write(&record).map_err(|error| internal(&error))?;
        let sweep = Sweep::new(record, &self.files);
        sweep.set_off(node);
        known.insert(key, Arc::clone(&sweep));
        Ok(sweep)
    }

    /// The sweep of the job that a request means: the peer's own or, with `any`, the only one of that
    /// name.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub(crate) fn select(
        &self,
        selector: &JobSelector,
        own: u32,
        any: bool,
    ) -> Result<Arc<Sweep>, Refusal> {
        let known = self.lock();
        let JobSelector { job: name, uid } = selector;
        if let Some(sweep) = known.get(&JobKey { uid: uid.unwrap_or(own), name: name.clone() }) {
            return Ok(Arc::clone(sweep));
        }
        let others = known.iter().filter(|(key, _)| any && uid.is_none() && key.name == *name);
        match &others.map(|(_, sweep)| sweep).collect::<Vec<_>>()[..] {
            [sweep] => Ok(Arc::clone(sweep)),
            [] => Err(Refusal::new(
                RefusalCode::UnknownJob,
                format!("job {name} of user {} is not being swept", uid.unwrap_or(own)),
                "`pfoctl profile status` lists the sweeps, `pfoctl profile start` begins one",
            )),
            _ => Err(Refusal::new(
                RefusalCode::UnknownJob,
                format!("jobs {name} of several users are being swept"),
                "say whose with --user",
            )),
        }
    }

    /// Every sweep, or those of one user's jobs.
    pub(crate) fn statuses(&self, uid: Option<u32>) -> Vec<SweepStatus> {
        let known = self.lock();
        let shown = known.iter().filter(|(key, _)| uid.is_none_or(|uid| uid == key.uid));
        shown.map(|(_, sweep)| sweep.status()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobKey, Arc<Sweep>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sweep {
    fn new(record: SweepRecord, files: &Arc<SweepFiles>) -> Arc<Self> {
        let state = match &record.pause {
            Some(Pause { why }) => SweepState::Paused { why: why.clone() },
            None => SweepState::Running,
        };
        let now = Now { record, state, run: Run::default(), task: None, attendant: None };
        Arc::new(Self { now: Mutex::new(now), files: Arc::clone(files) })
    }

    /// The sweep as others see it.
    pub(crate) fn status(&self) -> SweepStatus {
        let now = self.now();
        now.record.status(now.state.clone())
    }

    /// The same, if it is over or paused.
    pub(crate) fn at_rest(&self) -> Option<SweepStatus> {
        let now = self.now();
        let rests = matches!(now.state, SweepState::Ended(_) | SweepState::Paused { .. });
        rests.then(|| now.record.status(now.state.clone()))
    }

    /// Whether there is nothing left to do.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.now().state, SweepState::Ended(_))
    }

    /// Pauses, resumes or ends it. To be called on the runtime, or on a thread of it.
    ///
    /// # Errors
    /// If it is over, has nothing to store, or what becomes of it cannot be kept on disk.
    pub(crate) fn control(
        self: &Arc<Self>,
        node: &Arc<Node>,
        control: SweepControl,
    ) -> Result<SweepStatus, Refusal> {
        let mut now = self.now();
        match (&now.state, control) {
            (SweepState::Ended(_), _) => return Err(is_over(&now.record)),
            (SweepState::Paused { .. }, SweepControl::Pause)
            | (SweepState::Running | SweepState::Waiting { .. }, SweepControl::Resume) => {}
            (_, SweepControl::Pause) => self.pause(&mut now, None),
            (_, SweepControl::Resume) => {
                self.resume(now, node, None)?;
                return Ok(self.status());
            }
            (_, SweepControl::Stop) => self.end(&mut now, SweepEnd::Stopped),
            (_, SweepControl::Finish) if !now.record.has_measured() => {
                return Err(has_measured_nothing(&now.record));
            }
            (_, SweepControl::Finish) => {
                now.record.store(&node.profiles).map_err(|error| internal(&error))?;
                self.end(&mut now, SweepEnd::Finished);
            }
        }
        Ok(now.record.status(now.state.clone()))
    }

    /// Has it go on for as long as somebody waits for it. To be called on the runtime, or on a thread of
    /// it.
    ///
    /// # Errors
    /// If it is over, or what becomes of it cannot be kept on disk.
    pub(crate) fn attend(self: &Arc<Self>, node: &Arc<Node>) -> Result<Attendant, Refusal> {
        let now = self.now();
        if matches!(now.state, SweepState::Ended(_)) {
            return Err(is_over(&now.record));
        }
        let attendant = Attendant(ATTENDANTS.fetch_add(1, Relaxed));
        self.resume(now, node, Some(attendant))?;
        Ok(attendant)
    }

    /// Pauses it if it goes on for nobody else.
    pub(crate) fn is_left_by(&self, attendant: Attendant) {
        let mut now = self.now();
        let goes_on = matches!(now.state, SweepState::Running | SweepState::Waiting { .. });
        if goes_on && now.attendant == Some(attendant) {
            self.pause(
                &mut now,
                Some("whoever waited for the sweep is gone; tune again, or resume it".into()),
            );
        }
    }

    /// Goes on, if it does not yet.
    fn resume(
        self: &Arc<Self>,
        mut now: MutexGuard<'_, Now>,
        node: &Arc<Node>,
        attendant: Option<Attendant>,
    ) -> Result<(), Refusal> {
        let mut record = now.record.clone();
        record.pause = None;
        record.attended = attendant.is_some();
        self.files.write(&record).map_err(|error| internal(&error))?;
        now.record = record;
        now.attendant = attendant;
        if matches!(now.state, SweepState::Paused { .. }) {
            now.state = SweepState::Running;
            drop(now);
            self.set_off(node);
        }
        Ok(())
    }

    /// The sweep, and the profile of what it has measured so far.
    ///
    /// # Errors
    /// If it is over, or has measured nothing yet.
    pub(crate) fn so_far(&self) -> Result<(SweepStatus, String), Refusal> {
        let now = self.now();
        if matches!(now.state, SweepState::Ended(_)) {
            return Err(is_over(&now.record));
        }
        if !now.record.has_measured() {
            return Err(has_measured_nothing(&now.record));
        }
        Ok((now.record.status(now.state.clone()), now.record.csv()))
    }

    /// Begins a run.
    fn set_off(self: &Arc<Self>, node: &Arc<Node>) {
        let mut now = self.now();
        now.run.0 += 1;
        let sweep = runner::run(Arc::clone(node), Arc::clone(self), now.run);
        now.task = Some(tokio::spawn(sweep).abort_handle());
    }

    /// What a run is to measure next, and on what; none if the run is over.
    pub(crate) fn record(&self, run: Run) -> Option<SweepRecord> {
        let now = self.now();
        (now.run == run).then(|| now.record.clone())
    }

    /// Takes note of what a run does.
    pub(crate) fn is_in(&self, run: Run, state: SweepState) {
        let mut now = self.now();
        if now.run == run {
            now.state = state;
        }
    }

    /// Takes note of what a run measured, and pauses it if that is of no use.
    pub(crate) fn take(&self, run: Run, trial: &TrialResult) {
        let mut now = self.now();
        if now.run != run {
            return;
        }
        if let Err(why) = now.record.take(trial) {
            return self.pause(&mut now, Some(why));
        }
        if let Err(error) = self.files.write(&now.record) {
            let job = &now.record.job;
            tracing::warn!(%job, "a restart of pfod will measure a clock of the sweep again: {error}");
        }
    }

    /// Pauses a run that cannot go on.
    pub(crate) fn give_up(&self, run: Run, why: String) {
        let mut now = self.now();
        if now.run == run {
            self.pause(&mut now, Some(why));
        }
    }

    /// Stores the profile of a run that has nothing left to measure.
    pub(crate) fn finish(&self, run: Run, node: &Node) {
        let mut now = self.now();
        let (true, Next::End(end)) = (now.run == run, now.record.next()) else { return };
        match now.record.store(&node.profiles) {
            Ok(()) => self.end(&mut now, end),
            Err(error) => self.pause(&mut now, Some(format!("cannot store the profile: {error}"))),
        }
    }

    fn pause(&self, now: &mut Now, why: Option<String>) {
        now.is_over_for_its_run();
        let (uid, job) = (now.record.uid, &now.record.job);
        tracing::info!(uid, %job, "paused the sweep: {}", why.as_deref().unwrap_or("asked to"));
        now.record.pause = Some(Pause { why: why.clone() });
        if let Err(error) = self.files.write(&now.record) {
            tracing::warn!(job = %now.record.job, "a restart of pfod will resume the sweep: {error}");
        }
        now.state = SweepState::Paused { why };
    }

    fn end(&self, now: &mut Now, end: SweepEnd) {
        now.is_over_for_its_run();
        tracing::info!(uid = now.record.uid, job = %now.record.job, "the sweep is over: {end:?}");
        self.files.remove(&now.record.key());
        now.state = SweepState::Ended(end);
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    /// Ends the task, which lets go of the job.
    fn is_over_for_its_run(&mut self) {
        self.run.0 += 1;
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

fn is_over(record: &SweepRecord) -> Refusal {
    Refusal::new(
        RefusalCode::UnknownJob,
        format!("the sweep of job {} is over", record.job),
        "`pfoctl profile list` shows the profiles that are stored",
    )
}

fn has_measured_nothing(record: &SweepRecord) -> Refusal {
    Refusal::new(
        RefusalCode::LimitReached,
        format!("the sweep of job {} has measured no clock yet", record.job),
        "try again later, or stop it",
    )
}
