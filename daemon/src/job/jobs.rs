//! The jobs of this node, found by owner and name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pfo_policy::Permit;
use pfo_protocol::{JobName, JobSelector, Refusal, RefusalCode, SwapTarget, Uid};
use pfo_service::{Door, LIVED, People, Whose, catch, lock, panic_in_tests};

use super::file::JobFiles;
use super::record::JobRecord;
use super::{Changes, Job, JobKey};
use crate::host::journal;
use crate::lease::Session;

/// How long a job without ranks keeps its plan since a request named it last, for trainers that
/// reconnect or restart.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);

/// Jobs without ranks that one person may leave behind.
const EMPTY_PER_PERSON: usize = 32;

/// Jobs without ranks up to which the agent may leave more of them, for all users that it names.
const EMPTY: usize = 256;

/// Instructions in all plans that the jobs of one person keep, and in those that all keep. One takes
/// 24 bytes, and up to 52 more in the record of its job: memory of the unit, too, because it is
/// below /run. So all plans take half of `MemoryMax` at most.
const PLANNED_PER_PERSON: usize = 400_000;
const PLANNED: usize = 1_700_000;

/// All jobs.
#[derive(Debug)]
pub(crate) struct Jobs {
    known: Mutex<BTreeMap<JobKey, Arc<Job>>>,
    files: Mutex<JobFiles>,
    people: Arc<People>,
    changes: Changes,
}

impl Jobs {
    /// No jobs yet; the given files record what they run.
    pub(crate) fn new(files: JobFiles, people: Arc<People>) -> Self {
        let (known, files, changes) = (Mutex::default(), Mutex::new(files), Changes::default());
        Self { known, files, people, changes }
    }

    /// Restores what the jobs of an earlier daemon ran, before the threads of `sessions` begin.
    pub(crate) fn restore(&self, sessions: &[Arc<Session>]) {
        let records = lock(&self.files).read();
        for record in records {
            let key = record.key();
            if record.left_for() > FORGET_AFTER {
                lock(&self.files).remove(&key);
                continue;
            }
            let job = Some(key.name.clone());
            let whose = Whose { uid: key.uid, pid: None, job, gpu: None, door: None };
            match catch(&whose, || record.restore(sessions)) {
                Ok(job) => {
                    let job = job.counted_by(self.changes.clone());
                    lock(&self.known).insert(key, Arc::new(job));
                }
                Err(why) => {
                    tracing::warn!(
                        job = %key.name, uid = key.uid.0,
                        "lost the plan of job {} of user {}: {why}", key.name, key.uid
                    );
                    lock(&self.files).remove(&key);
                }
            }
        }
    }

    /// Leaves out jobs that daemons may have died of, before the others are restored.
    pub(crate) fn leave_out(&self, left_out: &[JobKey], deaths: usize) {
        for key in left_out {
            let (JobKey { uid, name }, file) = (key, lock(&self.files).leave_out(key));
            tracing::error!(
                name: journal::LEFT_OUT, job = %name, uid = uid.0,
                "left out job {name} of user {uid} ({}): {deaths} daemons in a row died within {} s \
                 of taking it up", file.display(), LIVED.as_secs()
            );
        }
    }

    /// Forgets what was left out: the daemon lives without it.
    pub(crate) fn remove_left_out(&self) {
        lock(&self.files).remove_left_out();
    }

    /// Records what a job runs for the next daemon.
    pub(crate) fn keep(&self, job: &Job) {
        self.write(job, false);
    }

    /// Records what every job runs, when the daemon leaves their ranks.
    pub(crate) fn keep_all(&self) {
        for job in self.all() {
            self.write(&job, true);
        }
    }

    fn write(&self, job: &Job, ending: bool) {
        // Held from here on, lest an older record replace a newer one.
        let mut files = lock(&self.files);
        if let Some(record) = JobRecord::of(job, ending)
            && let Err(error) = files.write(&record)
        {
            tracing::warn!(
                job = %job.key.name, uid = job.key.uid.0,
                "a restart of pfod will end the plan of job {}, which cannot be recorded: {error}",
                job.key.name
            );
        }
    }

    /// The job with that key, created if it does not exist; `pp_degree` comes from its first rank or
    /// from a plan that waits for it. A job that comes back with another number of stages has the plan
    /// that waited for it, which suspends it with that reason.
    pub(crate) fn find_or_create(&self, key: JobKey, pp_degree: u32) -> Arc<Job> {
        let mut known = lock(&self.known);
        self.forget(&mut known, key.uid);
        let fits = |job: &&Arc<Job>| job.pp_degree == pp_degree || !job.members().is_empty();
        if let Some(job) = known.get(&key).filter(fits) {
            return Arc::clone(job);
        }
        let before = known.remove(&key).map(|job| std::mem::take(&mut job.members().plans));
        let (plans, now) = (before.unwrap_or_default(), Instant::now());
        let job = Job::of_earlier_daemon(key.clone(), pp_degree, plans, now);
        let job = Arc::new(job.counted_by(self.changes.clone()));
        known.insert(key, Arc::clone(&job));
        job
    }

    /// The job that a swap means. A plan from step 0 on that the agent keeps waits for a job that is not
    /// there; where a person swaps, its name is a slip.
    ///
    /// # Errors
    /// As [`select`](Self::select).
    pub(crate) fn select_for_swap(
        &self,
        permit: &Permit,
        selector: &JobSelector,
        (target, at): (&SwapTarget, Option<u64>),
    ) -> Result<Arc<Job>, Refusal> {
        match (target, at, selector.uid) {
            (SwapTarget::Table { table, .. }, Some(0), Some(uid))
                if permit.caller().door == Door::Agent && permit.sees(uid) =>
            {
                let key = JobKey { uid, name: selector.job.clone() };
                let is_empty = |job: &&Arc<Job>| job.members().is_empty();
                if lock(&self.known).values().filter(is_empty).count() >= EMPTY {
                    let message = format!("{EMPTY} jobs without ranks wait on this node already");
                    let remedy = "try again when some have begun, or are forgotten";
                    return Err(Refusal::new(RefusalCode::LimitReached, message, remedy));
                }
                Ok(self.find_or_create(key, table.stages().len() as u32))
            }
            _ => self.select_whole(permit, selector),
        }
    }

    /// The job that a request means which changes it. One with ranks on other nodes only the agent changes,
    /// who has all of them change.
    ///
    /// # Errors
    /// As [`select`](Self::select), and if another than the agent asks for such a job.
    pub(crate) fn select_whole(
        &self,
        permit: &Permit,
        selector: &JobSelector,
    ) -> Result<Arc<Job>, Refusal> {
        let job = self.select(permit, selector)?;
        if permit.caller().door != Door::Agent {
            job.members().check_whole(&job.key.name)?;
        }
        Ok(job)
    }

    /// The job that a request means.
    ///
    /// # Errors
    /// If there is no such job within the permit, or more than one.
    pub(crate) fn select(
        &self,
        permit: &Permit,
        selector: &JobSelector,
    ) -> Result<Arc<Job>, Refusal> {
        let job = self.find(selector, permit.uid(), permit.sees_all())?;
        job.members().renew();
        Ok(job)
    }

    /// The job of the user `own` or, with `any`, the only one of that name. One that runs goes before one
    /// without ranks.
    fn find(&self, selector: &JobSelector, own: Uid, any: bool) -> Result<Arc<Job>, Refusal> {
        let JobSelector { job: name, uid } = selector;
        panic_in_tests(name, "panics-in-request");
        if let Some(owner) = uid.filter(|owner| !any && *owner != own) {
            return Err(Self::unknown(name, Some(owner)));
        }
        let (known, whose) = (lock(&self.known), uid.unwrap_or(own));
        let may_be = |job: &Job| job.key.uid == whose || any && uid.is_none();
        let named = known.values().filter(|job| job.key.name == *name && may_be(job));
        let mut named: Vec<_> = named.map(|job| (job.members().is_empty(), job)).collect();
        named.sort_by_key(|(waits, job)| (*waits, job.key.uid != whose));
        match &named[..] {
            [(waits, one), (waits_too, other), ..]
                if one.key.uid != whose && waits == waits_too =>
            {
                let (one, other) = (one.key.uid, other.key.uid);
                let message =
                    format!("several users have a job {name}, among them {one} and {other}");
                Err(Refusal::new(RefusalCode::UnknownJob, message, "name its user with --user"))
            }
            [(_, job), ..] => Ok(Arc::clone(job)),
            [] => Err(Self::unknown(name, uid.or((!any).then_some(own)))),
        }
    }

    /// A refusal for a job that does not exist, or that the caller may not see.
    fn unknown(name: &JobName, owner: Option<Uid>) -> Refusal {
        let no_user = || "no user has a".to_owned();
        let who_has_no = owner.map_or_else(no_user, |owner| format!("user {owner} has no"));
        let message = format!("{who_has_no} job {name} on this node");
        Refusal::new(RefusalCode::UnknownJob, message, "`pfoctl status` lists the jobs")
    }

    /// How many instructions another plan of this user may have.
    pub(crate) fn room_for_plans(&self, uid: Uid) -> usize {
        let (own, all) = self.all().iter().fold((0_usize, 0_usize), |(own, all), job| {
            let size = job.members().plans.num_units();
            let own_size = if self.people.are_one(uid, job.key.uid) { size } else { 0 };
            (own.saturating_add(own_size), all.saturating_add(size))
        });
        PLANNED_PER_PERSON.saturating_sub(own).min(PLANNED.saturating_sub(all))
    }

    /// The changes of all jobs.
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Every job that a permit lets its caller see.
    pub(crate) fn seen_by(&self, permit: &Permit) -> Vec<Arc<Job>> {
        let mut jobs = self.all();
        jobs.retain(|job| permit.sees(job.key.uid));
        jobs
    }

    /// Every job, by owner and name.
    pub(crate) fn all(&self) -> Vec<Arc<Job>> {
        lock(&self.known).values().cloned().collect()
    }

    fn forget(&self, known: &mut BTreeMap<JobKey, Arc<Job>>, uid: Uid) {
        let empty_since = |job: &Arc<Job>| job.members().empty_since();
        let old = |job: &Arc<Job>| empty_since(job).is_some_and(|s| s.elapsed() > FORGET_AFTER);
        known.retain(|key, job| {
            if old(job) {
                lock(&self.files).remove(key);
            }
            !old(job)
        });
        let own = known.values().filter(|job| self.people.are_one(uid, job.key.uid));
        let mut empty: Vec<_> =
            own.filter_map(|job| empty_since(job).map(|since| (since, job.key.clone()))).collect();
        empty.sort();
        let surplus = empty.len().saturating_sub(EMPTY_PER_PERSON);
        for (_, key) in empty.into_iter().take(surplus) {
            known.remove(&key);
            lock(&self.files).remove(&key);
        }
    }
}

/// No jobs, with files in a directory. User 7 has subordinate uids from 100000 on.
#[cfg(test)]
pub(crate) fn jobs_in(directory: &std::path::Path) -> Jobs {
    let subuid = directory.join("subuid");
    std::fs::write(&subuid, "7:100000:65536").unwrap();
    let people = People::in_file(subuid);
    people.read();
    Jobs::new(JobFiles::beside(&directory.join("ledger.json")), Arc::new(people))
}

#[cfg(test)]
mod tests {
    use pfo_protocol::SwapTarget;

    use super::super::example::{member, table};
    use super::*;

    fn key(uid: u32, name: &str) -> JobKey {
        JobKey { uid: Uid(uid), name: name.parse().unwrap() }
    }

    fn selector(name: &str, uid: Option<u32>) -> JobSelector {
        JobSelector { job: name.parse().unwrap(), uid: uid.map(Uid) }
    }

    fn run(jobs: &Jobs, job: &Job) {
        let (label, table) = ("p".into(), table(&[[900, 1200]]));
        job.swap(SwapTarget::Table { label, table }, (None, None), usize::MAX).unwrap();
        jobs.keep(job);
    }

    #[test]
    fn a_job_is_found_by_its_owner_and_by_others_only_where_they_may_see_any() {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs_in(directory.path());
        for uid in [7, 8] {
            jobs.find_or_create(key(uid, "both"), 1);
        }
        jobs.find_or_create(key(7, "one"), 1);
        let select = |name: &str, uid, own, any| {
            let job = jobs.find(&selector(name, uid), Uid(own), any);
            job.map(|job| job.key.uid.0).map_err(|refusal| refusal.message)
        };
        assert_eq!(select("both", None, 8, false), Ok(8));
        let unknown = Err("user 7 has no job both on this node".to_owned());
        assert_eq!(select("both", Some(7), 8, false), unknown, "as if there were none");
        assert_eq!(select("one", None, 0, true), Ok(7));
        let unknown = Err("user 9 has no job one on this node".to_owned());
        assert_eq!(select("one", None, 9, false), unknown);
        assert!(select("both", None, 9, true).unwrap_err().contains("among them 7 and 8"));
        assert!(select("one", Some(8), 9, true).is_err(), "another user was named");
    }

    #[test]
    fn a_job_without_ranks_is_made_anew_for_another_number_of_stages() {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs_in(directory.path());
        let job = jobs.find_or_create(key(7, "j"), 1);
        assert!(Arc::ptr_eq(&job, &jobs.find_or_create(key(7, "j"), 1)));
        run(&jobs, &job);
        assert_eq!(lock(&jobs.files).read().len(), 1);
        let anew = jobs.find_or_create(key(7, "j"), 2);
        assert_eq!((anew.pp_degree, anew.members().is_empty()), (2, true));
        let job = jobs.find_or_create(key(7, "j"), 1);
        job.join(member(0, 0)).unwrap();
        assert_eq!(jobs.find_or_create(key(7, "j"), 2).pp_degree, 1, "it has a rank");
    }

    #[test]
    fn a_refused_plan_of_other_stages_leaves_the_record_of_the_one_that_waits() {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs_in(directory.path());
        let planned = jobs.find_or_create(key(7, "j"), 1);
        let waiting = SwapTarget::Table { label: "p".into(), table: table(&[[900, 900]]) };
        planned.swap(waiting, (Some(0), None), 4).unwrap();
        jobs.keep(&planned);
        jobs.find_or_create(key(7, "j"), 2);
        let next = jobs_in(directory.path());
        next.restore(&[]);
        assert_eq!(next.all()[0].members().plans.current().unwrap().label, "p");
    }

    #[test]
    fn a_job_that_comes_back_with_other_stages_says_why_it_does_not_run_its_plan() {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs_in(directory.path());
        let planned = jobs.find_or_create(key(7, "j"), 2);
        let table = table(&[[900, 900], [900, 900]]);
        planned.swap(SwapTarget::Table { label: "p".into(), table }, (Some(0), None), 4).unwrap();
        let job = jobs.find_or_create(key(7, "j"), 1);
        job.join(member(0, 0)).unwrap();
        let why = job.members().plans.current().unwrap().status().suspended.unwrap();
        assert!(why.ends_with("the plan has 2 stages, the job 1"), "{why}");
        jobs.keep(&job);
        let next = jobs_in(directory.path());
        next.restore(&[]);
        assert!(next.all()[0].members().plans.current().unwrap().is_suspended());
    }

    #[test]
    fn a_person_leaves_a_number_of_jobs_behind_and_the_oldest_are_forgotten_first() {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs_in(directory.path());
        jobs.find_or_create(key(8, "other"), 1);
        let leave = |uid: u32, name: &str| {
            let job = jobs.find_or_create(key(uid, name), 1);
            let rank = member(0, 0);
            job.join(rank.clone()).unwrap();
            run(&jobs, &job);
            rank.session.progress.swap.store(1, std::sync::atomic::Ordering::Relaxed);
            job.leave(&rank.session);
        };
        for number in 0..EMPTY_PER_PERSON + 3 {
            leave(if number % 2 == 0 { 7 } else { 100_004 }, &format!("j{number:02}"));
        }
        jobs.find_or_create(key(7, "last"), 1);
        let mut own: Vec<_> = jobs.all().into_iter().filter(|job| job.key.uid != Uid(8)).collect();
        own.sort_by_key(|job| job.key.name.clone());
        assert_eq!(own.len(), EMPTY_PER_PERSON + 1);
        assert_eq!(own[0].key.name.as_str(), "j03");
        assert_eq!(lock(&jobs.files).read().len(), EMPTY_PER_PERSON);
        assert!(jobs.find(&selector("other", None), Uid(8), false).is_ok());
    }

    #[test]
    fn the_plans_of_a_person_take_from_its_own_room_before_that_of_all() {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs_in(directory.path());
        assert_eq!(jobs.room_for_plans(Uid(7)), PLANNED_PER_PERSON);
        run(&jobs, &jobs.find_or_create(key(7, "j"), 1));
        for uid in [7, 100_004] {
            assert_eq!(jobs.room_for_plans(Uid(uid)), PLANNED_PER_PERSON - 2, "{uid}");
        }
        assert_eq!(jobs.room_for_plans(Uid(8)), PLANNED_PER_PERSON);
    }

    #[test]
    fn the_next_daemon_finds_the_jobs_that_ran_plans_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs_in(directory.path());
        run(&jobs, &jobs.find_or_create(key(7, "planned"), 1));
        jobs.find_or_create(key(7, "unplanned"), 1);
        jobs.keep_all();
        let next = jobs_in(directory.path());
        next.restore(&[]);
        let [job] = next.all().try_into().unwrap();
        assert_eq!(job.key, key(7, "planned"));
        let mut watch = next.changes().subscribe();
        watch.mark_unchanged();
        job.notice_change();
        assert!(watch.has_changed().unwrap(), "its changes count among those of the node");
    }
}
