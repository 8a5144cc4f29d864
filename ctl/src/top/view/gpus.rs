//! The GPUs: what is asked of their clocks, what they do, and for whom.

use pfo_protocol::{GpuStatus, Mhz};

use crate::profile::throttle_reasons;
use crate::status::gpu_table::{model, power};
use crate::status::quantity::percent;
use crate::status::table::{Cell, Tone};
use crate::status::uuid::short;
use crate::top::feed::Snapshot;
use crate::top::keys::Sort;
use crate::top::sheet::{Column, Entry, Row, Sheet};

const COLUMNS: &[Column] = &[
    Column::figure("GPU", 0),
    Column::text("Model", 8),
    Column::text("UUID", 9),
    Column::figure("Asked", 1),
    Column::figure("Observed", 1),
    Column::figure("Memory", 7),
    Column::figure("Power", 1),
    Column::figure("Waits", 4),
    Column::text("Job", 2),
    Column::figure("Rank", 3),
    Column::text("User", 6),
    Column::sentence("Trouble", 5),
];

pub(super) fn sheet(snapshot: &Snapshot, sort: Sort, filter: &str) -> Sheet {
    let gpus = &snapshot.both.pfod.gpus;
    let rows = gpus.iter().map(|gpu| row(gpu, snapshot)).collect();
    Sheet::new(COLUMNS, rows, sort, filter)
}

fn row(gpu: &GpuStatus, snapshot: &Snapshot) -> Row {
    let holder = gpu.holder.as_ref();
    let wait = holder.and_then(|holder| snapshot.waits.get(&holder.session)).copied();
    let job = match holder {
        Some(holder) => Entry::text(Some(holder.job.as_str())),
        None => Entry::text(gpu.leased.then_some("another user's")),
    };
    let tone = if gpu.problem.is_some() { Tone::Bad } else { Tone::Plain };
    let entries = vec![
        Entry::figure(Some(gpu.index.into()), |index| index.to_string()).tone(tone),
        Entry::text(Some(model(gpu))),
        Entry::text(Some(short(&gpu.uuid, &snapshot.both.pfod.gpus))),
        mhz(gpu.requested_mhz),
        observed(gpu),
        mhz(gpu.memory_locked_mhz),
        Entry::new(Cell::option(power(gpu)), gpu.power_w),
        Entry::figure(wait, percent),
        job,
        Entry::figure(holder.map(|holder| holder.rank.0.into()), |rank| rank.to_string()),
        Entry::text(holder.map(|holder| snapshot.user(holder.uid))),
        trouble(gpu),
    ];
    let job = holder.map(|holder| (holder.uid, holder.job.clone()));
    Row { id: gpu.uuid.to_string(), job, entries }
}

pub(super) fn mhz(clock: Option<Mhz>) -> Entry {
    Entry::new(Cell::mhz(clock), clock.map(|clock| clock.0.into()))
}

/// Notable if something holds the GPU below the requested clock.
pub(super) fn observed(gpu: &GpuStatus) -> Entry {
    let tone = if gpu.throttle_reasons == 0 { Tone::Plain } else { Tone::Notable };
    mhz(gpu.observed_mhz).tone(tone)
}

/// What is wrong or, failing that, what holds its clock down.
pub(super) fn trouble(gpu: &GpuStatus) -> Entry {
    if let Some(problem) = &gpu.problem {
        return Entry::text(Some(problem)).tone(Tone::Bad);
    }
    let reasons = (gpu.throttle_reasons != 0).then(|| throttle_reasons(gpu.throttle_reasons));
    Entry::text(reasons.map(|reasons| format!("held back: {reasons}"))).tone(Tone::Notable)
}
