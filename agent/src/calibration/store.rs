//! What is known about how GPUs change their clocks, in memory and in a file that outlives the
//! node's boot.
//!
//! What the jobs of a person have shown is used for that person's jobs alone: times that a trainer
//! reports may be anything. What an administrator measures is used for everybody.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use pfo_experiment::median;
use pfo_protocol::{
    CalibratedClock, Calibration, CounterCheck, JobView, MemoryLock, Mhz, RankView, SettleTime,
    SettleTimes, Uid,
};
use pfo_service::{People, lock, read_versioned, replace_in_own_directory, unix_s};
use serde::{Deserialize, Serialize};

use crate::calibration::change::Change;
use crate::pfod::Asker;

const FORMAT: &str = "pfo-calibrations/1";

/// Calibrations that are kept; the oldest ones are forgotten.
const KEPT: usize = 256;
const KEPT_PER_PERSON: usize = 16;

/// How often what jobs show meanwhile is written.
const KEPT_EVERY: Duration = Duration::from_secs(60);

/// Clocks of a calibration. A sweep has no more.
const MOST_CLOCKS: usize = 256;

/// The newest changes to a clock that count, and the fewest from which anything is concluded.
const MOST_CHANGES: usize = 64;
const LEAST_CHANGES: usize = 6;

/// Calls that set a clock take longer than in the mean now and then: where transfers wait for them,
/// clocks are requested earlier by this much.
const LONGER_CALL: f64 = 1.1;

/// Of which GPUs, and whose.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Of {
    /// The person whose jobs showed it; none if it is the node's.
    pub(crate) person: Option<Uid>,
    pub(crate) gpu_model: String,
    pub(crate) driver: String,
}

/// What was measured beside changes of clocks; what is not known stays as it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Others {
    pub(super) set_call_us: Option<f64>,
    pub(super) transfers_wait: Option<bool>,
    pub(super) refresh_ms: Option<f64>,
    pub(super) counter: Option<CounterCheck>,
}

#[derive(Clone, Debug)]
struct Known {
    calibration: Calibration,
    /// The newest changes to each clock since the agent started, in microseconds.
    changes: BTreeMap<Mhz, VecDeque<f64>>,
}

/// Every calibration that is known.
#[derive(Debug)]
pub(crate) struct Calibrations {
    path: PathBuf,
    people: Arc<People>,
    known: Mutex<BTreeMap<Of, Known>>,
    /// The version of the driver now.
    driver: Mutex<Option<String>>,
    /// When changes came that are not in the file, and when it was written.
    unkept: Mutex<Unkept>,
    /// Held while the file is written, so that the newest content is the last.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Unkept {
    changes: bool,
    written: Option<Instant>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    calibrations: Vec<Calibration>,
}

impl Calibrations {
    /// Those in the file below the directory of what outlives the node's boot.
    pub(crate) fn under(state: &Path, people: Arc<People>) -> Self {
        let path = state.join("calibrations").join("calibrations.json");
        let found = read_versioned::<OnDisk>(&path, FORMAT).unwrap_or_else(|why| {
            tracing::warn!("{}: {why}; GPUs count as not calibrated", path.display());
            None
        });
        let known = found.map_or_else(BTreeMap::new, |content| {
            let known = |calibration: Calibration| {
                let of = Of {
                    person: calibration.uid,
                    gpu_model: calibration.gpu_model.clone(),
                    driver: calibration.driver.clone(),
                };
                (of, Known { calibration, changes: BTreeMap::new() })
            };
            content.calibrations.into_iter().take(KEPT).map(known).collect()
        });
        Self {
            path,
            people,
            known: Mutex::new(known),
            driver: Mutex::default(),
            unkept: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// Takes the version of the driver that the node has now.
    pub(crate) fn set_driver(&self, driver: Option<String>) {
        *lock(&self.driver) = driver;
    }

    /// Which calibrations a rank of a job makes and uses, if there is a driver.
    pub(crate) fn of(&self, job: &JobView, rank: &RankView) -> Option<Of> {
        let driver = lock(&self.driver).clone()?;
        let person = Some(self.people.person(job.uid));
        Some(Of { person, gpu_model: rank.gpu_model.clone(), driver })
    }

    /// The same for what somebody measures: an administrator does so for everybody.
    pub(crate) fn of_asker(&self, asker: Asker, job: &JobView, rank: &RankView) -> Option<Of> {
        let of = self.of(job, rank)?;
        Some(if asker.administrator { Of { person: None, ..of } } else { of })
    }

    /// Takes changes that were seen. They count from the next [`keep`](Self::keep) on.
    pub(crate) fn add(&self, of: &Of, changes: &[Change]) {
        if changes.is_empty() {
            return;
        }
        lock(&self.unkept).changes = true;
        let mut all = self.known();
        let known = all.entry(of.clone()).or_insert_with(|| Known::nothing(of));
        for change in changes {
            if known.changes.len() >= MOST_CLOCKS && !known.changes.contains_key(&change.to) {
                continue;
            }
            let newest = known.changes.entry(change.to).or_default();
            if newest.len() == MOST_CHANGES {
                newest.pop_front();
            }
            newest.push_back(change.settle_ns / 1e3);
        }
        known.conclude();
        forget_oldest(&mut all, of);
    }

    /// Takes what else was measured.
    pub(super) fn set(&self, of: &Of, others: Others) {
        let Others { set_call_us, transfers_wait, refresh_ms, counter } = others;
        let mut all = self.known();
        let known = all.entry(of.clone()).or_insert_with(|| Known::nothing(of));
        let calibration = &mut known.calibration;
        calibration.set_call_us = set_call_us.or(calibration.set_call_us);
        calibration.transfers_wait = transfers_wait.or(calibration.transfers_wait);
        calibration.refresh_ms = refresh_ms.or(calibration.refresh_ms);
        calibration.counter = counter.or(calibration.counter);
        calibration.measured_unix_s = unix_s(SystemTime::now());
        forget_oldest(&mut all, of);
    }

    /// Takes what a lock of the memory clock does.
    pub(crate) fn set_memory_lock(&self, of: &Of, memory_lock: MemoryLock) {
        let mut all = self.known();
        let known = all.entry(of.clone()).or_insert_with(|| Known::nothing(of));
        known.calibration.memory_lock = Some(memory_lock);
        known.calibration.measured_unix_s = unix_s(SystemTime::now());
        forget_oldest(&mut all, of);
    }

    /// Writes all of them if anything is new, but seldom.
    pub(crate) async fn keep_now_and_then(self: &Arc<Self>) {
        let is_due = {
            let mut unkept = lock(&self.unkept);
            let is_late = unkept.written.is_none_or(|written| written.elapsed() > KEPT_EVERY);
            is_late && std::mem::take(&mut unkept.changes)
        };
        if is_due {
            let all = Arc::clone(self);
            let kept = tokio::task::spawn_blocking(move || all.keep()).await;
            if let Ok(Err(error)) = kept {
                let path = self.path.display();
                tracing::warn!("{path} cannot be written; the next agent measures again: {error}");
            }
        }
    }

    /// Writes all of them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let _writing = lock(&self.writing);
        *lock(&self.unkept) = Unkept { changes: false, written: Some(Instant::now()) };
        let content = OnDisk { format: FORMAT.into(), calibrations: self.list(None) };
        replace_in_own_directory(&self.path, &serde_json::to_vec_pretty(&content)?)
    }

    /// All, or those that a person's jobs are measured with.
    pub(crate) fn list(&self, person: Option<Uid>) -> Vec<Calibration> {
        let known = self.known();
        let is_seen = |of: &&Of| person.is_none() || of.person.is_none() || of.person == person;
        let seen = known.iter().filter(|(of, _)| is_seen(of));
        seen.map(|(_, known)| known.calibration.clone()).collect()
    }

    /// When clocks are in force on these GPUs for the jobs of a person.
    pub(crate) fn settle_times(&self, of: &Of) -> Option<SettleTimes> {
        let all = self.known();
        let own = all.get(of).and_then(Known::settle_times);
        own.or_else(|| all.get(&Of { person: None, ..of.clone() })?.settle_times())
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Of, Known>> {
        lock(&self.known)
    }
}

impl Known {
    fn nothing(of: &Of) -> Self {
        let calibration = Calibration {
            gpu_model: of.gpu_model.clone(),
            driver: of.driver.clone(),
            uid: of.person,
            clocks: Vec::new(),
            set_call_us: None,
            transfers_wait: None,
            refresh_ms: None,
            measured_unix_s: 0,
            counter: None,
            memory_lock: None,
        };
        Self { calibration, changes: BTreeMap::new() }
    }

    fn conclude(&mut self) {
        let enough = self.changes.iter().filter(|(_, changes)| changes.len() >= LEAST_CHANGES);
        let concluded: Vec<_> = enough.map(|(mhz, changes)| clock(*mhz, changes)).collect();
        if concluded.is_empty() {
            return;
        }
        let clocks = &mut self.calibration.clocks;
        clocks.retain(|before| concluded.iter().all(|now| now.mhz != before.mhz));
        clocks.extend(concluded);
        clocks.sort_by_key(|clock| clock.mhz);
        clocks.truncate(MOST_CLOCKS);
        self.calibration.measured_unix_s = unix_s(SystemTime::now());
    }

    /// When clocks are in force and, where transfers wait for the call that sets one, it has
    /// returned: a clock that is requested this much ahead holds nothing up.
    fn settle_times(&self) -> Option<SettleTimes> {
        let call_us =
            self.calibration.set_call_us.filter(|_| self.calibration.transfers_wait == Some(true));
        let call_us = (LONGER_CALL * call_us.unwrap_or(0.0)) as u32;
        let time = |clock: &CalibratedClock| SettleTime {
            mhz: clock.mhz,
            us: clock.settle_us.max(call_us),
        };
        SettleTimes::new(self.calibration.clocks.iter().map(time).collect()).ok()
    }
}

fn clock(mhz: Mhz, changes: &VecDeque<f64>) -> CalibratedClock {
    let settle_us = median(changes.iter().copied());
    let spread_us = median(changes.iter().map(|change| (change - settle_us).abs()));
    // What scatters around a short time may come out below zero.
    let whole = |us: f64| us.max(0.0).round() as u32;
    CalibratedClock {
        mhz,
        settle_us: whole(settle_us),
        spread_us: whole(spread_us),
        changes: changes.len() as u32,
    }
}

/// Makes room by forgetting what was measured longest ago, but not `newest`.
fn forget_oldest(all: &mut BTreeMap<Of, Known>, newest: &Of) {
    for (most, is_counted) in [
        (KEPT_PER_PERSON, &(|of: &Of| of.person == newest.person) as &dyn Fn(&Of) -> bool),
        (KEPT, &|_| true),
    ] {
        let others = || all.iter().filter(|(of, _)| is_counted(of) && *of != newest);
        if others().count() < most {
            continue;
        }
        let oldest = others().min_by_key(|(_, known)| known.calibration.measured_unix_s);
        if let Some(oldest) = oldest.map(|(of, _)| of.clone()) {
            all.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(person: Option<u32>, model: &str) -> Of {
        let (gpu_model, driver) = (model.to_owned(), "570".to_owned());
        Of { person: person.map(Uid), gpu_model, driver }
    }

    fn changes(mhz: u32, settle_us: &[f64]) -> Vec<Change> {
        let change = |us: &f64| Change { to: Mhz(mhz), settle_ns: us * 1e3 };
        settle_us.iter().map(change).collect()
    }

    fn store(directory: &Path) -> Calibrations {
        Calibrations::under(directory, Arc::new(People::in_file(directory.join("subuid"))))
    }

    #[test]
    fn a_few_changes_prove_nothing_and_more_give_their_median() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let own = of(Some(7), "A100");
        store.add(&own, &changes(900, &[9000.0, 11_000.0, 10_000.0, 10_500.0, 9500.0]));
        assert_eq!(store.settle_times(&own), None);
        store.add(&own, &changes(900, &[2e6, -3.0]));
        assert_eq!(store.settle_times(&own).unwrap().ns_to(Mhz(1410)), 10_000_000);
        let [calibration] = &store.list(None)[..] else { panic!() };
        assert_eq!((calibration.clocks[0].spread_us, calibration.clocks[0].changes), (1000, 7));
    }

    #[test]
    fn nobody_uses_what_the_jobs_of_others_have_shown_and_all_what_an_administrator_has_measured() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        store.add(&of(Some(7), "A100"), &changes(900, &[1e6; 9]));
        assert_eq!(store.settle_times(&of(Some(8), "A100")), None);
        assert_eq!(store.list(Some(Uid(8))), []);
        store.add(&of(None, "A100"), &changes(900, &[9e3; 9]));
        let ns = |uid| store.settle_times(&of(Some(uid), "A100")).unwrap().ns_to(Mhz(900));
        assert_eq!((ns(7), ns(8)), (1_000_000_000, 9_000_000));
        assert_eq!(store.settle_times(&of(Some(8), "A40")), None);
    }

    #[test]
    fn what_was_measured_outlives_the_agent_until_it_is_measured_again() {
        let directory = tempfile::tempdir().unwrap();
        let own = of(None, "A100");
        let first = store(directory.path());
        first.add(&own, &changes(900, &[9e3; 9]));
        let (set_call_us, refresh_ms) = (Some(8e3), Some(20.0));
        let others = Others { set_call_us, transfers_wait: Some(false), refresh_ms, counter: None };
        first.set(&own, others);
        first.keep().unwrap();
        let next = store(directory.path());
        assert_eq!(next.list(None), first.list(None));
        next.add(&own, &changes(900, &[30e3; 5]));
        assert_eq!(next.settle_times(&own).unwrap().ns_to(Mhz(900)), 9_000_000, "too few");
        next.add(&own, &changes(900, &[30e3; 5]));
        assert_eq!(next.settle_times(&own).unwrap().ns_to(Mhz(900)), 30_000_000);
    }

    #[test]
    fn where_transfers_wait_for_calls_clocks_are_asked_for_as_early_as_calls_take() {
        let directory = tempfile::tempdir().unwrap();
        let (store, own) = (store(directory.path()), of(None, "B200"));
        store.add(&own, &[changes(900, &[9e3; 9]), changes(1800, &[30e3; 9])].concat());
        let ns = |transfers_wait| {
            let others =
                Others { set_call_us: Some(12e3), transfers_wait, refresh_ms: None, counter: None };
            store.set(&own, others);
            let times = store.settle_times(&own).unwrap();
            [900, 1800].map(|mhz| times.ns_to(Mhz(mhz)))
        };
        assert_eq!(ns(None), [9_000_000, 30_000_000]);
        assert_eq!(ns(Some(true)), [13_200_000, 30_000_000]);
        assert_eq!(ns(None), [13_200_000, 30_000_000], "what is not seen again stays known");
        assert_eq!(ns(Some(false)), [9_000_000, 30_000_000]);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_no_calibration_and_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let broken = store(directory.path());
        broken.keep().unwrap();
        std::fs::write(&broken.path, "{").unwrap();
        assert_eq!(store(directory.path()).list(None), []);
        broken.add(&of(None, "A100"), &changes(900, &[9e3; 9]));
        broken.keep().unwrap();
        assert_eq!(store(directory.path()).list(None).len(), 1);
    }

    #[test]
    fn one_person_takes_no_others_place() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        store.add(&of(Some(8), "A100"), &changes(900, &[9e3; 9]));
        for model in 0..1000 {
            store.add(&of(Some(7), &model.to_string()), &changes(900, &[9e3; 9]));
        }
        assert_eq!(store.list(None).len(), KEPT_PER_PERSON + 1);
        for mhz in 1..1000 {
            store.add(&of(Some(8), "A100"), &changes(mhz, &[9e3; 9]));
        }
        assert!(store.list(Some(Uid(8)))[0].clocks.len() <= MOST_CLOCKS);
    }
}
