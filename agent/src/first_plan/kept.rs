//! Which plans are kept for which jobs, in memory and on disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use pfo_protocol::{
    ClockTable, FirstPlan, FirstPlanState, JobSelector, JobView, Refusal, RefusalCode, Request,
    Response, SwapTarget, Swapped, Uid,
};
use pfo_service::{People, blocking, lock, unix_s};
use tokio::sync::{Notify, Semaphore};

use crate::authority::Permit;
use crate::first_plan::file::{FirstPlanFiles, FirstPlanRecord};
use crate::first_plan::turns::Turns;
use crate::job::JobKey;
use crate::pfod::{Asker, PfodError, Questions, unexpected};
use crate::refusal::not_written;
use crate::steer::Steering;
use crate::straggler::Labelled;

/// Plans that are kept for the jobs of one person, half of the jobs without ranks that `pfod` remembers
/// of one, and for all.
const PER_PERSON: usize = 16;
const ALL: usize = 512;

/// Instructions in the plans that are kept for the jobs of one person, half of what `pfod` keeps of one,
/// and for all.
const UNITS_PER_PERSON: usize = 200_000;
const UNITS: usize = 1_000_000;

/// Plan files that are parsed at a time.
const PARSED_AT_ONCE: usize = 2;

/// What first plans are kept and handed over with.
#[derive(Debug)]
pub(crate) struct FirstPlanMeans {
    pub(crate) steering: Arc<Steering>,
    pub(crate) questions: Questions,
    pub(crate) people: Arc<People>,
    pub(crate) files: FirstPlanFiles,
}

/// Every first plan.
#[derive(Debug)]
pub(crate) struct FirstPlans {
    pub(super) means: FirstPlanMeans,
    kept: Mutex<BTreeMap<JobKey, Kept>>,
    /// Taken to give `pfod` a plan: what several ranks bring is given once, and a plan that is being
    /// dropped is not given again.
    pub(super) turns: Turns,
    /// What is being parsed takes memory that is not counted.
    pub(super) parsing: Semaphore,
    /// A job has changed.
    pub(super) changed: Notify,
}

/// A plan that is kept, without its clocks.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) label: String,
    pub(super) stages: u32,
    num_microbatches: u32,
    units: usize,
    loaded_unix_s: u64,
    pub(super) state: FirstPlanState,
    /// Since when its job has not been on this node, as far as this agent has seen.
    pub(super) absent_since: Option<Instant>,
    /// When `pfod` was last known to have it.
    pub(super) handed_over: Option<Instant>,
    pub(super) whole: Whole,
}

/// Whether all nodes of a job are to be asked to run its plan, since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// Not asked yet.
    ToAsk,
    /// An earlier agent kept the plan, and may have asked; they may have been swapped to another one since.
    MayBeAsked,
    /// They were asked; or they are not to be, because the job was there when the plan was loaded.
    Settled,
}

impl Kept {
    fn of(record: &FirstPlanRecord) -> Self {
        let Labelled { label, table } = &record.plan;
        Self {
            label: label.clone(),
            stages: table.stages().len() as u32,
            num_microbatches: table.num_microbatches(),
            units: table.num_units(),
            loaded_unix_s: record.loaded_unix_s,
            state: FirstPlanState::Unready,
            absent_since: None,
            handed_over: None,
            whole: Whole::ToAsk,
        }
    }

    fn status(&self, key: &JobKey) -> FirstPlan {
        FirstPlan {
            job: key.name.clone(),
            uid: key.uid,
            label: self.label.clone(),
            stages: self.stages,
            num_microbatches: self.num_microbatches,
            loaded_unix_s: self.loaded_unix_s,
            state: self.state.clone(),
        }
    }
}

impl FirstPlans {
    pub(crate) fn new(means: FirstPlanMeans) -> Self {
        let (turns, parsing) =
            (Turns::of(Arc::clone(&means.people)), Semaphore::new(PARSED_AT_ONCE));
        Self { means, kept: Mutex::default(), turns, parsing, changed: Notify::new() }
    }

    /// Continues with the plans of an earlier agent. Reads and parses files.
    pub(crate) fn restore(&self) {
        for record in self.means.files.read_all() {
            let kept = Kept { whole: Whole::MayBeAsked, ..Kept::of(&record) };
            self.kept().insert(record.key(), kept);
        }
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, BTreeMap<JobKey, Kept>> {
        lock(&self.kept)
    }

    /// The plans of one user or of all, by owner and job.
    pub(crate) fn statuses(&self, only_of: Option<Uid>) -> BTreeMap<JobKey, FirstPlan> {
        let kept = self.kept();
        let seen = kept.iter().filter(|(key, _)| only_of.is_none_or(|uid| uid == key.uid));
        seen.map(|(key, kept)| (key.clone(), kept.status(key))).collect()
    }

    /// Keeps a plan for a job, and gives it to `pfod` unless the job is on this node.
    ///
    /// # Errors
    /// If it has no room, cannot be written, or `pfod` refuses it.
    pub(crate) async fn load(
        &self,
        permit: &Permit,
        selector: JobSelector,
        label: String,
        table: ClockTable,
    ) -> Result<FirstPlan, Refusal> {
        let running = self.running().await?;
        let jobs = || running.iter().flatten();
        let key = permit.select_key(selector, jobs().map(JobKey::of))?;
        let _turn = self.turns.take(key.uid).await;
        self.check_room(&key, table.num_units())?;
        let job = jobs().find(|job| JobKey::of(job) == key);
        if let Some(job) = job {
            check_stages(job, &table)?;
        }
        let plan = Labelled { label, table };
        let is_there = running.as_ref().map(|_| job.is_some());
        let (state, handed_over) = self.place(permit.asker(), (&key, is_there), &plan).await?;
        let (uid, job) = (key.uid, key.name.clone());
        let record = FirstPlanRecord { uid, job, loaded_unix_s: unix_s(SystemTime::now()), plan };
        let mut kept = Kept { state, handed_over, ..Kept::of(&record) };
        if kept.state == FirstPlanState::NextRun {
            kept.whole = Whole::Settled;
        }
        if let Err(error) = self.written(record).await {
            self.take_back(permit.asker(), &key).await;
            return Err(not_written("the plan", &error));
        }
        let status = kept.status(&key);
        self.kept().insert(key.clone(), kept);
        let user = permit.user();
        tracing::info!(
            uid = user.uid.0, owner_uid = user.person.0, pid = permit.pid().0, job = %key.name,
            "{user} loaded plan {} for {key}, which begins with it", status.label
        );
        Ok(status)
    }

    /// Where a plan stands that was just loaded. `pfod` is given it if the job is not on this node, which is
    /// not known if `pfod` did not answer.
    async fn place(
        &self,
        asker: Asker,
        (key, is_there): (&JobKey, Option<bool>),
        plan: &Labelled,
    ) -> Result<(FirstPlanState, Option<Instant>), Refusal> {
        match is_there {
            Some(true) => return Ok((FirstPlanState::NextRun, None)),
            Some(false) if !self.spans_nodes(plan).await => {}
            _ => return Ok((FirstPlanState::Unready, None)),
        }
        match self.hand_over(asker, key, plan).await {
            Ok(_) => Ok((FirstPlanState::Ready, Some(Instant::now()))),
            Err(PfodError::Away(_)) => Ok((FirstPlanState::Unready, None)),
            Err(PfodError::Refused(refusal)) => Err(refusal),
        }
    }

    /// The jobs that have ranks on this node, if `pfod` answers.
    async fn running(&self) -> Result<Option<Vec<JobView>>, Refusal> {
        match self.means.questions.jobs().await {
            Ok(jobs) => Ok(Some(jobs.into_iter().filter(|job| !job.ranks.is_empty()).collect())),
            Err(PfodError::Away(_)) => Ok(None),
            Err(PfodError::Refused(refusal)) => Err(refusal),
        }
    }

    async fn written(&self, record: FirstPlanRecord) -> std::io::Result<()> {
        let files = self.means.files.clone();
        let written = blocking(move || files.write(record)).await;
        written.unwrap_or_else(|panicked| Err(std::io::Error::other(panicked.to_string())))
    }

    /// Keeps no plan for a job any more.
    ///
    /// # Errors
    /// If none is kept, or its file cannot be removed.
    pub(crate) async fn drop_plan(
        &self,
        permit: &Permit,
        selector: JobSelector,
    ) -> Result<FirstPlan, Refusal> {
        let known: Vec<_> = self.kept().keys().cloned().collect();
        let key = permit.select_key(selector, known)?;
        let _turn = self.turns.take(key.uid).await;
        let Some(kept) = self.kept().get(&key).cloned() else {
            let message = format!("no plan is kept for {key}");
            let remedy = "`pfoctl plan list` shows those that are";
            return Err(Refusal::new(RefusalCode::NoPlan, message, remedy));
        };
        let (files, removed) = (self.means.files.clone(), key.clone());
        let removed = blocking(move || files.remove(&removed)).await?;
        if let Err(error) = removed.or_else(gone) {
            return Err(not_written("that the plan is dropped", &error));
        }
        self.kept().remove(&key);
        if kept.handed_over.is_some() {
            self.take_back(permit.asker(), &key).await;
        }
        let user = permit.user();
        tracing::info!(
            uid = user.uid.0, owner_uid = user.person.0, pid = permit.pid().0, job = %key.name,
            "{user} dropped plan {}, which was kept for {key}", kept.label
        );
        Ok(kept.status(&key))
    }

    /// Has `pfod` begin a job with a plan, unless a rank of it has begun its first step.
    ///
    /// # Errors
    /// If `pfod` refuses it or does not answer.
    pub(super) async fn hand_over(
        &self,
        asker: Asker,
        key: &JobKey,
        Labelled { label, table }: &Labelled,
    ) -> Result<Swapped, PfodError> {
        let target = SwapTarget::Table { label: label.clone(), table: table.clone() };
        self.swap(asker, key, target).await
    }

    /// Has a job that is not there begin at default clocks. If it is there by now, it runs on.
    async fn take_back(&self, asker: Asker, key: &JobKey) {
        if let Err(why) = self.swap(asker, key, SwapTarget::DefaultClocks).await {
            tracing::info!(uid = key.uid.0, job = %key.name, "{key} keeps its plan: {why}");
        }
    }

    async fn swap(
        &self,
        asker: Asker,
        key: &JobKey,
        target: SwapTarget,
    ) -> Result<Swapped, PfodError> {
        let (job, at_step) = (key.selector(), Some(0));
        let request = Request::PlanSwap { job, target, at_step, after: None, wait: false };
        match self.means.steering.pfod.on_behalf(asker).await?.ask(request).await? {
            Response::Swapped(swapped) => Ok(swapped),
            other => Err(unexpected(&other)),
        }
    }

    fn check_room(&self, key: &JobKey, units: usize) -> Result<(), Refusal> {
        let kept = self.kept();
        let others = || kept.iter().filter(|(other, _)| *other != key);
        let own = || others().filter(|(other, _)| self.means.people.are_one(key.uid, other.uid));
        let sum = |plans: &mut dyn Iterator<Item = (&JobKey, &Kept)>| {
            plans.fold(units, |sum, (_, kept)| sum.saturating_add(kept.units))
        };
        let (plans, all) = (own().count(), others().count());
        let wrong = if plans >= PER_PERSON {
            format!("{plans} plans are kept for jobs of user {} already", key.uid)
        } else if sum(&mut own()) > UNITS_PER_PERSON {
            format!(
                "the plans that are kept for one user have at most {UNITS_PER_PERSON} instructions"
            )
        } else if all >= ALL || sum(&mut others()) > UNITS {
            format!("{all} plans are kept on this node, and there is no room for another")
        } else {
            return Ok(());
        };
        let remedy = "drop one of those that `pfoctl plan list` shows with `pfoctl plan drop`";
        Err(Refusal::new(RefusalCode::LimitReached, wrong, remedy))
    }
}

/// # Errors
/// If a plan is for another number of stages than a job has that runs.
fn check_stages(job: &JobView, table: &ClockTable) -> Result<(), Refusal> {
    let (plan, stages) = (table.stages().len(), job.pp_degree);
    if plan == stages as usize {
        return Ok(());
    }
    let key = JobKey::of(job);
    let message = format!("the plan has {plan} stages, and {key}, which runs, has {stages}");
    let remedy = "load it when that job has ended, or under the name of the job that it is for";
    Err(Refusal::new(RefusalCode::PlanDoesNotFit, message, remedy))
}

fn gone(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
pub(super) mod tests {
    use pfo_protocol::{Instruction, Mhz, PlannedUnit, Unit};

    use super::*;

    pub(in super::super) fn key(uid: u32, name: &str) -> JobKey {
        JobKey { uid: Uid(uid), name: name.parse().unwrap() }
    }

    /// A plan of one instruction in each stage.
    pub(in super::super) fn labelled(stages: usize, mhz: u32) -> Labelled {
        let unit = Unit::new(Instruction::Forward, 0);
        let planned = PlannedUnit { unit, mhz: Mhz(mhz), wait_mhz: None };
        let table = ClockTable::new(1, None, vec![vec![planned]; stages]).unwrap();
        Labelled { label: "p".into(), table }
    }

    /// First plans in a directory, on a node without a `pfod`.
    pub(in super::super) fn first_plans(directory: &std::path::Path) -> FirstPlans {
        let subuid = directory.join("subuid");
        std::fs::write(&subuid, "7:100000:65536\n").unwrap();
        let people = People::in_file(&subuid);
        people.read();
        let steering = Steering::of_no_pfod(directory);
        FirstPlans::new(FirstPlanMeans {
            questions: Questions::to(steering.pfod.clone()),
            steering,
            people: Arc::new(people),
            files: FirstPlanFiles::under(directory),
        })
    }

    fn keep(plans: &FirstPlans, key: JobKey, stages: usize) {
        let (uid, job) = (key.uid, key.name.clone());
        let record = FirstPlanRecord { uid, job, loaded_unix_s: 1, plan: labelled(stages, 900) };
        plans.kept().insert(key, Kept::of(&record));
    }

    #[test]
    fn one_person_takes_no_room_from_another() {
        let directory = tempfile::tempdir().unwrap();
        let plans = first_plans(directory.path());
        for number in 0..PER_PERSON {
            let uid = if number % 2 == 0 { 7 } else { 100_003 };
            plans.check_room(&key(uid, &format!("j{number}")), 1).unwrap();
            keep(&plans, key(uid, &format!("j{number}")), 1);
        }
        let refusal = plans.check_room(&key(7, "next"), 1).unwrap_err();
        assert!(refusal.message.starts_with("16 plans are kept for jobs of user 7"), "{refusal}");
        plans.check_room(&key(7, "j0"), UNITS_PER_PERSON - (PER_PERSON - 1)).unwrap();
        let refusal = plans.check_room(&key(7, "j0"), UNITS_PER_PERSON).unwrap_err();
        assert!(refusal.message.contains("at most 200000 instructions"), "{refusal}");
        plans.check_room(&key(8, "j0"), UNITS_PER_PERSON).unwrap();
        for number in 0..ALL {
            keep(&plans, key(number as u32, "other"), 1);
        }
        let refusal = plans.check_room(&key(8_000_000, "j0"), 1).unwrap_err();
        assert!(refusal.message.contains("no room for another"), "{refusal}");
    }

    #[test]
    fn the_next_agent_keeps_the_same_plans() {
        let directory = tempfile::tempdir().unwrap();
        let record = FirstPlanRecord {
            uid: Uid(7),
            job: "j".parse().unwrap(),
            loaded_unix_s: 9,
            plan: labelled(3, 900),
        };
        FirstPlanFiles::under(directory.path()).write(record).unwrap();
        let plans = first_plans(directory.path());
        plans.restore();
        let [plan] =
            plans.statuses(Some(Uid(7))).into_values().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((plan.label.as_str(), plan.stages, plan.loaded_unix_s), ("p", 3, 9));
        assert_eq!(plan.state, FirstPlanState::Unready, "pfod has not said that it has it");
        assert!(plans.statuses(Some(Uid(8))).is_empty());
    }
}
