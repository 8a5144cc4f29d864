//! What the journal says of watched jobs.

use pfo_protocol::{DriftStatus, DriftedRank, JobView, Rank};

use crate::job::JobKey;
use crate::journal;
use crate::steer::Swapped;
use crate::watch::deviation::Turn;

/// A rank has become slow, slower, or is not slow any more, beside its profile.
pub(super) fn slow_rank(job: &JobView, rank: Rank, turn: Turn) {
    slow(job, rank, turn, ["was profiled", "the profile"]);
}

/// The same beside the other replicas.
pub(super) fn slow_replica(job: &JobView, rank: Rank, turn: Turn) {
    slow(job, rank, turn, ["those of other replicas", "those of other replicas"]);
}

fn slow(job: &JobView, rank: Rank, turn: Turn, [than, with]: [&str; 2]) {
    let Some(view) = job.ranks.iter().find(|view| view.position.rank == rank) else { return };
    let (key, gpu_uuid) = (JobKey::of(job), &view.gpu_uuid);
    match turn {
        Turn::Begun(share) | Turn::Changed(share) => tracing::warn!(
            name: journal::SLOW,
            job = %key.name, uid = key.uid.0, rank = rank.0, %gpu_uuid,
            "the instructions of rank {rank} of {key} on GPU {gpu_uuid} take {:.1} % longer than \
             {than}",
            100.0 * share
        ),
        Turn::Over => tracing::info!(
            name: journal::SLOW_OVER,
            job = %key.name, uid = key.uid.0, rank = rank.0, %gpu_uuid,
            "the instruction times of rank {rank} of {key} on GPU {gpu_uuid} match {with} \
             again"
        ),
    }
}

/// What a job measures has moved from the prediction.
pub(super) fn drift(job: &JobView, drift: &DriftStatus) {
    let key = JobKey::of(job);
    let plan = job.plan.as_ref().map_or(0, |plan| plan.number);
    let energy = drift
        .energy
        .map_or_else(String::new, |energy| format!(", step energy by {:+.1} %", 100.0 * energy));
    let instructions = drift.instructions.iter().map(|drifted| {
        let (stage, instruction) = (drifted.stage, drifted.instruction);
        format!("; {instruction} of stage {stage} by {:+.1} %", 100.0 * drifted.time)
    });
    let ranks = drift.ranks.iter().filter_map(|DriftedRank { rank, energy }| {
        let view = job.ranks.iter().find(|view| view.position.rank == *rank)?;
        let uuid = &view.gpu_uuid;
        Some(format!("; the energy of rank {rank} on GPU {uuid} by {:+.1} %", 100.0 * energy))
    });
    tracing::warn!(
        name: journal::DRIFTED,
        job = %key.name, uid = key.uid.0, plan,
        "{key} has drifted from the prediction of plan {plan}: step time by {:+.1} %{energy}{}",
        100.0 * drift.time,
        instructions.chain(ranks).collect::<String>()
    );
}

/// The agent has swapped what a job runs by itself.
pub(super) fn answered(key: &JobKey, slow_stages: usize, swapped: &Swapped) {
    let (plan, step) = (swapped.label(), swapped.step());
    tracing::info!(
        name: journal::SWAPPED,
        job = %key.name, uid = key.uid.0,
        "the agent swaps {key} to {plan} at step {step}: {slow_stages} of its stages are slow"
    );
}
