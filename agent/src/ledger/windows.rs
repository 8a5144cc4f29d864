//! What jobs use under plans, from one look at them to the next. Pure.
//!
//! `pfod` counts the steps of a rank under a swap from 0. How far each of these counts is in the ledger
//! is remembered by session, in the entry that it is in: what is read again, by this agent or the next
//! one, adds nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use pfo_protocol::{GpuStatus, JobView, PlanStatus, RankView, RankWindow, Uid};
use serde::{Deserialize, Serialize};

use crate::job::{JobKey, running};

/// How long what is used is collected for one entry, in seconds.
const ENTRY_S: u64 = 600;

/// How long a look at the GPUs stands for the time since the one before, in seconds, at most.
const LOOK_HOLDS_S: u64 = 30;

/// Sessions that are remembered, beside those that last.
const MOST_SESSIONS: usize = 4096;

/// What is compared with itself only: a plan of a job as it runs on its GPUs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Work {
    pub(super) uid: Uid,
    pub(super) job: String,
    /// The label of the plan.
    pub(super) plan: String,
    /// Stages, microbatches, GPUs, and what the plan predicts.
    pub(super) shape: String,
}

impl Work {
    pub(super) fn of(job: &JobView, plan: &PlanStatus) -> Self {
        Self::of_plan(job, &plan.label, plan.predicted_energy_j)
    }

    /// The same of a plan of this label that predicts so much energy of a step.
    pub(super) fn of_plan(job: &JobView, plan: &str, predicted_j: Option<f64>) -> Self {
        let microbatches = job.ranks.iter().filter_map(|rank| rank.num_microbatches).max();
        let gpus: Vec<_> = job.ranks.iter().map(|rank| rank.gpu_uuid.to_string()).collect();
        let predicted = predicted_j.map(|energy_j| format!(" {energy_j:.3} J"));
        let shape = format!(
            "{} stages, {} microbatches, {}{}",
            job.pp_degree,
            microbatches.unwrap_or_default(),
            gpus.join(" "),
            predicted.unwrap_or_default()
        );
        Self { uid: job.uid, job: job.job.to_string(), plan: plan.to_owned(), shape }
    }
}

/// How far the steps of a session are counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reached {
    pub(super) session: u64,
    pub(super) swap: u64,
    pub(super) steps: u64,
    pub(super) time_s: f64,
    pub(super) energy_j: Option<f64>,
}

/// What a job used under a plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) work: Work,
    /// The life of `pfod` that counted it.
    pub(super) run: String,
    pub(super) from_unix_s: u64,
    pub(super) until_unix_s: u64,
    /// Steps of its first rank.
    pub(super) steps: u64,
    /// The time that these took, in seconds.
    pub(super) time_s: f64,
    /// The energy of all ranks, in joules; none if one of them has no energy counter.
    pub(super) energy_j: Option<f64>,
    pub(super) heat: Heat,
    /// What was given up for a power budget: joules, and seconds at the job's own pace.
    pub(super) given_j: f64,
    pub(super) lost_s: f64,
    pub(super) reached: Vec<Reached>,
}

/// What kept the GPUs of a job from their clocks, and how hot they were, as looks at them saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Heat {
    /// For how long at least one of them was slower than anybody requested, in seconds; none
    /// without a look.
    pub(super) throttled_s: Option<f64>,
    /// The highest temperature, in degrees Celsius.
    pub(super) hottest_c: Option<u32>,
}

impl Heat {
    /// Both together.
    pub(super) fn and(self, other: Self) -> Self {
        let sum = |one: Option<f64>, more: f64| Some(one.unwrap_or_default() + more);
        Self {
            throttled_s: other.throttled_s.map_or(self.throttled_s, |s| sum(self.throttled_s, s)),
            hottest_c: self.hottest_c.max(other.hottest_c),
        }
    }
}

/// What is being collected.
#[derive(Debug, Default)]
pub(super) struct Windows {
    run: String,
    reached: BTreeMap<u64, Reached>,
    collecting: BTreeMap<JobKey, Entry>,
    /// When somebody looked at the GPUs last.
    looked_unix_s: u64,
}

impl Windows {
    /// Another life of `pfod` begins, or the same one is found again. `reached` is what the ledger knows
    /// of it. Returns what was collected of the former one.
    pub(super) fn begin(&mut self, run: String, reached: Vec<Reached>) -> Vec<Entry> {
        if run == self.run {
            return Vec::new();
        }
        let ended = self.end();
        self.run = run;
        self.reached = BTreeMap::new();
        for reached in reached {
            let known = self.reached.entry(reached.session).or_insert(reached);
            if (known.swap, known.steps) <= (reached.swap, reached.steps) {
                *known = reached;
            }
        }
        ended
    }

    /// Takes a look at all jobs. Returns the entries that are over.
    pub(super) fn see(&mut self, jobs: &[JobView], now_unix_s: u64) -> Vec<Entry> {
        let mut over = Vec::new();
        let mut present = BTreeMap::new();
        for (job, plan) in jobs.iter().filter_map(|job| Some((job, running(job)?))) {
            let (key, work) = (JobKey::of(job), Work::of(job, plan));
            if let Some(entry) = self.collecting.remove(&key) {
                let is_old = now_unix_s.abs_diff(entry.from_unix_s) >= ENTRY_S;
                if entry.work == work && !is_old {
                    present.insert(key.clone(), entry);
                } else {
                    over.push(entry);
                }
            }
            let run = self.run.clone();
            let entry = present.entry(key).or_insert_with(|| Entry::begin(work, run, now_unix_s));
            entry.until_unix_s = entry.until_unix_s.max(now_unix_s);
            for (index, rank) in job.ranks.iter().enumerate() {
                if let Some((used, now)) = self.new_of(rank) {
                    entry.add(index == 0, used, now);
                }
            }
        }
        over.extend(mem::replace(&mut self.collecting, present).into_values());
        over.retain(|entry| !entry.reached.is_empty());
        self.forget(jobs);
        over
    }

    /// Takes a look at the GPUs of all jobs. What holds now is taken to have held since the last look.
    pub(super) fn see_gpus(&mut self, jobs: &[JobView], gpus: &[GpuStatus], now_unix_s: u64) {
        let gpus: BTreeMap<_, _> = gpus.iter().map(|gpu| (&gpu.uuid, gpu)).collect();
        for job in jobs {
            let Some(entry) = self.collecting.get_mut(&JobKey::of(job)) else { continue };
            let since = self.looked_unix_s.max(entry.from_unix_s);
            let held_s = now_unix_s.saturating_sub(since).min(LOOK_HOLDS_S) as f64;
            let here = || job.ranks.iter().filter_map(|rank| gpus.get(&rank.gpu_uuid));
            if here().next().is_none() {
                continue;
            }
            let throttled = here().any(|gpu| gpu.throttle_reasons != 0);
            let hottest_c = here().filter_map(|gpu| gpu.temperature_c).max();
            let throttled_s = Some(if throttled { held_s } else { 0.0 });
            entry.heat = entry.heat.and(Heat { throttled_s, hottest_c });
        }
        self.looked_unix_s = now_unix_s;
    }

    /// Whether a job runs a plan.
    pub(super) fn is_collecting(&self) -> bool {
        !self.collecting.is_empty()
    }

    /// Takes what a job gave up for a power budget, under the plan that it runs.
    pub(super) fn give(&mut self, key: &JobKey, given_j: f64, lost_s: f64) {
        if let Some(entry) = self.collecting.get_mut(key) {
            entry.given_j += given_j;
            entry.lost_s += lost_s;
        }
    }

    /// What is being collected.
    pub(super) fn collecting(&self) -> impl Iterator<Item = &Entry> {
        self.collecting.values().filter(|entry| !entry.reached.is_empty())
    }

    /// What was collected so far, whether it is over or not.
    pub(super) fn end(&mut self) -> Vec<Entry> {
        let ended = mem::take(&mut self.collecting).into_values();
        ended.filter(|entry| !entry.reached.is_empty()).collect()
    }

    /// What a rank has used since it was counted last, and how far it is counted now.
    fn new_of(&mut self, rank: &RankView) -> Option<(RankWindow, Reached)> {
        let window = rank.window?;
        let (session, swap) = (rank.session.0, rank.swap);
        let RankWindow { steps, time_s, energy_j } = window;
        let now = Reached { session, swap, steps, time_s, energy_j };
        let nothing = Reached { steps: 0, time_s: 0.0, energy_j: Some(0.0), ..now };
        let before = match self.reached.get(&session) {
            Some(before) if before.swap > swap => return None,
            Some(before) if before.swap == swap => *before,
            _ => nothing,
        };
        let steps = steps.checked_sub(before.steps).filter(|steps| *steps > 0)?;
        let energy_j = energy_j.zip(before.energy_j).map(|(now_j, before_j)| now_j - before_j);
        self.reached.insert(session, now);
        Some((RankWindow { steps, time_s: time_s - before.time_s, energy_j }, now))
    }

    /// A session that has ended is never seen again: the oldest ones of these are forgotten.
    fn forget(&mut self, jobs: &[JobView]) {
        let excess = self.reached.len().saturating_sub(MOST_SESSIONS);
        if excess == 0 {
            return;
        }
        let ranks = jobs.iter().flat_map(|job| &job.ranks);
        let living: BTreeSet<u64> = ranks.map(|rank| rank.session.0).collect();
        let ended = self.reached.keys().filter(|session| !living.contains(session));
        for session in ended.take(excess).copied().collect::<Vec<_>>() {
            self.reached.remove(&session);
        }
    }
}

impl Entry {
    pub(super) fn begin(work: Work, run: String, now_unix_s: u64) -> Self {
        let (from_unix_s, until_unix_s) = (now_unix_s, now_unix_s);
        let (steps, time_s, energy_j, reached) = (0, 0.0, Some(0.0), Vec::new());
        let (heat, given_j, lost_s) = (Heat::default(), 0.0, 0.0);
        Self {
            work,
            run,
            from_unix_s,
            until_unix_s,
            steps,
            time_s,
            energy_j,
            heat,
            given_j,
            lost_s,
            reached,
        }
    }

    fn add(&mut self, is_first: bool, used: RankWindow, now: Reached) {
        if is_first {
            self.steps = self.steps.saturating_add(used.steps);
            self.time_s += used.time_s;
        }
        self.energy_j = self.energy_j.zip(used.energy_j).map(|(sum_j, new_j)| sum_j + new_j);
        self.reached.retain(|reached| reached.session != now.session);
        self.reached.push(now);
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::DriverUse;
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::example::example as job;

    fn gpu(job: &JobView, throttle_reasons: u64, temperature_c: Option<u32>) -> GpuStatus {
        GpuStatus {
            index: 0,
            uuid: job.ranks[0].gpu_uuid.clone(),
            pci_bus_id: "00000000:01:00.0".parse().unwrap(),
            model: "A40".into(),
            mig: false,
            requested_mhz: None,
            observed_mhz: None,
            memory_locked_mhz: None,
            power_w: None,
            power_limit_w: None,
            holder: None,
            problem: None,
            leased: true,
            driver_use: DriverUse::default(),
            throttle_reasons,
            temperature_c,
            minor: None,
            meter: None,
        }
    }

    #[test]
    fn a_look_at_the_gpus_holds_since_the_one_before_and_no_longer_than_half_a_minute() {
        let mut windows = begun("a", vec![]);
        let run = |steps| job("p", 1, 7, steps);
        windows.see(&[run(1)], 100);
        let mut see = |now_unix_s, reasons, temperature_c| {
            windows.see(&[run(now_unix_s)], now_unix_s);
            windows.see_gpus(
                &[run(now_unix_s)],
                &[gpu(&run(1), reasons, temperature_c)],
                now_unix_s,
            );
            windows.collecting().next().unwrap().heat
        };
        let heat = |s, hottest_c| Heat { throttled_s: Some(s), hottest_c };
        assert_eq!(see(104, 0, None), heat(0.0, None));
        assert_eq!(see(110, 8, Some(70)), heat(6.0, Some(70)));
        assert_eq!(see(120, 0, Some(60)), heat(6.0, Some(70)));
        assert_eq!(see(400, 8, Some(71)), heat(36.0, Some(71)), "nobody looked for minutes");
    }

    #[test]
    fn where_nobody_looks_at_the_gpus_nothing_is_known_of_their_heat() {
        let mut windows = begun("a", vec![]);
        windows.see(&[job("p", 1, 7, 1)], 100);
        let other = GpuStatus {
            uuid: "GPU-other".parse().unwrap(),
            ..gpu(&job("p", 1, 7, 1), 8, Some(90))
        };
        windows.see_gpus(&[job("p", 1, 7, 2)], &[other], 110);
        assert_eq!(windows.collecting().next().unwrap().heat, Heat::default());
    }

    fn begun(run: &str, reached: Vec<Reached>) -> Windows {
        let mut windows = Windows::default();
        windows.begin(run.into(), reached);
        windows
    }

    fn total_j(entries: &[Entry]) -> f64 {
        entries.iter().filter_map(|entry| entry.energy_j).sum()
    }

    #[test]
    fn looks_at_the_same_window_add_up_to_it() {
        let mut windows = begun("r", Vec::new());
        for (now, steps) in [(0, 5), (1, 5), (2, 9), (3, 7)] {
            assert_eq!(windows.see(&[job("p", 1, 7, steps)], now), []);
        }
        let [entry] = &windows.end()[..] else { panic!() };
        assert_eq!((entry.steps, entry.time_s, entry.energy_j), (9, 9.0, Some(180.0)));
        assert_eq!((entry.from_unix_s, entry.until_unix_s), (0, 3));
        assert_eq!(windows.end(), []);
    }

    #[test]
    fn a_session_that_lasts_is_counted_once_however_many_come_and_go() {
        let (mut windows, mut written) = (begun("r", Vec::new()), Vec::new());
        let lasting = job("p", 1, 1, 5);
        for session in (10..).step_by(2).take(MOST_SESSIONS) {
            let mut passing = job("p", 1, session, 1);
            passing.uid.0 += 1;
            written.extend(windows.see(&[lasting.clone(), passing], session));
        }
        assert!(windows.reached.len() <= MOST_SESSIONS);
        written.extend(windows.end());
        let lasting = written.iter().filter(|entry| entry.work.uid == lasting.uid);
        assert_eq!(lasting.map(|entry| entry.steps).sum::<u64>(), 5);
    }

    #[test]
    fn an_entry_ends_with_its_plan_its_job_or_its_time() {
        let mut windows = begun("r", Vec::new());
        windows.see(&[job("p", 1, 7, 5)], 0);
        assert_eq!(windows.see(&[job("p", 1, 7, 6)], ENTRY_S)[0].steps, 5);
        assert_eq!(windows.see(&[job("q", 2, 7, 1)], ENTRY_S + 1)[0].steps, 1);
        assert_eq!(windows.see(&[], ENTRY_S + 2)[0].work.plan, "q");
    }

    #[test]
    fn what_is_measured_suspended_or_at_default_clocks_is_left_out() {
        let mut windows = begun("r", Vec::new());
        let mut suspended = job("p", 1, 7, 5);
        suspended.plan.as_mut().unwrap().suspended = Some("why".into());
        let mut changing = job("p", 2, 7, 5);
        changing.ranks[0].swap = 1;
        let default = JobView { plan: None, ..job("p", 1, 7, 5) };
        windows.see(&[suspended, changing, default], 0);
        assert_eq!(windows.end(), []);
    }

    #[test]
    fn a_rank_without_an_energy_counter_leaves_steps_without_energy() {
        let mut windows = begun("r", Vec::new());
        let mut without = job("p", 1, 7, 5);
        without.ranks[1].window.as_mut().unwrap().energy_j = None;
        windows.see(&[without], 0);
        assert_eq!((windows.end()[0].steps, windows.end().len()), (5, 0));
    }

    proptest! {
        /// The steps of a job in rounds: steps until the look, what happens after it.
        #[test]
        fn no_joule_is_counted_twice_whatever_is_read_again_and_whoever_restarts(
            rounds in prop::collection::vec((0_u64..50, 0_u8..8), 1..60)
        ) {
            let (mut run, mut swap, mut session, mut steps) = (0, 1, 10, 0);
            let (mut true_steps, mut written) = (0, Vec::<Entry>::new());
            let mut windows = begun("0", Vec::new());
            let mut older = Vec::new();
            for (now, (more, event)) in (0..).step_by(100).zip(rounds) {
                steps += more;
                true_steps += more;
                let jobs = [job("p", swap, session, steps)];
                written.extend(windows.see(&jobs, now));
                older.extend(jobs);
                match event {
                    // The same look again, and earlier ones of this life of `pfod`.
                    0 => {
                        let replayed = older.clone();
                        for old in replayed {
                            written.extend(windows.see(&[old], now));
                        }
                    }
                    // The agent ends in order, or is killed: the next one knows what is written.
                    1 | 2 => {
                        if event == 1 {
                            written.extend(windows.end());
                        }
                        let reached = written.iter().filter(|entry| entry.run == run.to_string());
                        let reached = reached.flat_map(|entry| entry.reached.clone()).collect();
                        windows = begun(&run.to_string(), reached);
                    }
                    // Another swap, as after each comparison.
                    3 => (swap, steps) = (swap + 1, 0),
                    // The trainer begins again.
                    4 => (swap, steps, session) = (1, 0, session + 2),
                    // Another life of `pfod`, with the same sessions and swaps.
                    5 => {
                        (run, steps) = (run + 1, 0);
                        older.clear();
                        written.extend(windows.begin(run.to_string(), Vec::new()));
                    }
                    6 => written.extend(windows.begin(run.to_string(), Vec::new())),
                    _ => {}
                }
            }
            written.extend(windows.end());
            let counted: u64 = written.iter().map(|entry| entry.steps).sum();
            prop_assert!(counted <= true_steps, "{counted} of {true_steps}");
            prop_assert!((total_j(&written) - 20.0 * counted as f64).abs() < 1e-6);
        }

        #[test]
        fn nothing_is_lost_while_no_swap_is_between_a_kill_and_the_next_look(
            rounds in prop::collection::vec((0_u64..50, any::<bool>()), 1..60)
        ) {
            let (mut steps, mut written) = (0, Vec::<Entry>::new());
            let mut windows = begun("0", Vec::new());
            for (now, (more, killed)) in (0..).step_by(300).zip(rounds) {
                steps += more;
                written.extend(windows.see(&[job("p", 1, 10, steps)], now));
                if killed {
                    let reached = written.iter().flat_map(|entry| entry.reached.clone()).collect();
                    windows = begun("0", reached);
                }
            }
            written.extend(windows.see(&[job("p", 1, 10, steps)], 1 << 40));
            written.extend(windows.end());
            prop_assert_eq!(written.iter().map(|entry| entry.steps).sum::<u64>(), steps);
        }
    }
}
