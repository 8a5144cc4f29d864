//! The sweeps of the node, from their begin over pauses to their end, in memory and on disk.

mod elsewhere;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use pfo_protocol::{
    JobSelector, ProfileKey, RecordedTrial, Refusal, RefusalCode, StoredProfile, SweepControl,
    SweepEnd, SweepState, SweepStatus, Uid,
};
use pfo_service::{People, lock};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::authority::Permit;
use crate::experiments::{Experiment, Experiments};
use crate::job::JobKey;
use crate::pfod::Questions;
use crate::profile::ProfileStore;
use crate::refusal::not_written;
use crate::steer::Steering;
use crate::sweep::file::SweepFiles;
use crate::sweep::record::{Next, Pause, SweepRecord};
use crate::sweep::runner;
use crate::sweep::shape::JobShape;

pub(super) use self::elsewhere::Progress;

/// What sweeps need to measure jobs and to keep what they measured.
#[derive(Debug)]
pub(crate) struct Means {
    pub(crate) questions: Arc<Questions>,
    pub(crate) profiles: Arc<ProfileStore>,
    pub(crate) steering: Arc<Steering>,
    pub(crate) files: SweepFiles,
    pub(crate) people: Arc<People>,
}

#[derive(Debug)]
pub(crate) struct Sweeps {
    known: Experiments<Sweep>,
    means: Arc<Means>,
}

/// One sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    now: Mutex<Now>,
    restored: bool,
    /// Changes with the state.
    changes: watch::Sender<u64>,
    means: Arc<Means>,
}

#[derive(Debug)]
struct Now {
    record: SweepRecord,
    /// Counts its changes.
    changed: u64,
    state: SweepState,
    run: Run,
    task: Option<AbortHandle>,
    /// The attendants, without whom it is paused; none if it goes on by itself.
    attendants: BTreeSet<Attendant>,
}

/// One run of a sweep, from its begin or a pause to the next pause or its end. What a former run
/// does does not count any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run(u64);

impl Run {
    fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A client that waits for a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attendant(u64);

static ATTENDANTS: AtomicU64 = AtomicU64::new(0);

impl Sweeps {
    pub(crate) fn new(means: Means) -> Self {
        Self { known: Experiments::new(Arc::clone(&means.people)), means: Arc::new(means) }
    }

    /// Continues the sweeps of an earlier agent. To be called on the runtime, or on a thread of it.
    pub(crate) fn restore(&self) {
        let mut known = self.known.lock();
        for mut record in self.means.files.read() {
            let key = record.key();
            if record.attended && record.pause.is_none() {
                let why =
                    "pfo-agent was restarted, and nobody waits for the sweep any more; resume it";
                let why = why.to_owned();
                record.pause = Some(Pause::because(why));
            }
            known.insert(key, Sweep::go_on(record, &self.means, true));
        }
    }

    /// Begins a sweep. To be called on the runtime, or on a thread of it.
    ///
    /// # Errors
    /// If the job has an unfinished one, its user has too many, or it cannot be kept on disk.
    pub(crate) fn start(&self, record: SweepRecord) -> Result<Arc<Sweep>, Refusal> {
        let key = record.key();
        let begin = || {
            self.means.files.write(&record).map_err(|error| not_written("the sweep", &error))?;
            let sweep = Sweep::new(record, &self.means, false);
            sweep.set_off();
            Ok(sweep)
        };
        // What is over has no file.
        self.known.begin(&key, begin, |_| {})
    }

    /// Ends a sweep that nobody waits for and that was begun for a tune of the job in another shape.
    ///
    /// # Errors
    /// If that sweep goes on by itself, or somebody waits for it.
    pub(crate) fn end_of_another_shape(
        &self,
        key: &JobKey,
        shape: &JobShape,
    ) -> Result<(), Refusal> {
        let Some(sweep) = self.known.lock().get(key).cloned() else { return Ok(()) };
        let Err(misfit) = sweep.check_shape(shape) else { return Ok(()) };
        let mut now = sweep.now();
        if now.record.attended && now.attendants.is_empty() {
            sweep.end(&mut now, SweepEnd::Stopped);
            return Ok(());
        }
        Err(misfit)
    }

    /// The sweep of the job that a request means.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub(crate) fn select(
        &self,
        selector: &JobSelector,
        permit: &Permit,
    ) -> Result<Arc<Sweep>, Refusal> {
        self.known.select(selector, permit)
    }

    /// The stored profile of this, if there is one.
    pub(crate) fn stored(&self, key: &ProfileKey) -> Option<StoredProfile> {
        self.means.profiles.find(key)
    }

    /// Every sweep, or those of one user's jobs.
    pub(crate) fn statuses(&self, uid: Option<Uid>) -> Vec<SweepStatus> {
        self.known.of(uid).iter().map(|sweep| sweep.status()).collect()
    }
}

impl Experiment for Sweep {
    const PLURAL: &'static str = "sweeps";
    const DONE: &'static str = "swept";
    const REMEDY: &'static str =
        "`pfoctl profile status` lists the sweeps, `pfoctl profile start` begins one";
    const STOP: &'static str = "pfoctl profile stop JOB";

    fn is_over(&self) -> bool {
        matches!(self.now().state, SweepState::Ended(_))
    }

    fn unfinished(key: &JobKey) -> Refusal {
        Refusal::new(
            RefusalCode::LimitReached,
            format!("job {} has a sweep that is not over", key.name),
            "`pfoctl profile status` shows how far it is; resume it, or stop it first",
        )
    }
}

impl Sweep {
    /// One that was begun before, or on another node.
    fn go_on(record: SweepRecord, means: &Arc<Means>, restored: bool) -> Arc<Self> {
        let sweep = Self::new(record, means, restored);
        if sweep.now().record.pause.is_none() {
            sweep.set_off();
        }
        sweep
    }

    fn new(record: SweepRecord, means: &Arc<Means>, restored: bool) -> Arc<Self> {
        let state = match &record.pause {
            Some(Pause { why, .. }) => SweepState::Paused { why: why.clone() },
            None => SweepState::Running,
        };
        let (changed, run) = (0, Run::default());
        let now = Now { record, changed, state, run, task: None, attendants: BTreeSet::new() };
        let (changes, _) = watch::channel(0);
        Arc::new(Self { now: Mutex::new(now), restored, changes, means: Arc::clone(means) })
    }

    pub(crate) fn status(&self) -> SweepStatus {
        let now = self.now();
        now.record.status(now.state.clone())
    }

    /// What it needs to measure.
    pub(super) fn means(&self) -> &Means {
        &self.means
    }

    /// Waits until it is over or paused.
    pub(crate) async fn rest(&self) -> SweepStatus {
        let mut changes = self.changes.subscribe();
        loop {
            {
                let now = self.now();
                if matches!(now.state, SweepState::Ended(_) | SweepState::Paused { .. }) {
                    return now.record.status(now.state.clone());
                }
            }
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    /// Whether it can go on with the job in this shape.
    ///
    /// # Errors
    /// If the job is divided into stages, replicas or microbatches otherwise.
    pub(super) fn check_shape(&self, shape: &JobShape) -> Result<(), Refusal> {
        let now = self.now();
        let is_over = matches!(now.state, SweepState::Ended(_));
        if is_over || now.record.shape.is_divided_as(shape) {
            return Ok(());
        }
        let name = &now.record.job;
        let (runs, then) = (shape.partition(), now.record.shape.partition());
        let message =
            format!("job {name} runs as {runs} now, and has an unfinished sweep as {then}");
        let remedy = format!("`pfoctl profile stop {name}` ends that sweep");
        Err(Refusal::new(RefusalCode::LimitReached, message, remedy))
    }

    /// Pauses, resumes or ends it. To be called on the runtime, or on a thread of it.
    ///
    /// # Errors
    /// If it is over, has nothing to store, or its state cannot be kept on disk.
    pub(crate) fn control(self: &Arc<Self>, control: SweepControl) -> Result<SweepStatus, Refusal> {
        let mut now = self.now();
        match (&now.state, control) {
            (SweepState::Ended(_), _) => return Err(over(&now.record)),
            (SweepState::Paused { .. }, SweepControl::Pause)
            | (SweepState::Running | SweepState::Waiting { .. }, SweepControl::Resume) => {}
            (_, SweepControl::Pause) => self.pause(&mut now, Pause::default()),
            (_, SweepControl::Resume) => {
                self.resume(now, None)?;
                return Ok(self.status());
            }
            (_, SweepControl::Stop) => self.end(&mut now, SweepEnd::Stopped),
            (_, SweepControl::Finish) if !now.record.has_measured() => {
                return Err(nothing_measured(&now.record));
            }
            (_, SweepControl::Finish) => {
                now.record
                    .store(&self.means.profiles)
                    .map_err(|error| not_written("the profile", &error))?;
                self.end(&mut now, SweepEnd::Finished);
            }
        }
        Ok(now.record.status(now.state.clone()))
    }

    /// Continues it until its last attendant leaves. To be called on the runtime, or on a thread of it.
    ///
    /// # Errors
    /// If it is over, or its state cannot be kept on disk.
    pub(crate) fn attend(self: &Arc<Self>) -> Result<Attendant, Refusal> {
        let now = self.now();
        if matches!(now.state, SweepState::Ended(_)) {
            return Err(over(&now.record));
        }
        let attendant = Attendant(ATTENDANTS.fetch_add(1, Relaxed));
        self.resume(now, Some(attendant))?;
        Ok(attendant)
    }

    /// Pauses it if this is the last attendant that it continues for.
    pub(crate) fn leave(&self, attendant: Attendant) {
        let mut now = self.now();
        let continues = matches!(now.state, SweepState::Running | SweepState::Waiting { .. });
        if now.attendants.remove(&attendant) && now.attendants.is_empty() && continues {
            let why =
                "nobody waits for it any more; `pfoctl tune` again, or `pfoctl profile resume`";
            self.pause(&mut now, Pause::because(why.to_owned()));
        }
    }

    /// Continues, if it does not yet.
    fn resume(
        self: &Arc<Self>,
        mut now: MutexGuard<'_, Now>,
        attendant: Option<Attendant>,
    ) -> Result<(), Refusal> {
        let mut record = now.record.clone();
        record.pause = None;
        record.attended = attendant.is_some();
        self.means.files.write(&record).map_err(|error| not_written("the sweep", &error))?;
        now.record = record;
        now.changed = now.changed.wrapping_add(1);
        match attendant {
            Some(attendant) => {
                now.attendants.insert(attendant);
            }
            None => now.attendants.clear(),
        }
        if matches!(now.state, SweepState::Paused { .. }) {
            self.enter(&mut now, SweepState::Running);
            drop(now);
            self.set_off();
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
            return Err(over(&now.record));
        }
        if !now.record.has_measured() {
            return Err(nothing_measured(&now.record));
        }
        Ok((now.record.status(now.state.clone()), now.record.csv()))
    }

    /// Begins a run.
    fn set_off(self: &Arc<Self>) {
        let mut now = self.now();
        now.run = now.run.next();
        let sweep = runner::run(Arc::clone(self), now.run);
        now.task = Some(tokio::spawn(sweep).abort_handle());
    }

    /// The record from which a run finds what to measure next; none if the run is over.
    pub(crate) fn record(&self, run: Run) -> Option<SweepRecord> {
        let now = self.now();
        (now.run == run).then(|| now.record.clone())
    }

    /// Sets the state, for a run that is not over.
    pub(crate) fn report(&self, run: Run, state: SweepState) {
        let mut now = self.now();
        if now.run == run && now.state != state {
            self.enter(&mut now, state);
        }
    }

    fn enter(&self, now: &mut Now, state: SweepState) {
        now.state = state;
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Adds what a run measured, and pauses the sweep if that is of no use.
    pub(crate) fn take(&self, run: Run, trial: &RecordedTrial) {
        let mut now = self.now();
        if now.run != run {
            return;
        }
        if let Err(why) = now.record.take(trial) {
            return self.pause(&mut now, Pause::because(why));
        }
        now.changed = now.changed.wrapping_add(1);
        if let Err(error) = self.means.files.write(&now.record) {
            let key = now.record.key();
            tracing::warn!(
                uid = key.uid.0, job = %key.name,
                "a restart will measure a clock of {key} again: cannot write the sweep: {error}"
            );
        }
    }

    /// Pauses the sweep of a run that cannot continue.
    pub(crate) fn give_up(&self, run: Run, pause: Pause) {
        let mut now = self.now();
        if now.run == run {
            self.pause(&mut now, pause);
        }
    }

    /// Stores the profile of a run that has nothing left to measure.
    pub(crate) fn finish(&self, run: Run) {
        let mut now = self.now();
        let (true, Next::End(end)) = (now.run == run, now.record.next()) else { return };
        match now.record.store(&self.means.profiles) {
            Ok(()) => self.end(&mut now, end),
            Err(error) => {
                let why = format!("cannot store the profile: {error}");
                self.pause(&mut now, Pause::because(why));
            }
        }
    }

    fn pause(&self, now: &mut Now, pause: Pause) {
        let why = pause.why.clone();
        now.end_run();
        let key = now.record.key();
        tracing::info!(
            uid = key.uid.0, job = %key.name,
            "paused the sweep of {key}: {}", why.as_deref().unwrap_or("on request")
        );
        now.record.pause = Some(pause);
        now.changed = now.changed.wrapping_add(1);
        if let Err(error) = self.means.files.write(&now.record) {
            tracing::warn!(
                uid = key.uid.0, job = %key.name,
                "a restart of the agent will resume the sweep of {key}: cannot write it: {error}"
            );
        }
        self.enter(now, SweepState::Paused { why });
    }

    fn end(&self, now: &mut Now, end: SweepEnd) {
        now.end_run();
        let key = now.record.key();
        let (uid, end_words) = (key.uid.0, in_words(end));
        tracing::info!(uid, job = %key.name, "the sweep of {key} is over: {end_words}");
        self.means.files.remove(&key);
        self.enter(now, SweepState::Ended(end));
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        lock(&self.now)
    }
}

impl Now {
    /// Ends the task, which ends its hold of the job.
    fn end_run(&mut self) {
        self.run = self.run.next();
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

fn in_words(end: SweepEnd) -> &'static str {
    match end {
        SweepEnd::EnergyRises => "lower clocks take more energy; the profile is stored",
        SweepEnd::LowestClock => "the lowest clock is measured; the profile is stored",
        SweepEnd::TooSlow => "the job became slower than it may; the profile is stored",
        SweepEnd::Stopped => "stopped on request; nothing is stored",
        SweepEnd::Finished => "finished on request; the profile is stored",
    }
}

fn over(record: &SweepRecord) -> Refusal {
    Refusal::new(
        RefusalCode::UnknownJob,
        format!("the sweep of job {} is over", record.job),
        "`pfoctl profile list` shows the profiles that are stored",
    )
}

fn nothing_measured(record: &SweepRecord) -> Refusal {
    Refusal::new(
        RefusalCode::LimitReached,
        format!("the sweep of job {} has measured no clock yet", record.job),
        "try again later, or stop it",
    )
}
