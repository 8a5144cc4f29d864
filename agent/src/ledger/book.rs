//! The ledger of one agent: what is collected in memory, what waits to be written, and the file.
//!
//! A file that cannot be read is kept aside, and one that cannot be written is tried again: rows wait
//! meanwhile. Joules are counted only once it is known how far the file counts them.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use pfo_protocol::{
    GpuStatus, JobView, Pid, PlanStatus, SavedEnergy, SavingsBy, SavingsQuery, SavingsReport,
    SavingsRow, Uid,
};
use pfo_service::{boot_id, lock, unix_s};

use crate::job::JobKey;
use crate::ledger::comparison::Compared;
use crate::ledger::config::LedgerConfig;
use crate::ledger::query::{self, Known, Measured};
use crate::ledger::store::{Store, StoreError};
use crate::ledger::tariff::tariff;
use crate::ledger::windows::{Entry, Windows, Work};
use crate::settings::InForce;

/// How long to wait before a file that failed is tried again.
const PAUSE: Duration = Duration::from_secs(60);

/// How often to look at the GPUs of jobs that run plans.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Rows of each kind that wait for a file that cannot be written.
const MOST_WAITING: usize = 4096;

const DAY_S: u64 = 86_400;

const MIB: u64 = 1024 * 1024;

/// The latest time that `SQLite` can compare with.
const LATEST_UNIX_S: u64 = i64::MAX as u64;

/// The ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    settings: Arc<InForce>,
    path: PathBuf,
    seen: Mutex<Seen>,
    file: Mutex<File>,
    entries: AtomicU64,
    lately: Mutex<(Option<Instant>, BTreeMap<JobKey, SavedEnergy>)>,
}

/// What is in memory.
#[derive(Debug, Default)]
struct Seen {
    windows: Windows,
    /// The life of `pfod` that is not begun yet, because it is not known how far it is counted.
    next_run: Option<String>,
    entries: VecDeque<Entry>,
    comparisons: VecDeque<(Work, Compared)>,
    /// Not before then is the file tried again.
    pause_until: Option<Instant>,
    /// Not before then are the GPUs looked at again.
    look_after: Option<Instant>,
}

#[derive(Debug, Default)]
struct File {
    store: Option<Store>,
    problem: Option<String>,
    /// What became of a file that could not be read.
    aside: Option<String>,
}

impl Ledger {
    /// The ledger below the directory of what outlives the node's boot. Nothing is opened yet.
    pub(crate) fn under(state: &Path, settings: Arc<InForce>) -> Self {
        Self {
            settings,
            path: state.join("ledger").join("ledger.sqlite"),
            seen: Mutex::default(),
            file: Mutex::default(),
            entries: AtomicU64::default(),
            lately: Mutex::default(),
        }
    }

    /// The agent has reached `pfod`, which may be another one than before.
    pub(crate) fn reached(&self, pfod: Pid) {
        lock(&self.seen).next_run = Some(format!("{} {pfod}", boot_id()));
    }

    /// Takes a look at all jobs. Returns whether there is something to write.
    pub(crate) fn see(&self, jobs: &[JobView]) -> bool {
        let mut seen = lock(&self.seen);
        if seen.next_run.is_none() {
            let over = seen.windows.see(jobs, unix_s(SystemTime::now()));
            seen.wait(over);
        }
        let waits =
            seen.next_run.is_some() || !seen.entries.is_empty() || !seen.comparisons.is_empty();
        waits && seen.pause_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Whether a job runs a plan, and it is time for a look at its GPUs.
    pub(crate) fn wants_gpus(&self) -> bool {
        let mut seen = lock(&self.seen);
        let now = Instant::now();
        if !seen.windows.is_collecting() || seen.look_after.is_some_and(|after| now < after) {
            return false;
        }
        seen.look_after = now.checked_add(LOOK_EVERY);
        true
    }

    /// Takes a look at the GPUs of all jobs.
    pub(crate) fn see_gpus(&self, jobs: &[JobView], gpus: &[GpuStatus]) {
        lock(&self.seen).windows.see_gpus(jobs, gpus, unix_s(SystemTime::now()));
    }

    /// Takes what a job gave up for a power budget since the last time.
    pub(crate) fn give(&self, key: &JobKey, given_j: f64, lost_s: f64) {
        lock(&self.seen).windows.give(key, given_j, lost_s);
    }

    /// Takes a comparison of a plan of a job with default clocks.
    pub(crate) fn take(&self, job: &JobView, plan: &PlanStatus, compared: Compared) {
        lock(&self.seen).wait_compared((Work::of(job, plan), compared));
    }

    /// Takes a comparison that the agents of all nodes of a job share. Each of them has it once, however
    /// often it is read, and applies it to the joules of its own node: together these are all.
    pub(crate) fn take_whole(&self, job: &JobView, whole: &pfo_fleet::Compared) {
        let work = Work::of_plan(job, &whole.label, whole.predicted_j);
        lock(&self.seen).wait_compared((work, Compared::of_whole(whole)));
    }

    /// Writes what waits. Not to be called on a thread of the runtime.
    pub(crate) fn write(&self) {
        let mut file = lock(&self.file);
        let written = match self.try_write(&mut file) {
            Err(StoreError::Unreadable(why)) => {
                self.keep_aside(&mut file, &why);
                self.try_write(&mut file)
            }
            other => other,
        };
        let problem = written.err().map(|error| {
            let path = self.path.display();
            format!("{path} cannot be written: {error}; what is measured waits in memory")
        });
        if let Some(why) = problem.as_ref().filter(|_| file.problem.is_none()) {
            tracing::warn!("{why}");
        }
        if problem.is_none() && file.problem.is_some() {
            tracing::info!("{} is written again", self.path.display());
        }
        lock(&self.seen).pause_until =
            problem.as_ref().and_then(|_| Instant::now().checked_add(PAUSE));
        file.problem = problem;
    }

    /// Writes everything, because the agent ends.
    pub(crate) fn end(&self) {
        let mut seen = lock(&self.seen);
        let over = seen.windows.end();
        seen.wait(over);
        let waits = !seen.entries.is_empty() || !seen.comparisons.is_empty();
        drop(seen);
        if waits {
            self.write();
        }
    }

    /// How many entries the ledger has.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// What was saved. `only_of` is the only user whose jobs may be seen. Not to be called on a thread
    /// of the runtime.
    pub(crate) fn savings(&self, query: &SavingsQuery, only_of: Option<Uid>) -> SavingsReport {
        let config = self.config();
        let (tariff, tariff_problem) = tariff(&config);
        let (known, ledger_problem) = self.known(query, only_of.or(query.uid));
        SavingsReport {
            rows: query::rows(&known, query.by),
            total: query::total(&known),
            tariff,
            tariff_problem,
            ledger_problem,
            entries: self.entries(),
        }
    }

    /// What each job has saved as of a minute ago at most. Not to be called on a thread of the runtime.
    pub(crate) fn saved_lately(&self) -> BTreeMap<JobKey, SavedEnergy> {
        let mut lately = lock(&self.lately);
        if lately.0.is_some_and(|at| at.elapsed() < PAUSE) {
            return lately.1.clone();
        }
        // Who asks meanwhile has what was known before, and waits for no disk.
        lately.0 = Some(Instant::now());
        drop(lately);
        let by = SavingsBy::Job;
        let all = SavingsQuery { job: None, uid: None, since_unix_s: None, by };
        let rows = query::rows(&self.known(&all, None).0, by).into_iter();
        let of_row = |row: SavingsRow| {
            let key = JobKey { uid: row.uid?, name: row.job? };
            Some((key, row.savings.saved?))
        };
        let saved: BTreeMap<_, _> = rows.filter_map(of_row).collect();
        lock(&self.lately).1.clone_from(&saved);
        saved
    }

    /// What is known of the plans of one user's jobs or of all, whether it is written or not.
    fn known(&self, query: &SavingsQuery, uid: Option<Uid>) -> (Vec<Known>, Option<String>) {
        let job = query.job.as_ref().map(ToString::to_string);
        let since_unix_s = query.since_unix_s.unwrap_or_default().min(LATEST_UNIX_S);
        let mut file = lock(&self.file);
        let mut problem = file.problem.clone();
        let mut known = BTreeMap::new();
        if file.store.is_none() {
            let opened = self.open(&mut file);
            problem = problem.or(opened.err().map(|error| self.unread(&error)));
        }
        if let Some(store) = &file.store {
            match store.known((uid, job.as_deref()), since_unix_s) {
                Ok(found) => known.extend(found.into_iter().map(|of| (of.work.clone(), of))),
                Err(error) => problem = Some(self.unread(&error)),
            }
        }
        let problem = problem.or_else(|| file.aside.clone());
        // What is taken from memory to be written is not in the file before the latter is free.
        let seen = lock(&self.seen);
        let is_asked = |work: &Work| {
            uid.is_none_or(|uid| uid == work.uid) && job.as_ref().is_none_or(|job| *job == work.job)
        };
        for (work, compared) in seen.comparisons.iter().filter(|(work, _)| is_asked(work)) {
            let of_work = known.entry(work.clone()).or_insert_with_key(Known::of);
            // That of a whole job may have been written by an earlier agent.
            if !of_work.comparisons.contains(compared) {
                of_work.comparisons.push(*compared);
            }
        }
        let waiting = seen.entries.iter().chain(seen.windows.collecting());
        let is_recent = |entry: &&Entry| entry.until_unix_s >= since_unix_s;
        for entry in waiting.filter(is_recent).filter(|entry| is_asked(&entry.work)) {
            let of_work = known.entry(entry.work.clone()).or_insert_with_key(Known::of);
            of_work.windows.push(Measured::of(entry));
        }
        drop(seen);
        let known = known.into_values().filter(|known| !known.windows.is_empty());
        let mut known: Vec<_> = known.collect();
        known.iter_mut().for_each(|known| known.comparisons.sort_by_key(|one| one.at_unix_s));
        (known, problem)
    }

    fn unread(&self, error: &StoreError) -> String {
        format!("{} cannot be read: {error}", self.path.display())
    }

    fn config(&self) -> LedgerConfig {
        self.settings.now().config.ledger.clone()
    }

    fn open(&self, file: &mut File) -> Result<(), StoreError> {
        if file.store.is_some() {
            return Ok(());
        }
        if let Some(directory) = self.path.parent() {
            // Its users are nobody else's business.
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        }
        file.store = Some(match Store::open(&self.path) {
            Err(StoreError::Unreadable(why)) => {
                self.keep_aside(file, &why);
                Store::open(&self.path)?
            }
            opened => opened?,
        });
        Ok(())
    }

    fn try_write(&self, file: &mut File) -> Result<(), StoreError> {
        self.open(file)?;
        let Some(store) = &mut file.store else { return Ok(()) };
        let next_run = lock(&self.seen).next_run.clone();
        if let Some(run) = next_run {
            let reached = store.reached(&run)?;
            let mut seen = lock(&self.seen);
            let over = seen.windows.begin(run, reached);
            seen.wait(over);
            seen.next_run = None;
        }
        let (entries, comparisons) = {
            let mut seen = lock(&self.seen);
            let Seen { entries, comparisons, .. } = &mut *seen;
            (entries.make_contiguous().to_vec(), comparisons.make_contiguous().to_vec())
        };
        store.append(&entries, &comparisons)?;
        {
            let mut seen = lock(&self.seen);
            seen.entries.drain(..entries.len());
            seen.comparisons.drain(..comparisons.len());
        }
        let LedgerConfig { keep_days, most_mib, .. } = self.config();
        let kept_s = u64::from(keep_days.get()).saturating_mul(DAY_S);
        let most_bytes = u64::from(most_mib.get()).saturating_mul(MIB);
        store.bound(unix_s(SystemTime::now()).saturating_sub(kept_s), most_bytes)?;
        self.entries.store(store.entries()?, Relaxed);
        Ok(())
    }

    /// Puts a file that cannot be read out of the way, with its journal.
    fn keep_aside(&self, file: &mut File, why: &str) {
        file.store = None;
        let path = self.path.display();
        let aside = self.path.with_extension(format!("unreadable-{}", unix_s(SystemTime::now())));
        let said = match fs::rename(&self.path, &aside) {
            Ok(()) => format!("{path} could not be read: {why}. It is kept as {}", aside.display()),
            Err(error) => format!("{path} cannot be read: {why}; nor be renamed: {error}"),
        };
        if file.aside.as_ref() != Some(&said) {
            tracing::error!("{said}; the ledger begins anew");
        }
        let journal = |path: &Path| path.with_added_extension("journal");
        move_journal(&self.path.with_file_name("ledger.sqlite-journal"), &journal(&aside));
        file.aside = Some(said);
    }
}

/// A journal that stays would be rolled back into the next file.
fn move_journal(journal: &Path, aside: &Path) {
    match fs::rename(journal, aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot rename {}: {error}", journal.display());
        }
        _ => {}
    }
}

impl Seen {
    fn wait_compared(&mut self, compared: (Work, Compared)) {
        if self.comparisons.contains(&compared) {
            return;
        }
        self.comparisons.push_back(compared);
        while self.comparisons.len() > MOST_WAITING {
            self.comparisons.pop_front();
        }
    }

    fn wait(&mut self, over: Vec<Entry>) {
        self.entries.extend(over);
        while self.entries.len() > MOST_WAITING {
            self.entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;
    use crate::config::Config;
    use crate::ledger::comparison::Turn;
    use crate::ledger::example::example;

    fn ledger(state: &Path) -> Ledger {
        let settings = InForce::new(crate::ConfigSource::default(), Config::default());
        Ledger::under(state, Arc::new(settings))
    }

    /// The same, of an agent that has reached `pfod`.
    fn begun(state: &Path) -> Ledger {
        let ledger = ledger(state);
        ledger.reached(Pid(1));
        ledger.write();
        ledger
    }

    fn query(by: SavingsBy) -> SavingsQuery {
        SavingsQuery { job: None, uid: None, since_unix_s: None, by }
    }

    fn steps(ledger: &Ledger) -> u64 {
        ledger.savings(&query(SavingsBy::Job), None).total.steps
    }

    fn compare(ledger: &Ledger, job: &JobView, saving: f64) {
        let turn = |energy_j| Turn { steps: 1, time_s: 1.0, energy_j };
        let (default, plan) = (turn(10.0 * (1.0 + saving)), turn(10.0));
        let compared = Compared { at_unix_s: unix_s(SystemTime::now()), default, plan };
        ledger.take(job, job.plan.as_ref().unwrap(), compared);
    }

    #[test]
    fn the_next_agent_has_the_same_figures_whatever_ended_this_one() {
        let state = tempfile::tempdir().unwrap();
        let job = example("p", 1, 7, 50);
        let first = begun(state.path());
        first.see(std::slice::from_ref(&job));
        for saving in [0.09, 0.1, 0.11] {
            compare(&first, &job, saving);
        }
        let before = first.savings(&query(SavingsBy::Plan), None);
        assert!(before.total.saved.is_some_and(|saved| saved.shown), "{before:?}");
        assert_eq!(before.total.energy_j, 1000.0);
        first.end();
        for _ in 0..3 {
            let next = begun(state.path());
            next.see(std::slice::from_ref(&job));
            let now = next.savings(&query(SavingsBy::Plan), None);
            assert_eq!((&now.rows, now.total), (&before.rows, before.total));
            assert_eq!((now.entries, now.ledger_problem), (4, None));
        }
    }

    #[test]
    fn a_comparison_of_a_whole_job_counts_once_however_often_it_is_read() {
        let state = tempfile::tempdir().unwrap();
        let job = example("p", 1, 7, 50);
        let turn = |energy_j| pfo_fleet::Turn { steps: 3, time_s: 1.0, energy_j };
        let predicted_j = job.plan.as_ref().unwrap().predicted_energy_j;
        let whole = |at_unix_s, default_j| pfo_fleet::Compared {
            label: "p".into(),
            predicted_j,
            at_unix_s,
            default: turn(default_j),
            plan: turn(10.0),
        };
        // Old ones would be removed.
        let now = unix_s(SystemTime::now());
        let both = [whole(now, 11.0), whole(now + 1, 11.1)];
        let mut before = None;
        for agent in 0..3 {
            let ledger = begun(state.path());
            ledger.see(std::slice::from_ref(&job));
            for _ in 0..3 {
                both.iter().for_each(|whole| ledger.take_whole(&job, whole));
                let total = ledger.savings(&query(SavingsBy::Job), None).total;
                assert_eq!((total.comparisons, total.steps), (2, 50), "agent {agent}");
                assert_eq!(*before.get_or_insert(total), total);
                ledger.write();
            }
        }
        // One of the same second that measured something else is another one.
        let ledger = begun(state.path());
        ledger.see(std::slice::from_ref(&job));
        ledger.take_whole(&job, &whole(now + 1, 11.2));
        ledger.write();
        let total = ledger.savings(&query(SavingsBy::Job), None).total;
        assert_eq!(total.comparisons, 3);
    }

    #[test]
    fn a_user_sees_its_own_jobs_and_no_other() {
        let state = tempfile::tempdir().unwrap();
        let ledger = begun(state.path());
        let job = example("p", 1, 7, 50);
        ledger.see(std::slice::from_ref(&job));
        let of = |uid| ledger.savings(&query(SavingsBy::User), Some(uid)).rows.len();
        assert_eq!((of(job.uid), of(Uid(job.uid.0 + 1))), (1, 0));
        let foreign = SavingsQuery { uid: Some(job.uid), ..query(SavingsBy::User) };
        assert_eq!(ledger.savings(&foreign, Some(Uid(job.uid.0 + 1))).rows, []);
        ledger.end();
        assert_eq!((of(job.uid), of(Uid(job.uid.0 + 1))), (1, 0), "as it is on disk");
        for since_unix_s in [1 << 40, u64::MAX].map(Some) {
            let later = SavingsQuery { since_unix_s, ..query(SavingsBy::User) };
            let report = ledger.savings(&later, None);
            assert_eq!((report.rows, report.ledger_problem), (Vec::new(), None));
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_kept_aside_and_said_so() {
        let damages: [fn(&mut fs::File); 4] = [
            |file| file.set_len(0).and_then(|()| file.write_all(&[7; 8192])).unwrap(),
            |file| {
                let length = file.metadata().unwrap().len();
                file.set_len(length - 5000).unwrap();
            },
            |file| {
                file.seek(SeekFrom::Start(4096)).unwrap();
                file.write_all(&[0xff; 16_384]).unwrap();
            },
            |file| {
                // Of a later version.
                file.seek(SeekFrom::Start(60)).unwrap();
                file.write_all(&[0, 0, 0, 9]).unwrap();
            },
        ];
        for damage in damages {
            let state = tempfile::tempdir().unwrap();
            let first = begun(state.path());
            first.see(&[example("p", 1, 7, 50)]);
            first.end();
            let path = first.path.clone();
            drop(first);
            damage(&mut fs::OpenOptions::new().write(true).open(&path).unwrap());
            let damaged = fs::read(&path).unwrap();
            let next = begun(state.path());
            next.see(&[example("p", 1, 7, 60)]);
            let report = next.savings(&query(SavingsBy::Job), None);
            assert_eq!(report.total.steps, 60, "what pfod still counts is counted again, once");
            let problem = report.ledger_problem.unwrap();
            assert!(
                problem.contains("could not be read") && problem.contains("kept as"),
                "{problem}"
            );
            let aside =
                fs::read_dir(path.parent().unwrap()).unwrap().map(|file| file.unwrap().path());
            let aside: Vec<_> =
                aside.filter(|file| file.display().to_string().contains("unreadable")).collect();
            assert!(aside.iter().any(|file| fs::read(file).unwrap() == damaged), "{aside:?}");
            next.end();
            assert_eq!(steps(&begun(state.path())), 60);
        }
    }

    #[test]
    fn an_empty_file_is_a_new_ledger() {
        let state = tempfile::tempdir().unwrap();
        let path = ledger(state.path()).path;
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        let ledger = begun(state.path());
        assert_eq!(ledger.savings(&query(SavingsBy::Day), None).ledger_problem, None);
    }

    #[test]
    fn where_nothing_can_be_written_rows_wait_and_are_written_later() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("state");
        fs::write(&path, "no directory").unwrap();
        let ledger = ledger(&path);
        ledger.reached(Pid(1));
        let job = example("p", 1, 7, 50);
        assert!(ledger.see(std::slice::from_ref(&job)), "it is tried");
        ledger.write();
        assert!(!ledger.see(std::slice::from_ref(&job)), "and not at once again");
        let report = ledger.savings(&query(SavingsBy::Job), None);
        assert!(report.ledger_problem.unwrap().contains("waits in memory"));
        compare(&ledger, &job, 0.1);
        fs::remove_file(&path).unwrap();
        ledger.write();
        ledger.see(&[job]);
        let report = ledger.savings(&query(SavingsBy::Job), None);
        assert_eq!((report.total.steps, report.ledger_problem), (50, None));
        assert_eq!(report.total.comparisons, 1);
    }

    #[test]
    fn what_was_not_written_because_the_disk_was_full_is_written_once() {
        let state = tempfile::tempdir().unwrap();
        let ledger = begun(state.path());
        let mut full = 0;
        for swap in 1..40 {
            ledger.see(&[example(&"p".repeat(swap as usize), swap, 7, 50)]);
            // Pages that the file has already are all that there is, for every other write.
            let most = if swap % 2 == 0 { 1 } else { u32::MAX };
            lock(&ledger.file).store.as_ref().unwrap().set_most_pages(most);
            ledger.write();
            full += u32::from(lock(&ledger.file).problem.is_some());
        }
        lock(&ledger.file).store.as_ref().unwrap().set_most_pages(u32::MAX);
        ledger.end();
        assert!(full > 0, "no write failed");
        assert_eq!(steps(&begun(state.path())), 39 * 50);
    }
}
