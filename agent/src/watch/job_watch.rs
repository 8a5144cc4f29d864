//! Watches jobs that run plans: tells which ranks are slow by themselves and what has moved away from the
//! prediction, and answers slow ranks where that was asked for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{DriftStatus, DriftedRank, RefusalCode};

use crate::deviation::{Limit, Turn};
use crate::drift::{Drift, Predicted};
use crate::fit::JobPlan;
use crate::job::{Job, JobKey, Members};
use crate::journal;
use crate::look_while_leased::look_while_leased;
use crate::node::Node;
use crate::rank_reading::{RankReading, whole_pipelines};
use crate::slow_ranks::SlowRanks;
use crate::straggler::SlowStages;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches for as long as the daemon runs.
pub(crate) async fn watch_jobs(node: Arc<Node>) {
    look_while_leased(node, LOOK_EVERY, Watches::new(), look).await;
}

type Watches = HashMap<JobKey, Watch>;

/// What was seen of a job.
#[derive(Default)]
struct Watch {
    slow: SlowRanks,
    drift: Drift,
    drifted: bool,
    /// The slow stages that were answered or left alone, and the swap that the job ran then.
    decided: Option<(SlowStages, u64)>,
}

fn look(node: &Node, mut watches: Watches) -> Watches {
    let settings = node.settings();
    let watch = &settings.config.watch;
    let share = |percent: u32| f64::from(percent) / 100.0;
    let steps = watch.steps.get();
    let slow = Limit { share: share(watch.slow_percent.get()), steps };
    let drift = Limit { share: share(watch.drift_percent.get()), steps };
    let jobs = node.jobs.all();
    watches.retain(|key, _| jobs.iter().any(|job| job.key == *key));
    for job in jobs {
        let watch = watches.remove(&job.key);
        if let Some(watch) = look_at(&job, watch, slow, drift) {
            watches.insert(job.key.clone(), answer(node, &job, watch));
        }
    }
    watches
}

/// None if the job runs no plan, or only to be measured.
fn look_at(job: &Job, watch: Option<Watch>, slow: Limit, drift: Limit) -> Option<Watch> {
    let mut members = job.members();
    let is_held = members.measured_by.is_some();
    let plan = members.current().filter(|plan| !is_held && !plan.is_suspended()).cloned();
    let Some(plan) = plan else {
        members.slow.clear();
        members.drift = None;
        return None;
    };
    let readings: Vec<_> = members.ranks.values().filter_map(RankReading::of).collect();
    let mut watch = watch.unwrap_or_else(|| {
        let found = members.straggler.as_ref().map(|answered| &answered.found);
        let slow = found.map(|found| SlowRanks::again(&readings, found));
        Watch { slow: slow.unwrap_or_default(), ..Watch::default() }
    });
    for (rank, turn) in watch.slow.look(&readings, slow) {
        tell_of_rank(job, &members, rank, turn);
    }
    members.slow = watch.slow.ranks();
    let drifted = predicted(&plan, &members, job.pp_degree)
        .map_or(Some(None), |predicted| watch.drift.look(&readings, predicted, drift));
    if let Some(drifted) = drifted {
        if let Some(drift) = &drifted
            && !watch.drifted
        {
            tell_of_drift(job, &members, &plan, drift);
        }
        watch.drifted = drifted.is_some();
        members.drift = drifted;
    }
    Some(watch)
}

fn predicted(plan: &JobPlan, members: &Members, stages: u32) -> Option<Predicted> {
    let status = plan.status();
    let (time_s, energy_j) = status.predicted_time_s.zip(status.predicted_energy_j)?;
    let pipelines = whole_pipelines(members, stages);
    Some(Predicted { time_s, energy_j: pipelines.map(|pipelines| pipelines * energy_j) })
}

fn tell_of_rank(job: &Job, members: &Members, rank: u32, turn: Turn) {
    let Some(member) = members.ranks.get(&rank) else { return };
    let (holder, gpu_uuid) = (&member.session.holder, &member.gpu.uuid);
    let (name, uid, pid) = (&job.key.name, holder.uid, holder.pid);
    match turn {
        Turn::Begun(share) | Turn::Changed(share) => tracing::warn!(
            name: journal::SLOW,
            job = %name, rank, uid, pid, %gpu_uuid,
            "its instructions take {:.1} % longer than was profiled", 100.0 * share
        ),
        Turn::Over => tracing::info!(
            name: journal::SLOW_OVER,
            job = %name, rank, uid, pid, %gpu_uuid,
            "its instructions take as long again as was profiled"
        ),
    }
}

fn tell_of_drift(job: &Job, members: &Members, plan: &JobPlan, drift: &DriftStatus) {
    let energy = drift
        .energy
        .map_or_else(String::new, |energy| format!(", their energy by {:+.1} %", 100.0 * energy));
    let instructions = drift.instructions.iter().map(|drifted| {
        let (stage, instruction) = (drifted.stage, drifted.instruction);
        format!("; {instruction} of stage {stage} by {:+.1} %", 100.0 * drifted.time)
    });
    let ranks = drift.ranks.iter().filter_map(|DriftedRank { rank, energy }| {
        let uuid = &members.ranks.get(rank)?.gpu.uuid;
        Some(format!("; the energy of rank {rank} on GPU {uuid} by {:+.1} %", 100.0 * energy))
    });
    tracing::warn!(
        name: journal::DRIFTED,
        job = %job.key.name, uid = job.key.uid, plan = plan.number,
        "the time of steps is off the prediction by {:+.1} %{energy}{}",
        100.0 * drift.time,
        instructions.chain(ranks).collect::<String>()
    );
}

/// Answers what has changed about slow stages, if it was not answered already.
fn answer(node: &Node, job: &Job, watch: Watch) -> Watch {
    let (slow, swap) = {
        let members = job.members();
        let slow = if members.auto { watch.slow.stages() } else { SlowStages::new() };
        let answered = members.straggler.as_ref().map(|answered| &answered.found);
        if answered.cloned().unwrap_or_default() == slow {
            return watch;
        }
        (slow, members.swaps.back().map_or(0, |swap| swap.number))
    };
    if watch.decided.as_ref() == Some(&(slow.clone(), swap)) {
        return watch;
    }
    match job.answer_slow_stages(&slow) {
        Ok(Some(swap)) => {
            node.jobs.keep(job);
            tracing::info!(
                name: journal::SWAPPED,
                uid = nix::unistd::getuid().as_raw(), pid = std::process::id(), job = %job.key.name,
                plan = swap.plan.as_ref().map_or(0, |plan| plan.number),
                "swap at step {}, as {} stages are slow", swap.step(), slow.len()
            );
        }
        Ok(None) => {}
        // Its ranks are just changing to something else.
        Err(refusal) if refusal.code == RefusalCode::LimitReached => return watch,
        Err(refusal) => tracing::warn!(
            job = %job.key.name, uid = job.key.uid, "cannot answer slow stages: {refusal}"
        ),
    }
    Watch { decided: Some((slow, swap)), ..watch }
}
