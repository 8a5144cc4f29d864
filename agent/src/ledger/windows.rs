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

/// What a job used under a plan, for the ledger.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) work: Work,
    /// The life of `pfod` that counted it.
    pub(super) run: String,
    pub(super) used: Measured,
    pub(super) reached: Vec<Reached>,
}

/// What one entry measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
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
    /// The partition of the scheduler that the job was seen in first.
    pub(super) partition: Option<String>,
    /// The models of its GPUs, once they were looked at.
    pub(super) model: Option<String>,
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
    /// The newest swap of each job when it was seen last in a trial.
    tried: BTreeMap<JobKey, u64>,
    /// The jobs whose plan was not in force on a rank at the last look.
    refused: BTreeSet<JobKey>,
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
        let is_refused = |job: &&JobView| job.ranks.iter().any(|rank| rank.problem.is_some());
        let refused = jobs.iter().filter(is_refused).map(JobKey::of).collect();
        let before = mem::replace(&mut self.refused, refused);
        jobs.iter().filter(|job| job.measured_by.is_some()).for_each(|job| self.try_out(job));
        for (job, plan) in jobs.iter().filter_map(|job| Some((job, running(job)?))) {
            let (key, work) = (JobKey::of(job), Work::of(job, plan));
            if let Some(entry) = self.collecting.remove(&key) {
                let is_old = now_unix_s.abs_diff(entry.used.from_unix_s) >= ENTRY_S;
                if entry.work == work && !is_old {
                    present.insert(key.clone(), entry);
                } else {
                    over.push(entry);
                }
            }
            let run = self.run.clone();
            let entry =
                present.entry(key.clone()).or_insert_with(|| Entry::begin(work, run, now_unix_s));
            entry.used.until_unix_s = entry.used.until_unix_s.max(now_unix_s);
            let counts = !before.contains(&key) && !self.refused.contains(&key);
            for (index, rank) in job.ranks.iter().enumerate() {
                if let Some((used, now)) = self.new_of(rank) {
                    entry.reach(now);
                    if counts {
                        entry.add(index == 0, used);
                    }
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
            let since = self.looked_unix_s.max(entry.used.from_unix_s);
            let held_s = now_unix_s.saturating_sub(since).min(LOOK_HOLDS_S) as f64;
            let here = || job.ranks.iter().filter_map(|rank| gpus.get(&rank.gpu_uuid));
            if here().next().is_none() {
                continue;
            }
            let throttled = here().any(|gpu| gpu.throttle_reasons != 0);
            let hottest_c = here().filter_map(|gpu| gpu.temperature_c).max();
            let throttled_s = Some(if throttled { held_s } else { 0.0 });
            entry.used.heat = entry.used.heat.and(Heat { throttled_s, hottest_c });
            if entry.used.model.is_none() {
                let models: BTreeSet<_> = here().map(|gpu| gpu.model.as_str()).collect();
                entry.used.model = Some(models.into_iter().collect::<Vec<_>>().join(", "));
            }
        }
        self.looked_unix_s = now_unix_s;
    }

    /// Takes in which partition of the scheduler jobs are, as far as that is known.
    pub(super) fn see_partitions(
        &mut self,
        jobs: &[JobView],
        partition_of: impl Fn(&JobView) -> Option<String>,
    ) {
        for job in jobs {
            let entry = self.collecting.get_mut(&JobKey::of(job));
            if let Some(entry) = entry.filter(|entry| entry.used.partition.is_none()) {
                entry.used.partition = partition_of(job);
            }
        }
    }

    /// Takes note of a trial: what the job runs now does not count.
    pub(super) fn try_out(&mut self, job: &JobView) {
        if self.tried.len() > MOST_SESSIONS {
            self.tried.clear();
        }
        self.tried.insert(JobKey::of(job), job.swap);
    }

    /// Whether what a job runs counts while another swap waits: some of its steps do, or it is no trial.
    pub(super) fn counts(&self, job: &JobView) -> bool {
        let swap = |rank: &RankView| self.reached.get(&rank.session.0).map(|reached| reached.swap);
        let tried = self.tried.get(&JobKey::of(job));
        job.ranks.iter().all(|rank| swap(rank) == Some(rank.swap) || tried != Some(&rank.swap))
    }

    /// Whether a job runs a plan.
    pub(super) fn is_collecting(&self) -> bool {
        !self.collecting.is_empty()
    }

    /// Takes what a job gave up for a power budget, under the plan that it runs.
    pub(super) fn give(&mut self, key: &JobKey, given_j: f64, lost_s: f64) {
        if let Some(entry) = self.collecting.get_mut(key) {
            entry.used.given_j += given_j;
            entry.used.lost_s += lost_s;
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
        let (from_unix_s, until_unix_s, energy_j) = (now_unix_s, now_unix_s, Some(0.0));
        let used = Measured { from_unix_s, until_unix_s, energy_j, ..Measured::default() };
        Self { work, run, used, reached: Vec::new() }
    }

    fn add(&mut self, is_first: bool, new: RankWindow) {
        let used = &mut self.used;
        if is_first {
            used.steps = used.steps.saturating_add(new.steps);
            used.time_s += new.time_s;
        }
        used.energy_j = used.energy_j.zip(new.energy_j).map(|(sum_j, new_j)| sum_j + new_j);
    }

    /// So far the steps of a session are counted, or left out.
    fn reach(&mut self, now: Reached) {
        self.reached.retain(|reached| reached.session != now.session);
        self.reached.push(now);
    }
}

#[cfg(test)]
mod tests;
