//! The tunes of the node, in memory and on disk.

use std::sync::{Arc, Mutex, MutexGuard};

use pfo_experiment::{Progress, TuneError, Tuned};
use pfo_protocol::{
    JobSelector, Refusal, RefusalCode, TuneEnd, TuneOrder, TuneReport, TuneState, TuneStatus, Uid,
};
use pfo_service::{People, User, Whose, catch_in, lock};
use tokio::sync::watch;
use tokio::task::{AbortHandle, spawn_blocking};

use crate::authority::Permit;
use crate::experiments::{Experiment, Experiments};
use crate::front::Services;
use crate::job::JobKey;
use crate::refusal::{internal, not_written};
use crate::tune::answers::Answers;
use crate::tune::bench::{NodeBench, state_of};
use crate::tune::file::{Begun, Left, TuneFiles};

/// Remarks of one tune that are kept.
const MOST_REMARKS: usize = 100;

#[derive(Debug)]
pub(crate) struct Tunes {
    known: Experiments<Tune>,
    files: TuneFiles,
}

/// One tune.
#[derive(Debug)]
pub(crate) struct Tune {
    now: Mutex<Now>,
    /// Changes with the status.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Now {
    status: TuneStatus,
    report: Option<TuneReport>,
    task: Option<AbortHandle>,
}

/// What a tune is run with.
pub(super) struct Run {
    pub(super) begun: Begun,
    pub(super) permit: Permit,
    pub(super) order: pfo_experiment::TuneOrder,
    pub(super) answers: Answers,
}

impl Tunes {
    pub(crate) fn new(files: TuneFiles, people: Arc<People>) -> Self {
        Self { known: Experiments::new(people), files }
    }

    /// Continues the tunes of an earlier agent. To be called on a thread of the runtime.
    pub(crate) fn restore(&self, services: &Arc<Services>) {
        let mut known = self.known.lock();
        for left in self.files.read() {
            match left {
                Left::Over { status, report } => {
                    let key = JobKey { uid: status.uid, name: status.job.clone() };
                    known.insert(key, Tune::new(*status, report.map(|report| *report)));
                }
                Left::Unfinished { begun, order, answers } => {
                    let key = begun.key();
                    let Begun { by_uid: uid, by_person: person, by_pid, administrator, .. } = begun;
                    let permit = Permit::resumed(User { uid, person }, by_pid, administrator);
                    match order_of(&order) {
                        Ok(order) => {
                            let run = Run { begun, permit, order, answers };
                            known.insert(key, Tune::begin(services, run));
                        }
                        Err(why) => tracing::warn!("cannot continue the tune of {key}: {why}"),
                    }
                }
            }
        }
    }

    /// Begins a tune. To be called on a thread of the runtime.
    ///
    /// # Errors
    /// If the job has an unfinished one, its user has too many, or it cannot be kept on disk.
    pub(super) fn start(
        &self,
        services: &Arc<Services>,
        (key, permit): (&JobKey, Permit),
        (wire, order): (&TuneOrder, pfo_experiment::TuneOrder),
    ) -> Result<Arc<Tune>, Refusal> {
        let begin = || {
            let by = permit.user();
            let mut begun = Begun::new(key, by.uid, by.person, permit.pid());
            begun.administrator = permit.administers();
            let begin = self.files.begin(&begun, wire);
            let answers = begin.map_err(|error| not_written("the tune", &error))?;
            let permit = permit.in_background();
            Ok(Tune::begin(services, Run { begun, permit, order, answers }))
        };
        self.known.begin(key, begin, |forgotten| self.files.remove(forgotten))
    }

    /// The tune of the job that a request means.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub(super) fn select(
        &self,
        selector: &JobSelector,
        permit: &Permit,
    ) -> Result<Arc<Tune>, Refusal> {
        self.known.select(selector, permit)
    }

    /// Ends a tune. To be called where files may be written.
    ///
    /// # Errors
    /// If it is over.
    pub(super) fn stop(&self, tune: &Tune) -> Result<TuneStatus, Refusal> {
        let mut now = tune.now();
        if let TuneState::Ended(_) = now.status.state {
            return Err(Refusal::new(
                RefusalCode::UnknownJob,
                format!("the tune of job {} is over", now.status.job),
                "`pfoctl tune JOB --attach` shows what it found",
            ));
        }
        if let Some(task) = now.task.take() {
            task.abort();
        }
        self.files.remove(&now.key());
        tune.enter(&mut now, TuneState::Ended(TuneEnd::Stopped));
        Ok(now.status.clone())
    }

    /// Every tune, or those of one user's jobs.
    pub(crate) fn statuses(&self, uid: Option<Uid>) -> Vec<TuneStatus> {
        self.known.of(uid).iter().map(|tune| tune.status()).collect()
    }

    /// The files of tunes.
    pub(super) fn files(&self) -> &TuneFiles {
        &self.files
    }
}

impl Experiment for Tune {
    const PLURAL: &'static str = "tunes";
    const DONE: &'static str = "tuned";
    const REMEDY: &'static str = "`pfoctl tune` begins that";
    const STOP: &'static str = "pfoctl tune JOB --stop";

    fn is_over(&self) -> bool {
        matches!(self.now().status.state, TuneState::Ended(_))
    }

    fn unfinished(key: &JobKey) -> Refusal {
        Refusal::new(
            RefusalCode::LimitReached,
            format!("job {} is being tuned", key.name),
            "`pfoctl tune JOB --attach` shows how far that is, `pfoctl tune JOB --stop` ends it",
        )
    }
}

/// The order with its terms.
///
/// # Errors
/// In words, if the terms are none.
pub(super) fn order_of(order: &TuneOrder) -> Result<pfo_experiment::TuneOrder, String> {
    let TuneOrder { terms, profile, order, .. } = order.clone();
    let terms = pfo_experiment::Terms::from_json(&terms)?;
    Ok(pfo_experiment::TuneOrder { terms, profile, order })
}

impl Tune {
    fn new(status: TuneStatus, report: Option<TuneReport>) -> Arc<Self> {
        let now = Mutex::new(Now { status, report, task: None });
        Arc::new(Self { now, changes: watch::channel(0).0 })
    }

    /// To be called on a thread of the runtime.
    fn begin(services: &Arc<Services>, run: Run) -> Arc<Self> {
        let tune = Self::new(status_of(&run.begun), None);
        let task = tokio::spawn(Arc::clone(&tune).run(Arc::clone(services), run)).abort_handle();
        tune.now().task = Some(task);
        tune
    }

    async fn run(self: Arc<Self>, services: Arc<Services>, run: Run) {
        let Run { begun, permit, order, answers } = run;
        let (key, uid, pid) = (begun.key(), permit.uid(), permit.pid());
        let tune = Some(Arc::clone(&self));
        let mut bench = NodeBench::new(Arc::clone(&services), permit, answers, tune);
        let tuning = pfo_experiment::tune(&mut bench, key.selector(), &order);
        let tuned = catch_in(&Whose::of(uid, pid), tuning).await;
        let tuned = tuned.unwrap_or_else(|panicked| Err(TuneError::Refused(panicked.into())));
        // The job is no longer held.
        drop(bench);
        let _ = spawn_blocking(move || self.end(&services.tunes, &key, tuned)).await;
    }

    fn end(&self, tunes: &Tunes, key: &JobKey, tuned: Result<Tuned, TuneError>) {
        let ended =
            tuned.map_err(Refusal::from).and_then(|tuned| Ok((end_of(&tuned), report_of(&tuned)?)));
        let (end, report) = match ended {
            Ok((end, report)) => (end, Some(report)),
            Err(refusal) => (TuneEnd::Failed(refusal), None),
        };
        let mut now = self.now();
        if let TuneState::Ended(_) = now.status.state {
            return;
        }
        tracing::info!(uid = key.uid.0, job = %key.name, "the tune of {key} is over: {}", in_words(&end));
        now.report = report;
        (now.status.done, now.status.remaining_s) = (1.0, None);
        self.enter(&mut now, TuneState::Ended(end));
        tunes.files.end(key, &now.status, now.report.as_ref());
    }

    pub(super) fn status(&self) -> TuneStatus {
        self.now().status.clone()
    }

    pub(super) fn report(&self) -> Option<TuneReport> {
        self.now().report.clone()
    }

    /// Waits until the status is another one than this.
    pub(super) async fn after(&self, seen: u64) -> TuneStatus {
        let mut changes = self.changes.subscribe();
        loop {
            let status = self.status();
            if status.changed != seen {
                return status;
            }
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    /// Takes note of how far it is. Nobody hears of what an earlier agent had shown.
    pub(super) fn show(&self, progress: Progress, is_new: bool) {
        let Progress { phase, now: words, done, remaining_s, saving } = progress;
        let mut now = self.now();
        if let TuneState::Ended(_) = now.status.state {
            return;
        }
        now.status.now = words;
        (now.status.done, now.status.remaining_s, now.status.saving) = (done, remaining_s, saving);
        now.status.state = state_of(phase);
        if is_new {
            self.tell(&mut now);
        }
    }

    /// From here on, it shows what is new.
    pub(super) fn live(&self) {
        self.tell(&mut self.now());
    }

    pub(super) fn remark(&self, line: String) {
        let mut now = self.now();
        if now.status.remarks.len() < MOST_REMARKS {
            now.status.remarks.push(line);
            self.tell(&mut now);
        }
    }

    fn enter(&self, now: &mut Now, state: TuneState) {
        now.status.state = state;
        self.tell(now);
    }

    pub(super) fn key(&self) -> JobKey {
        self.now().key()
    }

    fn tell(&self, now: &mut Now) {
        now.status.changed = now.status.changed.wrapping_add(1);
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        lock(&self.now)
    }
}

impl Now {
    fn key(&self) -> JobKey {
        JobKey { uid: self.status.uid, name: self.status.job.clone() }
    }
}

fn status_of(begun: &Begun) -> TuneStatus {
    let JobKey { uid, name: job } = begun.key();
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // After a restart of the agent, no client has seen this number.
    let changed = since_1970.map_or(1, |since| since.as_secs().saturating_mul(1_000_000));
    let now = "looking at the job".to_owned();
    let (state, remarks) = (TuneState::Profile, Vec::new());
    TuneStatus {
        job,
        uid,
        changed,
        state,
        now,
        done: 0.0,
        remaining_s: None,
        saving: None,
        remarks,
    }
}

fn end_of(tuned: &Tuned) -> TuneEnd {
    match tuned.report.kept {
        Some(_) if tuned.report.is_certain() => TuneEnd::Kept,
        Some(_) => TuneEnd::KeptUncertain,
        None => TuneEnd::NothingKept,
    }
}

fn report_of(tuned: &Tuned) -> Result<TuneReport, Refusal> {
    let report = serde_json::to_vec(&tuned.report).map_err(|error| internal(&error))?;
    let plan = tuned.plan.as_ref().map(pfo_planner::Plan::to_json).transpose();
    let plan = plan.map_err(|error| internal(&error))?.map(String::into_bytes);
    // An answer has to fit into a frame, and a page can be made without the frontier.
    let others = report.len().saturating_add(plan.as_ref().map_or(0, Vec::len));
    let room = pfo_protocol::LARGEST_PAYLOAD.saturating_sub(others.saturating_add(4096));
    let frontier = tuned.frontier.clone().filter(|frontier| frontier.len() <= room);
    Ok(TuneReport { report, plan, frontier })
}

fn in_words(end: &TuneEnd) -> String {
    match end {
        TuneEnd::Kept => "it runs a plan that saves energy".to_owned(),
        TuneEnd::KeptUncertain => {
            "it runs a plan that most likely is within the allowed slowdown".to_owned()
        }
        TuneEnd::NothingKept => "no plan was kept".to_owned(),
        TuneEnd::Stopped => "stopped on request".to_owned(),
        TuneEnd::Failed(refusal) => refusal.message.clone(),
    }
}
