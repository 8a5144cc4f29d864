//! The GPUs: what is asked of their clocks, what they do, and on whose behalf.

use pfo_protocol::{GpuStatus, Holder, Uid};

use super::quantity::watts;
use super::table::{Cell, Table, Tone, heading};
use super::uuid::short;
use crate::output::Look;

/// From this many on, GPUs in a row that nobody uses are one row.
const MANY: usize = 3;

/// One row for each GPU that is used or has a problem, and for each group of others.
pub(crate) fn render(gpus: &[GpuStatus], user: &dyn Fn(Uid) -> String, look: Look) -> String {
    if gpus.is_empty() {
        return "No GPUs.\n".to_owned();
    }
    let mut table = Table::new(look)
        .right("GPU")
        .left("Model")
        .left("UUID")
        .right("Asked")
        .right("Observed")
        .spare("Memory")
        .right("Power")
        .left("Held by");
    for group in gpus.chunk_by(are_unused_alike) {
        match group {
            [first, .., last] if group.len() >= MANY => table.row(unused(first, last, group)),
            _ => group.iter().for_each(|gpu| {
                table.row([
                    Cell::number(gpu.index).tone(tone(gpu)),
                    Cell::text(model(gpu)),
                    Cell::text(short(&gpu.uuid, gpus)),
                    Cell::mhz(gpu.requested_mhz),
                    Cell::mhz(gpu.observed_mhz),
                    Cell::mhz(gpu.memory_locked_mhz),
                    Cell::option(power(gpu)),
                    Cell::option(held_by(gpu, user)),
                ]);
            }),
        }
    }
    heading("GPUs (clocks in MHz)", look) + &table.render()
}

/// Whether nobody uses two GPUs that follow each other, and both would have the same row.
fn are_unused_alike(one: &GpuStatus, next: &GpuStatus) -> bool {
    let row = |gpu: &GpuStatus| (model(gpu), gpu.observed_mhz, gpu.power_w.is_some());
    let is_unused = |gpu: &GpuStatus| {
        !gpu.leased
            && gpu.problem.is_none()
            && gpu.requested_mhz.is_none()
            && gpu.memory_locked_mhz.is_none()
            && gpu.power_limit_w.is_none()
    };
    is_unused(one) && is_unused(next) && one.index + 1 == next.index && row(one) == row(next)
}

/// The row of GPUs that nobody uses.
fn unused(first: &GpuStatus, last: &GpuStatus, group: &[GpuStatus]) -> [Cell; 8] {
    let powers_w = || group.iter().filter_map(|gpu| gpu.power_w);
    let power = powers_w().reduce(f64::min).zip(powers_w().reduce(f64::max)).map(
        |(low_w, high_w)| match (watts(low_w), watts(high_w)) {
            (low, high) if low == high => format!("{low} each"),
            (low, high) => format!("{} to {high} each", low.trim_end_matches(" W")),
        },
    );
    [
        Cell::text(format!("{}-{}", first.index, last.index)),
        Cell::text(model(first)),
        Cell::empty(),
        Cell::empty(),
        Cell::mhz(first.observed_mhz),
        Cell::empty(),
        Cell::option(power),
        Cell::empty(),
    ]
}

/// What it draws, and of how much if pfo limits it.
pub(crate) fn power(gpu: &GpuStatus) -> Option<String> {
    let power = gpu.power_w.map(watts)?;
    Some(match gpu.power_limit_w {
        Some(limit_w) => format!("{power} of {limit_w} W"),
        None => power,
    })
}

/// Its model, without the maker.
pub(crate) fn model(gpu: &GpuStatus) -> String {
    let model = gpu.model.strip_prefix("NVIDIA ").unwrap_or(&gpu.model);
    let mig = if gpu.mig { " (MIG)" } else { "" };
    format!("{model}{mig}")
}

fn held_by(gpu: &GpuStatus, user: &dyn Fn(Uid) -> String) -> Option<String> {
    let Some(Holder { job, rank, uid, pid, .. }) = &gpu.holder else {
        return gpu.leased.then(|| "another user".to_owned());
    };
    Some(format!("{job} rank {rank} ({} {pid})", user(*uid)))
}

/// The reason is a sentence and stands above the tables.
fn tone(gpu: &GpuStatus) -> Tone {
    match gpu.problem {
        Some(_) => Tone::Bad,
        None => Tone::Plain,
    }
}
