//! Whether the driver has done what a job's plan says: a swap that every rank has taken up need not be in
//! force on every GPU.

use std::collections::BTreeMap;
use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::{GpuStatus, JobStatus, Mhz, Rank, RankStatus, Status};

use crate::arguments::JobArguments;
use crate::daemons::{Connection, ConnectionError, Pfod};

/// For how long GPUs are looked at that do not show their lock yet, and how often. The slowest set calls
/// known take a tenth of a second, and a clock settles in another.
const LOOKED_AT_FOR: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Looks at a GPU above its lock that are no chance: it may settle, or change its clock, during one.
const SURE: u32 = 10;

/// A lock holds if the GPU is this little above it: further than the clocks of any model are apart, in MHz.
const NEAR_MHZ: u32 = 30;

/// A rank whose GPU does not run what its plan says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotInForce {
    pub(crate) rank: Rank,
    /// The driver's index of its GPU.
    gpu: Option<u32>,
    why: String,
}

impl fmt::Display for NotInForce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, gpu, why } = self;
        match gpu {
            Some(gpu) => write!(formatter, "rank {rank} (GPU {gpu}): {why}"),
            None => write!(formatter, "rank {rank}: {why}"),
        }
    }
}

fn gpu_of<'a>(rank: &RankStatus, gpus: &'a [GpuStatus]) -> Option<&'a GpuStatus> {
    gpus.iter().find(|gpu| gpu.uuid == rank.gpu_uuid)
}

/// The ranks of which `pfod` knows that their plan is not in force.
pub(crate) fn known(job: &JobStatus, gpus: &[GpuStatus]) -> Vec<NotInForce> {
    let Some(plan) = &job.plan else { return Vec::new() };
    let of_rank = |rank: &RankStatus| {
        let gpu = gpu_of(rank, gpus);
        let suspended = plan.suspended.as_ref().map(|why| format!("the plan is suspended: {why}"));
        // One that is below its lock is held back, and does no less than its plan says.
        let astray = gpu.filter(|gpu| is_above(gpu.requested_mhz, gpu.observed_mhz));
        let problem = rank.problem.as_ref().or_else(|| astray?.problem.as_ref()).cloned();
        let (rank, gpu) = (rank.rank, gpu.map(|gpu| gpu.index));
        suspended.or(problem).map(|why| NotInForce { rank, gpu, why })
    };
    job.ranks.iter().filter_map(of_rank).collect()
}

/// Whether a GPU runs above its lock.
fn is_above(requested: Option<Mhz>, observed: Option<Mhz>) -> bool {
    requested.zip(observed).is_some_and(|(lock, now)| now.0 > lock.0.saturating_add(NEAR_MHZ))
}

/// What the looks at a GPU have shown.
#[derive(Clone, Copy, Default)]
struct Looks {
    above: u32,
    is_held: bool,
}

impl Looks {
    fn add(&mut self, requested: Option<Mhz>, observed: Option<Mhz>) {
        // Nothing is locked yet, or the plan locks nothing.
        if requested.is_none() {
            return;
        }
        match is_above(requested, observed) {
            true => self.above += 1,
            false => self.is_held = true,
        }
    }

    /// Whether the lock was accepted and is ignored.
    fn is_ignored(self) -> bool {
        !self.is_held && self.above >= SURE
    }
}

/// Looks at a job after a swap until every GPU has shown its lock, or is known to have none.
///
/// # Errors
/// If `pfod` does not answer.
pub(crate) fn look(
    pfod: &mut Connection<Pfod>,
    job: &JobArguments,
) -> Result<Vec<NotInForce>, ConnectionError> {
    let began = Instant::now();
    let mut looks = BTreeMap::new();
    loop {
        let status = pfod.status()?;
        let Some(found) = job.find(&status.jobs) else { return Ok(Vec::new()) };
        let missing = known(found, &status.gpus);
        add(&mut looks, found, &status);
        let is_clear = |(rank, looks): (&Rank, &Looks)| {
            looks.is_held || missing.iter().any(|missing| missing.rank == *rank)
        };
        if looks.iter().all(is_clear) {
            return Ok(missing);
        }
        if began.elapsed() > LOOKED_AT_FOR {
            let is_new = |other: &NotInForce| missing.iter().all(|one| one.rank != other.rank);
            let others = not_shown(&looks, found, &status.gpus);
            let others: Vec<_> = others.into_iter().filter(is_new).collect();
            let mut all = [missing, others].concat();
            all.sort_by_key(|one| one.rank);
            return Ok(all);
        }
        sleep(LOOK_EVERY);
    }
}

fn add(looks: &mut BTreeMap<Rank, Looks>, job: &JobStatus, status: &Status) {
    for rank in &job.ranks {
        let of_rank = looks.entry(rank.rank).or_default();
        if let Some(gpu) = gpu_of(rank, &status.gpus) {
            match (&job.plan, limit_of(job, rank)) {
                // Default clocks are in force when the lock is gone.
                (None, _) => of_rank.is_held |= gpu.requested_mhz.is_none(),
                (Some(_), Some(limit_w)) => of_rank.is_held |= is_limited_to(gpu, limit_w),
                (Some(_), None) => of_rank.add(gpu.requested_mhz, gpu.observed_mhz),
            }
        }
    }
}

/// The power limit that a job's plan has for a rank.
fn limit_of(job: &JobStatus, rank: &RankStatus) -> Option<u32> {
    job.plan.as_ref()?.power_limits_w.get(usize::from(rank.stage.0)).copied()
}

/// Whether `pfod` has set this limit, in watts, or a lower one that a budget needs.
fn is_limited_to(gpu: &GpuStatus, limit_w: u32) -> bool {
    gpu.power_limit_w.is_some_and(|now_w| now_w <= limit_w)
}

/// The ranks whose GPU has shown no lock in all of that time, and why, as far as that is known.
fn not_shown(
    looks: &BTreeMap<Rank, Looks>,
    job: &JobStatus,
    gpus: &[GpuStatus],
) -> Vec<NotInForce> {
    let of_rank = |rank: &RankStatus| {
        let looks = looks.get(&rank.rank).filter(|looks| !looks.is_held)?;
        let gpu = gpu_of(rank, gpus)?;
        let stays = || match (&job.plan, limit_of(job, rank), gpu.requested_mhz) {
            (None, _, Some(lock)) => Some(format!("it is still locked to {lock}")),
            (Some(_), Some(limit_w), _) => {
                Some(format!("its power limit of {limit_w} W is not set"))
            }
            (Some(_), None, Some(lock)) if looks.is_ignored() => gpu.observed_mhz.map(|now| {
                format!(
                    "it runs at {now} although pfod has locked {lock}: another program has set its \
                     clock, or the driver ignores the lock"
                )
            }),
            _ => None,
        };
        let why = rank.problem.clone().or_else(|| gpu.problem.clone()).or_else(stays)?;
        Some(NotInForce { rank: rank.rank, gpu: Some(gpu.index), why })
    };
    job.ranks.iter().filter_map(of_rank).collect()
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Stage;

    use super::*;

    fn status() -> Status {
        serde_json::from_str(include_str!("../tests/golden/status.json")).unwrap()
    }

    #[test]
    fn a_rank_with_a_problem_is_named_with_its_gpu_and_one_at_default_clocks_is_not() {
        let Status { gpus, jobs, .. } = status();
        let mut job = jobs.into_iter().find(|job| job.plan.is_some()).unwrap();
        for rank in &mut job.ranks {
            (rank.problem, rank.gpu_uuid) = (None, gpus[0].uuid.clone());
        }
        job.plan.as_mut().unwrap().suspended = None;
        let mut gpus = gpus;
        gpus[0].problem = None;
        assert_eq!(known(&job, &gpus), []);
        job.ranks[0].problem = Some("locking failed".to_owned());
        let said: Vec<_> = known(&job, &gpus).iter().map(ToString::to_string).collect();
        assert_eq!(said, [format!("rank {} (GPU 0): locking failed", job.ranks[0].rank)]);
        job.plan = None;
        assert_eq!(known(&job, &gpus), []);
    }

    #[test]
    fn a_power_limit_that_is_not_set_and_a_lock_that_stays_are_named() {
        let mut status = status();
        let mut job = status.jobs.into_iter().find(|job| job.plan.is_some()).unwrap();
        status.jobs = Vec::new();
        for (rank, gpu) in job.ranks.iter_mut().zip(&mut status.gpus) {
            (rank.problem, rank.gpu_uuid, rank.stage) = (None, gpu.uuid.clone(), Stage(0));
            (gpu.problem, gpu.requested_mhz, gpu.power_limit_w) = (None, None, None);
        }
        job.ranks.truncate(1);
        let said = |job: &JobStatus, status: &Status| {
            let mut looks = BTreeMap::new();
            add(&mut looks, job, status);
            let not_shown = not_shown(&looks, job, &status.gpus);
            not_shown.into_iter().map(|one| one.why).collect::<Vec<_>>()
        };
        let mut plan = job.plan.clone().unwrap();
        plan.power_limits_w = vec![150];
        job.plan = Some(plan);
        assert_eq!(said(&job, &status), ["its power limit of 150 W is not set"]);
        status.gpus[0].power_limit_w = Some(200);
        assert_eq!(said(&job, &status), ["its power limit of 150 W is not set"]);
        // A budget needs less.
        status.gpus[0].power_limit_w = Some(140);
        assert_eq!(said(&job, &status), [""; 0]);
        job.plan = None;
        assert_eq!(said(&job, &status), [""; 0]);
        status.gpus[0].requested_mhz = Some(Mhz(900));
        assert_eq!(said(&job, &status), ["it is still locked to 900 MHz"]);
    }

    #[test]
    fn a_lock_is_ignored_only_if_no_look_has_shown_it() {
        let looks = |observed: &[u32]| {
            let mut looks = Looks::default();
            observed.iter().for_each(|now| looks.add(Some(Mhz(900)), Some(Mhz(*now))));
            looks.is_ignored()
        };
        assert!(looks(&[1410; SURE as usize]));
        assert!(!looks(&[1410; SURE as usize - 1]), "it may be settling");
        let held = [[1410; SURE as usize].as_slice(), &[930]].concat();
        assert!(!looks(&held));
    }
}
