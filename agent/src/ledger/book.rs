//! The ledger of one agent: what is collected in memory, what waits to be written, and the file.
//!
//! A file that cannot be read is kept aside, and one that cannot be written is tried again: rows wait
//! meanwhile. Joules are counted only once it is known how far the file counts them.

mod fleet;

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use pfo_protocol::{
    GpuStatus, JobView, Pid, PlanStatus, SavedEnergy, Savings, SavingsBy, SavingsQuery,
    SavingsReport, SavingsRow, Tariff, Uid, Worth,
};
use pfo_service::{boot_id, lock, unix_s};

use crate::job::JobKey;
use crate::ledger::booked::{Account, Booked};
use crate::ledger::comparison::Compared;
use crate::ledger::config::LedgerConfig;
use crate::ledger::hours::HoursFile;
use crate::ledger::query::{self, Known, Span};
use crate::ledger::store::{Store, StoreError};
use crate::ledger::tariff::Prices;
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
    /// Why the file cannot be written.
    problem: Mutex<Option<String>>,
    entries: AtomicU64,
    lately: Mutex<(Option<Instant>, BTreeMap<JobKey, SavedEnergy>)>,
    /// What is booked in the file; none before that was read.
    accounts: Mutex<Option<Vec<Account>>>,
    hours: HoursFile,
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
            problem: Mutex::default(),
            entries: AtomicU64::default(),
            lately: Mutex::default(),
            accounts: Mutex::default(),
            hours: HoursFile::default(),
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

    /// Whether a job runs a plan.
    pub(crate) fn is_collecting(&self) -> bool {
        lock(&self.seen).windows.is_collecting()
    }

    /// Takes note of a trial on all nodes of a job: what it runs now does not count.
    pub(crate) fn try_out(&self, job: &JobView) {
        lock(&self.seen).windows.try_out(job);
    }

    /// Whether what a job runs counts while another swap waits. A trial that is over does not, while the swap
    /// back waits.
    pub(crate) fn counts(&self, job: &JobView) -> bool {
        lock(&self.seen).windows.counts(job)
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

    /// Takes in which partition of the scheduler jobs are.
    pub(crate) fn see_partitions(
        &self,
        jobs: &[JobView],
        partition_of: impl Fn(&JobView) -> Option<String>,
    ) {
        lock(&self.seen).windows.see_partitions(jobs, partition_of);
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
            Err(StoreError::Gone(_)) => {
                file.store = None;
                self.try_write(&mut file)
            }
            other => other,
        };
        let problem = written.err().map(|error| {
            // The next try opens it anew: what is open may be of a disk that is gone.
            file.store = None;
            let path = self.path.display();
            format!("{path} cannot be written: {error}; what is measured waits in memory")
        });
        let before = self.problem();
        if let Some(why) = problem.as_ref().filter(|_| before.is_none()) {
            tracing::warn!("{why}");
        }
        if problem.is_none() && before.is_some() {
            tracing::info!("{} is written again", self.path.display());
        }
        lock(&self.seen).pause_until =
            problem.as_ref().and_then(|_| Instant::now().checked_add(PAUSE));
        *lock(&self.problem) = problem;
    }

    /// Why what is measured is not written, if it is not.
    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.problem).clone()
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
            let seen = lock(&self.seen);
            let lost = seen.entries.len().saturating_add(seen.comparisons.len());
            if lost > 0 {
                let path = self.path.display();
                tracing::error!("{lost} rows of savings are lost: {path} cannot be written");
            }
        }
    }

    /// How many entries the ledger has.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// What was saved. `only_of` is the only user whose jobs may be seen. Not to be called on a thread
    /// of the runtime.
    pub(crate) fn savings(&self, query: &SavingsQuery, only_of: Option<Uid>) -> SavingsReport {
        let (known, ledger_problem) = self.known(query, only_of.or(query.uid));
        let (prices, tariff_problem) = self.prices();
        let total = query::total(&known, &prices);
        SavingsReport {
            rows: query::rows(&known, query.by, &prices),
            tariff_problem: tariff_problem.or_else(|| unpriced(&prices, &total)),
            total,
            ledger_problem,
            ..self.report(query, prices.flat)
        }
    }

    /// A report without any saving.
    fn report(&self, query: &SavingsQuery, tariff: Tariff) -> SavingsReport {
        SavingsReport {
            tariff,
            entries: self.entries(),
            since_unix_s: query.since_unix_s,
            until_unix_s: query.until_unix_s,
            ..SavingsReport::default()
        }
    }

    /// What energy costs now. Not to be called on a thread of the runtime.
    pub(crate) fn tariff(&self) -> Tariff {
        self.prices().0.tariff_at(unix_s(SystemTime::now()))
    }

    /// What energy costs at each time, and why a file of it is ignored, if one is. Not to be called on a
    /// thread of the runtime.
    fn prices(&self) -> (Prices, Option<String>) {
        Prices::of(&self.config(), &self.hours)
    }

    /// What was saved so far, in sums that only rise. Those of a job that has just begun to run a plan are
    /// 0: `increase()` of Prometheus needs a sample before the first rise.
    pub(crate) fn accounts(&self) -> Vec<Account> {
        let Some(mut accounts) = lock(&self.accounts).clone() else { return Vec::new() };
        let seen = lock(&self.seen);
        for entry in seen.windows.collecting().chain(&seen.entries) {
            let (uid, partition) = (entry.work.uid, entry.used.partition.clone());
            if !accounts.iter().any(|of| (of.uid, &of.partition) == (uid, &partition)) {
                accounts.push(Account { uid, partition, booked: Booked::default() });
            }
        }
        accounts
    }

    /// What each job has saved as of a minute ago at most. Not to be called on a thread of the runtime.
    pub(crate) fn saved_lately(&self) -> BTreeMap<JobKey, SavedEnergy> {
        let mut lately = lock(&self.lately);
        if lately.0.is_some_and(|at| at.elapsed() < PAUSE) {
            return lately.1.clone();
        }
        // A request meanwhile gets what was known before, and waits for no disk.
        lately.0 = Some(Instant::now());
        drop(lately);
        let by = SavingsBy::Job;
        let all = SavingsQuery { by, ..SavingsQuery::default() };
        let rows = query::rows(&self.known(&all, None).0, by, &Prices::default()).into_iter();
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
        let until_unix_s = query.until_unix_s.unwrap_or(u64::MAX);
        let span = Span { since_unix_s, until_unix_s };
        let mut file = lock(&self.file);
        let mut problem = self.problem();
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
        for entry in waiting.filter(|entry| is_asked(&entry.work)) {
            let of_work = known.entry(entry.work.clone()).or_insert_with_key(Known::of);
            of_work.windows.push(entry.used.clone());
        }
        drop(seen);
        let mut known: Vec<_> = known.into_values().collect();
        known.iter_mut().for_each(|of| of.windows.retain(|measured| measured.is_in(span)));
        known.retain(|known| !known.windows.is_empty());
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
        *lock(&self.accounts) = Some(store.accounts()?);
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

/// Why a saving has no money, or no mass of carbon dioxide, though there are prices by the hour.
fn unpriced(prices: &Prices, total: &Savings) -> Option<String> {
    let lacks = |worth: Option<Worth>| total.saved.is_some() && worth.is_none();
    let what = match (lacks(total.money), lacks(total.co2e_g)) {
        (true, true) => "price and no CO2e",
        (true, false) => "price",
        (false, true) => "CO2e",
        (false, false) => return None,
    };
    prices.is_by_hour().then(|| {
        format!(
            "Some of the hours have no {what}: neither hours_file nor the flat tariff in [ledger] of \
             agent.toml gives one."
        )
    })
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
mod tests;
