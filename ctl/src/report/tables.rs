//! The tables of a page: what was measured, the clocks of the plan, the ranks.

use std::collections::BTreeMap;

use pfo_protocol::{GpuStatus, RankStatus};

use super::html::{element, folded, table};
use super::page::{Known, Section};
use super::pictures::no_clocks;
use crate::status::measured::Measured;
use crate::status::quantity::{change, joules, percent, seconds, watts};
use crate::status::{measured_table, rank_table};

/// The most rows that are not folded.
const MOST: usize = 8;

/// What was measured under each plan. Rows of fewer ranks are marked: they are no figures of the job.
pub(super) fn measured(known: &Known<'_>) -> Section {
    let rows = Measured::all(known.job);
    let whole = rows.iter().map(|row| row.ranks).max().ok_or("no step is over yet")?;
    let in_force = Measured::in_force(known.job);
    let is_main = |row: &&Measured| row.plan.is_none() || in_force.as_ref() == Some(*row);
    let (main, rest): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| rows.len() <= MOST || row.ranks == whole && is_main(row));
    let mut text = table_of(&main, whole);
    if !rest.is_empty() {
        text += &folded(&format!("{} other settings", rest.len()), &table_of(&rest, whole));
    }
    text += &element(
        "p",
        "Means from the energy counters of the GPUs, compared with the default clocks that were \
         measured next to each plan. They have no interval.",
    );
    if rows.iter().any(|row| row.ranks < whole) {
        text += &element(
            "p",
            "Rows marked with fewer ranks were measured while a rank was missing or its lease was \
             revoked: their energy is that of these ranks alone, and they have no saving.",
        );
    }
    Ok(text)
}

fn table_of(rows: &[&Measured<'_>], whole: u32) -> String {
    let header = ["What ran", "Steps", "Time a step", "Slowdown", "Energy a step", "Saving"];
    let cells = rows.iter().map(|row| {
        let name = measured_table::name(row.plan);
        let is_whole = row.ranks == whole;
        let name = match is_whole {
            true => name,
            false => format!("{name} ({} of {whole} ranks)", row.ranks),
        };
        [
            Some(name),
            Some(row.steps.to_string()),
            Some(seconds(row.time_s)),
            row.slowdown.filter(|_| is_whole).map(change),
            row.energy_j.map(joules),
            row.saving.filter(|_| is_whole).map(percent),
        ]
    });
    table(header, cells)
}

pub(super) fn clocks(known: &Known<'_>) -> Section {
    let clocks = known.table.ok_or_else(|| match known.compared_now {
        true => {
            "the job runs default clocks for a moment, to compare the plan with them".to_owned()
        }
        false => no_clocks(known.job),
    })?;
    let mut kinds = BTreeMap::<_, Vec<u32>>::new();
    for (stage, units) in clocks.stages().iter().enumerate() {
        for unit in units {
            kinds.entry((stage, unit.unit.instruction)).or_default().push(unit.mhz.0);
        }
    }
    let rows = kinds.into_iter().map(|((stage, instruction), mhz)| {
        let ends = [mhz.iter().min(), mhz.iter().max()];
        let [lowest, highest] = ends.map(|end| end.map(|mhz| format!("{mhz} MHz")));
        let mean = mhz.iter().map(|mhz| f64::from(*mhz)).sum::<f64>() / mhz.len() as f64;
        let mean = Some(format!("{mean:.0} MHz"));
        [Some(stage.to_string()), Some(instruction.to_string()), lowest, mean, highest]
    });
    Ok(table(["Stage", "Instruction", "Lowest", "Mean", "Highest"], rows))
}

pub(super) fn ranks(known: &Known<'_>) -> Section {
    let gpus = &known.both.pfod.gpus;
    let row = |rank: &RankStatus| {
        let gpu = gpus.iter().find(|gpu| gpu.uuid == rank.gpu_uuid);
        let mhz = |clock: fn(&GpuStatus) -> Option<pfo_protocol::Mhz>| {
            gpu.and_then(clock).map(|mhz| format!("{} MHz", mhz.0))
        };
        [
            Some(rank.rank.to_string()),
            Some(rank.stage.to_string()),
            Some(rank_table::gpu(&rank.gpu_uuid, gpus)),
            gpu.map(|gpu| gpu.model.clone()),
            mhz(|gpu| gpu.requested_mhz),
            mhz(|gpu| gpu.observed_mhz),
            gpu.and_then(|gpu| gpu.power_w).map(watts),
            rank.energy_j.map(joules),
            Some(rank.late_instructions.to_string()),
            Some(rank.mismatched_steps.to_string()),
        ]
    };
    if known.job.ranks.is_empty() {
        return Ok(String::new());
    }
    let header = [
        "Rank",
        "Stage",
        "GPU",
        "Model",
        "Asked",
        "Observed",
        "Power",
        "Energy",
        "Late",
        "Mismatches",
    ];
    Ok(table(header, known.job.ranks.iter().map(row)))
}
