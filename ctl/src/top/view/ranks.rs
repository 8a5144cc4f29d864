//! The ranks: whether each one follows its plan, on which GPU, and at what clock.

use pfo_protocol::{JobStatus, RankStatus};

use super::gpus::{mhz, observed, trouble};
use crate::status::quantity::{percent, seconds, watts};
use crate::status::rank_table;
use crate::status::table::{Cell, Tone};
use crate::top::feed::Snapshot;
use crate::top::keys::Sort;
use crate::top::sheet::{Column, Entry, JobKey, Row, Sheet};

const COLUMNS: &[Column] = &[
    Column::text("Job", 0),
    Column::figure("Rank", 0),
    Column::figure("Stage", 2),
    Column::figure("GPU", 1),
    Column::figure("Asked", 1),
    Column::figure("Observed", 1),
    Column::figure("Power", 2),
    Column::figure("Waits", 2),
    Column::figure("Step", 3),
    Column::figure("Off plan", 4),
    Column::figure("Late", 6),
    Column::figure("Mismatches", 6),
    Column::figure("Lost events", 8),
    Column::figure("Skipped", 8),
    Column::figure("Set call", 7),
    Column::sentence("Trouble", 5),
];

/// The same without the name of the job.
const OF_ONE_JOB: &[Column] = COLUMNS.split_at(1).1;

/// The ranks of all jobs, or of one.
pub(super) fn sheet(snapshot: &Snapshot, job: Option<&JobKey>, sort: Sort, filter: &str) -> Sheet {
    let jobs = snapshot.both.pfod.jobs.iter();
    let is_meant =
        |other: &&JobStatus| job.is_none_or(|(uid, name)| (other.uid, &other.job) == (*uid, name));
    let ranks = jobs.filter(is_meant).flat_map(|job| job.ranks.iter().map(move |rank| (job, rank)));
    let rows = ranks.map(|(of, rank)| row(of, rank, snapshot, job.is_none())).collect();
    Sheet::new(if job.is_none() { COLUMNS } else { OF_ONE_JOB }, rows, sort, filter)
}

fn row(job: &JobStatus, rank: &RankStatus, snapshot: &Snapshot, named: bool) -> Row {
    let gpu = snapshot.gpu(rank);
    let whole = |number: f64| number.to_string();
    let called = (rank.clock_changes > 0).then_some(rank.set_call_mean_us * 1e-6);
    let tone = if rank.problem.is_some() { Tone::Bad } else { Tone::Plain };
    let shown_gpu = rank_table::gpu(&rank.gpu_uuid, &snapshot.both.pfod.gpus);
    let wrong = match (&rank.problem, gpu) {
        (Some(problem), _) => Entry::text(Some(problem)).tone(Tone::Bad),
        (None, Some(gpu)) => trouble(gpu),
        (None, None) => Entry::text(Some("the driver does not list its GPU")).tone(Tone::Bad),
    };
    let mut entries = vec![
        Entry::text(Some(job.job.as_str())),
        Entry::figure(Some(rank.rank.0.into()), whole).tone(tone),
        Entry::figure(Some(rank.stage.0.into()), whole),
        Entry::new(Cell::text(shown_gpu), gpu.map(|gpu| gpu.index.into())),
        gpu.map_or_else(|| mhz(None), |gpu| mhz(gpu.requested_mhz)),
        gpu.map_or_else(|| mhz(None), observed),
        Entry::figure(gpu.and_then(|gpu| gpu.power_w), watts),
        Entry::figure(snapshot.waits.get(&rank.session).copied(), percent),
        Entry::figure(rank.step.map(|step| step as f64), whole),
        Entry::figure(rank_table::off_plan(rank), percent),
        Entry::count(rank.late_instructions),
        Entry::count(rank.mismatched_steps),
        Entry::count(rank.lost_events),
        Entry::count(rank.skipped_changes),
        Entry::figure(called, seconds),
        wrong,
    ];
    if !named {
        entries.remove(0);
    }
    let key = (job.uid, job.job.clone());
    Row { id: format!("{}/{}/{}", job.uid, job.job, rank.rank), job: Some(key), entries }
}
