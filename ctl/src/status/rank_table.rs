//! The ranks of a job: whether each one follows its plan, and what that costs in calls.

use pfo_protocol::{GpuStatus, GpuUuid, JobStatus, RankStatus, Uid};

use super::quantity::{joules, percent, seconds};
use super::table::{Cell, Table, Tone, heading};
use super::uuid::short;
use crate::output::Look;

/// One row for each rank on this node; none if there are none.
pub(crate) fn render(
    job: &JobStatus,
    gpus: &[GpuStatus],
    user: &dyn Fn(Uid) -> String,
    look: Look,
) -> Option<String> {
    if job.ranks.is_empty() {
        return None;
    }
    let mut table = Table::new(look)
        .right("Rank")
        .right("Stage")
        .right("GPU")
        .right("Step")
        .right("Plan")
        .right("Mismatches")
        .right("Lost events")
        .right("Energy")
        .right("Skipped")
        .right("Off plan")
        .right("Late")
        .spare("Set call")
        .spare("Longest");
    for rank in &job.ranks {
        let called = rank.clock_changes > 0;
        table.row([
            Cell::number(rank.rank.0).tone(tone(rank)),
            Cell::number(rank.stage.0),
            Cell::text(gpu(&rank.gpu_uuid, gpus)),
            rank.step.map_or_else(Cell::empty, Cell::number),
            rank.plan.map_or_else(Cell::empty, Cell::number),
            Cell::count(rank.mismatched_steps),
            Cell::count(rank.lost_events),
            Cell::option(rank.energy_j.map(joules)),
            Cell::count(rank.skipped_changes),
            Cell::option(off_plan(rank).map(percent)),
            Cell::count(rank.late_instructions),
            Cell::option(called.then(|| seconds(rank.set_call_mean_us * 1e-6))),
            Cell::option(called.then(|| seconds(rank.set_call_max_us * 1e-6))),
        ]);
    }
    let title = format!("Ranks of job {} of {}", job.job, user(job.uid));
    Some(heading(&title, look) + &table.render())
}

/// The index that people know a GPU by, or its UUID if the driver lists it no longer.
pub(crate) fn gpu(uuid: &GpuUuid, gpus: &[GpuStatus]) -> String {
    gpus.iter()
        .find(|gpu| gpu.uuid == *uuid)
        .map_or_else(|| short(uuid, gpus), |gpu| gpu.index.to_string())
}

/// The share of the time in instructions that ran at another clock than planned.
pub(crate) fn off_plan(rank: &RankStatus) -> Option<f64> {
    (rank.instruction_s > 0.0).then(|| rank.off_plan_s / rank.instruction_s)
}

/// The reason is a sentence and stands above the tables.
fn tone(rank: &RankStatus) -> Tone {
    match rank.problem {
        Some(_) => Tone::Bad,
        None => Tone::Plain,
    }
}
