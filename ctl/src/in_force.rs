//! Whether the driver has done what a job's plan says: a swap that every rank has taken up need not be in
//! force on every GPU.

use std::collections::BTreeMap;
use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_experiment::{Asked, Looks, SET_WITHIN, is_above_lock};
use pfo_protocol::{GpuStatus, JobStatus, Rank, RankStatus, Status};

use crate::arguments::JobArguments;
use crate::daemons::{Connection, ConnectionError, Pfod};

/// For how long GPUs are looked at that do not show their lock yet, and how often. The slowest set calls
/// known take a tenth of a second, and a clock settles in another.
const LOOKED_AT_FOR: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

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
        let astray = gpu.filter(|gpu| is_above_lock(gpu));
        let problem = rank.problem.as_ref().or_else(|| astray?.problem.as_ref()).cloned();
        let (rank, gpu) = (rank.rank, gpu.map(|gpu| gpu.index));
        suspended.or(problem).map(|why| NotInForce { rank, gpu, why })
    };
    job.ranks.iter().filter_map(of_rank).collect()
}

/// Looks at a job after a swap until every GPU has shown its lock, or is known to have none.
///
/// # Errors
/// If `pfod` does not answer.
pub(crate) fn look(
    pfod: &mut Connection<Pfod>,
    job: &JobArguments,
) -> Result<Vec<NotInForce>, ConnectionError> {
    sleep(SET_WITHIN);
    let began = Instant::now();
    let mut looks = BTreeMap::new();
    loop {
        let status = pfod.status()?;
        let Some(found) = job.find(&status.jobs) else { return Ok(Vec::new()) };
        let missing = known(found, &status.gpus);
        add(&mut looks, found, &status);
        let is_clear = |(rank, looks): (&Rank, &Looks)| {
            looks.is_held() || missing.iter().any(|missing| missing.rank == *rank)
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
            of_rank.add(Asked::by(job.plan.as_ref(), rank.stage), gpu);
        }
    }
}

/// The ranks whose GPU has not shown in all of that time what is asked of it, and why, as far as that is
/// known.
fn not_shown(
    looks: &BTreeMap<Rank, Looks>,
    job: &JobStatus,
    gpus: &[GpuStatus],
) -> Vec<NotInForce> {
    let of_rank = |rank: &RankStatus| {
        let looks = looks.get(&rank.rank).filter(|looks| !looks.is_held())?;
        let gpu = gpu_of(rank, gpus)?;
        let missing = || looks.missing(Asked::by(job.plan.as_ref(), rank.stage), gpu);
        let why = rank.problem.clone().or_else(|| gpu.problem.clone()).or_else(missing)?;
        Some(NotInForce { rank: rank.rank, gpu: Some(gpu.index), why })
    };
    job.ranks.iter().filter_map(of_rank).collect()
}

#[cfg(test)]
mod tests {
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
}
