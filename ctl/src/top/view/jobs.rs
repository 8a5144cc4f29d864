//! The jobs: what each one runs, how far it is, and what its plan saves.

use pfo_protocol::{JobStatus, RankStatus};

use super::waits_of;
use crate::status::job_table::{state, steps};
use crate::status::measured::Measured;
use crate::status::measured_table::tone_of_saving;
use crate::status::plan_text::name;
use crate::status::quantity::{change, joules, percent, seconds, watts};
use crate::status::table::{Cell, Tone};
use crate::top::feed::Snapshot;
use crate::top::keys::Sort;
use crate::top::sheet::{Column, Entry, Row, Sheet};

const COLUMNS: &[Column] = &[
    Column::text("Job", 0),
    Column::text("User", 6),
    Column::figure("Ranks", 7),
    Column::figure("Step", 4),
    Column::text("Plan", 1),
    Column::text("State", 2),
    Column::figure("Time/step", 5),
    Column::figure("Slowdown", 3),
    Column::figure("Energy/step", 6),
    Column::figure("Saving", 0),
    Column::figure("Power", 3),
    Column::figure("Waits", 4),
];

pub(super) fn sheet(snapshot: &Snapshot, sort: Sort, filter: &str) -> Sheet {
    let jobs = &snapshot.both.pfod.jobs;
    let rows = jobs.iter().map(|job| row(job, snapshot)).collect();
    Sheet::new(COLUMNS, rows, sort, filter)
}

fn row(job: &JobStatus, snapshot: &Snapshot) -> Row {
    let measured = Measured::in_force(job);
    let of = measured.as_ref();
    let saved = of.and_then(|of| of.saving);
    let slower = of.and_then(|of| of.slowdown);
    let plan = job.plan.as_ref().map_or("default clocks".into(), name);
    let last_step = job.ranks.iter().filter_map(|rank| rank.step).max();
    let entries = vec![
        Entry::text(Some(job.job.as_str())),
        Entry::text(Some(snapshot.user(job.uid))),
        Entry::figure(Some(job.ranks.len() as f64), |ranks| ranks.to_string()),
        Entry::new(Cell::option(steps(job)), last_step.map(|step| step as f64)),
        Entry::text(Some(plan)),
        Entry::new(state(job), None),
        Entry::figure(of.map(|of| of.time_s), seconds),
        Entry::figure(slower, change),
        Entry::figure(of.and_then(|of| of.energy_j), joules),
        Entry::figure(saved, percent).tone(saved.map_or(Tone::Plain, tone_of_saving)),
        Entry::figure(power_w(&job.ranks, snapshot), watts),
        Entry::figure(waits_of(&job.ranks, snapshot), percent),
    ];
    let key = (job.uid, job.job.clone());
    Row { id: format!("{}/{}", job.uid, job.job), job: Some(key), entries }
}

/// What the GPUs of the ranks draw together; none if one does not say.
fn power_w(ranks: &[RankStatus], snapshot: &Snapshot) -> Option<f64> {
    if ranks.is_empty() {
        return None;
    }
    ranks.iter().map(|rank| snapshot.gpu(rank)?.power_w).sum()
}
