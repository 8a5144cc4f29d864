//! What pfod asks of the drivers of the GPUs.

use pfo_protocol::{DriverUse, GpuStatus};

use super::quantity::percent;
use super::table::{Cell, Table, heading};
use crate::output::Look;

/// Reads per second that are shown for a GPU without a lease: a status now and then makes fewer.
const SOME: f64 = 10.0;

/// From this many GPUs on, only the busiest ones have a row each.
const MANY: usize = 9;
/// The busiest ones.
const BUSIEST: usize = 2;

/// One row for each GPU whose driver was asked anything lately, or for the busiest ones and the others
/// together; none if there are none.
pub(crate) fn render(gpus: &[GpuStatus], look: Look) -> Option<String> {
    let mut table = Table::new(look)
        .right("GPU")
        .right("Reads/s")
        .right("Time reading")
        .right("Changes/s")
        .right("Time changing");
    let is_asked = |gpu: &&GpuStatus| gpu.leased || gpu.driver_use.reads_per_s >= SOME;
    let mut asked: Vec<_> = gpus.iter().filter(is_asked).collect();
    let mut others = Vec::new();
    if asked.len() >= MANY {
        let busy = |gpu: &GpuStatus| gpu.driver_use.reading_share + gpu.driver_use.changing_share;
        asked.sort_by(|one, other| busy(other).total_cmp(&busy(one)));
        others = asked.split_off(BUSIEST);
    }
    for gpu in &asked {
        table.row(row(Cell::number(gpu.index), &gpu.driver_use));
    }
    let uses = others.iter().map(|gpu| gpu.driver_use);
    if let Some(most) = uses.reduce(at_most) {
        table.row(row(Cell::text(format!("{} others, at most", others.len())), &most));
    }
    (!asked.is_empty()).then(|| heading("Driver calls of pfod", look) + &table.render())
}

fn row(gpu: Cell, used: &DriverUse) -> [Cell; 5] {
    [
        gpu,
        rate(used.reads_per_s),
        Cell::text(percent(used.reading_share)),
        rate(used.changes_per_s),
        Cell::text(percent(used.changing_share)),
    ]
}

/// The greatest of each figure.
fn at_most(one: DriverUse, other: DriverUse) -> DriverUse {
    DriverUse {
        reads_per_s: one.reads_per_s.max(other.reads_per_s),
        reading_share: one.reading_share.max(other.reading_share),
        changes_per_s: one.changes_per_s.max(other.changes_per_s),
        changing_share: one.changing_share.max(other.changing_share),
    }
}

fn rate(per_s: f64) -> Cell {
    Cell::text(format!("{per_s:.1}"))
}
