//! The GPUs: what is asked of their clocks, what they do, and on whose behalf.

use pfo_protocol::{GpuStatus, Holder, Uid};

use super::quantity::watts;
use super::table::{Cell, Table, Tone, heading};
use super::uuid::short;
use crate::output::Look;

/// One row for each GPU.
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
    for gpu in gpus {
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
    }
    heading("GPUs (clocks in MHz)", look) + &table.render()
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
