//! What pfod asks of the drivers of the GPUs.

use pfo_protocol::GpuStatus;

use super::quantity::percent;
use super::table::{Cell, Table, heading};
use crate::output::Look;

/// Reads per second that are shown for a GPU without a lease: a status now and then makes fewer.
const SOME: f64 = 10.0;

/// One row for each GPU whose driver was asked anything lately; none if there are none.
pub(crate) fn render(gpus: &[GpuStatus], look: Look) -> Option<String> {
    let mut table = Table::new(look)
        .right("GPU")
        .right("Reads/s")
        .right("Time reading")
        .right("Changes/s")
        .right("Time changing");
    let is_asked = |gpu: &&GpuStatus| gpu.leased || gpu.driver_use.reads_per_s >= SOME;
    let mut asked = gpus.iter().filter(is_asked).peekable();
    asked.peek()?;
    for gpu in asked {
        let used = &gpu.driver_use;
        table.row([
            Cell::number(gpu.index),
            rate(used.reads_per_s),
            Cell::text(percent(used.reading_share)),
            rate(used.changes_per_s),
            Cell::text(percent(used.changing_share)),
        ]);
    }
    Some(heading("Driver calls of pfod", look) + &table.render())
}

fn rate(per_s: f64) -> Cell {
    Cell::text(format!("{per_s:.1}"))
}
