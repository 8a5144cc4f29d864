//! What `pfoctl tune` comes to under every condition of the simulator: beside what the simulator knows,
//! and beside the best plan for its true tables.

mod condition;
mod neighbour;
mod optimum;
mod row;
mod truth;

use std::panic::catch_unwind;

use self::condition::{CONDITIONS, Condition};
pub(crate) use self::neighbour::{OBSERVES, run as observe};
use self::row::Row;
use crate::extent::Extent;
use crate::report::{Column, Report};

const JOB: &str = "bench-conditions";
const MICROBATCHES: u32 = 3;
const MAX_SLOWDOWN: f64 = 0.02;

/// The condition that is measured briefly.
const SHORT: &str = "a100";

const COLUMNS: [Column; 18] = [
    ("condition", "condition"),
    ("saving_percent", "saving %"),
    ("saving_error_percent", "±"),
    ("slowdown_percent", "slower %"),
    ("slowdown_error_percent", "±"),
    ("tune_exit", "tune: exit"),
    ("tune_saving_percent", "saving %"),
    ("tune_slowdown_percent", "slower %"),
    ("optimum_percent", "optimum %"),
    ("late_optimum_percent", "with late clocks %"),
    ("short_by_points", "short by"),
    ("off_plan_percent", "off plan %"),
    ("calls_per_second", "calls/s"),
    ("reading_percent", "in driver: reading %"),
    ("setting_percent", "setting %"),
    ("delayed_by_reading_percent", "transfers: reading %"),
    ("delayed_percent", "all %"),
    ("seconds", "s"),
];

/// Tunes a job under each condition, or under those with these names.
pub(crate) fn measure(chosen: &[String], extent: Extent, report: &mut Report) -> crate::Result<()> {
    let is_chosen = |condition: &&Condition| match chosen {
        [] => extent == Extent::Full || condition.name == SHORT,
        names => names.iter().any(|name| name == condition.name),
    };
    let (mut rows, mut remarks) = (Vec::new(), Vec::new());
    for condition in CONDITIONS.iter().filter(is_chosen) {
        eprintln!("pfo-bench: {} …", condition.what);
        let why = match row(condition, extent) {
            Ok(row) => {
                rows.push(row.cells(condition));
                row.remark
            }
            Err(error) => format!("not measured: {error}"),
        };
        let remark = format!("{}: {why}", condition.what);
        eprintln!("pfo-bench: {remark}");
        remarks.push(remark);
    }
    report.table("conditions", &legend(), &COLUMNS, &rows);
    remarks.iter().for_each(|remark| report.note(remark));
    Ok(())
}

/// One condition at a time: they would take the processors from each other.
fn row(condition: &Condition, extent: Extent) -> Result<Row, String> {
    let measured = catch_unwind(|| Row::measure(condition, extent));
    let measured = measured.unwrap_or_else(|_| Err("it panicked".into()));
    measured.map_err(|error| error.to_string())
}

/// Fails on a name that no condition has.
pub(crate) fn names(list: &str) -> crate::Result<Vec<String>> {
    let known = || CONDITIONS.iter().map(|condition| condition.name);
    list.split(',')
        .map(|name| match known().any(|known| known == name) {
            true => Ok(name.to_owned()),
            false => {
                let known = known().collect::<Vec<_>>().join(", ");
                Err(format!("there is no condition {name}; there are {known}").into())
            }
        })
        .collect()
}

/// Why the time in the driver is above what observing may take.
const BLOCKED: &str = "Each call that sets a clock keeps the driver for 12 ms; \
                       observing is what reads, and delays transfers\nat default clocks, where nothing is set.";

fn legend() -> String {
    format!(
        "`pfoctl tune --max-slowdown {}%` of a job of which nothing is known: what the plan that it keeps saves \
         and how much slower it is,\nby the simulator's own energy and steps, in turns with default clocks; what \
         tune says of it; and what the best plan saves for the\ntables that the simulated GPUs work by, with clocks \
         that change at once and with clocks as late as those of the GPUs. Calls and time in the driver are for a GPU, under the plan.\n\
         {BLOCKED}",
        100.0 * MAX_SLOWDOWN
    )
}
