//! A job that is looked into: what it runs and saves, its ranks, and the clocks of its plan.

use pfo_protocol::{ClockTable, Instruction, JobStatus, PlannedUnit};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use crate::status::job_table::{state, waiting_plan};
use crate::status::measured::Measured;
use crate::status::measured_table;
use crate::status::plan_text::{described, described_frontier};
use crate::status::quantity::{change, joules, seconds};
use crate::status::table::Cell;
use crate::text::harmless;
use crate::top::feed::Snapshot;
use crate::top::keys::Sort;
use crate::top::sheet::{Column, Entry, Row, Sheet};

/// From the lowest to the highest clock of a plan.
pub(super) const LEVELS: [&str; 8] = [
    "\u{2581}", "\u{2582}", "\u{2583}", "\u{2584}", "\u{2585}", "\u{2586}", "\u{2587}", "\u{2588}",
];

const MEASURED: &[Column] = &[
    Column::text("Measured", 0),
    Column::figure("Steps", 5),
    Column::figure("Time/step", 2),
    Column::figure("Slowdown", 1),
    Column::figure("Pred. time", 6),
    Column::figure("Energy/step", 3),
    Column::figure("Saving", 0),
    Column::figure("Pred. energy", 7),
];

/// What it runs, in lines.
pub(super) fn lines(job: &JobStatus, snapshot: &Snapshot) -> Vec<Line<'static>> {
    let runs = match &job.plan {
        Some(plan) => described(plan),
        None => "default clocks".to_owned(),
    };
    let mut said = vec![format!("runs {runs}, {}", state(job).shown())];
    let suspended = job.plan.as_ref().and_then(|plan| plan.suspended.as_ref());
    said.extend(suspended.map(|why| format!("suspended: {why}")));
    said.extend(waiting_plan(job).map(|plan| format!("loaded: {}", described(plan))));
    let watched = snapshot.both.agent.iter().flat_map(|agent| &agent.jobs);
    let mut watched = watched.filter(|other| (other.uid, &other.job) == (job.uid, &job.job));
    let frontier = watched.next().and_then(|watched| watched.frontier.as_ref());
    said.extend(
        frontier.map(|frontier| format!("for stragglers: {}", described_frontier(frontier))),
    );
    said.iter().map(|said| Line::raw(harmless(said).into_owned())).collect()
}

/// What was measured under each plan.
pub(super) fn measured(job: &JobStatus) -> Sheet {
    let row = |measured: Measured| {
        let plan = measured.plan;
        let entries = vec![
            Entry::text(Some(measured_table::name(plan))),
            Entry::figure(Some(measured.steps as f64), |steps| steps.to_string()),
            Entry::figure(Some(measured.time_s), seconds),
            Entry::figure(measured.slowdown, change),
            Entry::figure(plan.and_then(|plan| plan.predicted_time_s), seconds),
            Entry::figure(measured.energy_j, joules),
            measured.saving.map_or_else(|| Entry::new(Cell::empty(), None), saving),
            Entry::figure(plan.and_then(|plan| plan.predicted_energy_j), joules),
        ];
        Row { id: String::new(), job: None, entries }
    };
    let rows = Measured::all(job).into_iter().map(row).collect();
    Sheet::new(MEASURED, rows, Sort::default(), "")
}

fn saving(saved: f64) -> Entry {
    Entry::new(measured_table::saving_cell(saved), Some(saved))
}

/// The clocks of a plan: a row for each stage, a bar for each instruction in the order in which the
/// stage runs them. How long they take is not in the plan.
pub(super) fn plan(table: &ClockTable, colour: bool) -> Vec<Line<'static>> {
    let clocks = || table.stages().iter().flatten().map(|unit| unit.mhz.0);
    let (Some(lowest), Some(highest)) = (clocks().min(), clocks().max()) else { return Vec::new() };
    let title = format!(
        "Clocks of the plan, instructions in order: {lowest} MHz {} to {highest} MHz {}",
        LEVELS[0], LEVELS[7]
    );
    let title = Line::styled(title, Style::new().add_modifier(Modifier::BOLD));
    let rows = table.stages().iter().enumerate().filter(|(_, units)| !units.is_empty());
    let rows = rows.map(|(stage, units)| {
        let mut spans = vec![Span::raw(format!("stage {stage:<4}"))];
        spans.extend(units.iter().map(|unit| bar(unit, lowest, highest, colour)));
        Line::from(spans)
    });
    [title].into_iter().chain(rows).collect()
}

/// Forwards have a colour of their own.
fn bar(unit: &PlannedUnit, lowest: u32, highest: u32, colour: bool) -> Span<'static> {
    let is_forward = unit.unit.instruction == Instruction::Forward;
    let style = if colour && is_forward { Style::new().fg(Color::Cyan) } else { Style::new() };
    Span::styled(LEVELS[level(unit.mhz.0, (lowest, highest))], style)
}

/// The place of a clock among the levels.
pub(super) fn level(mhz: u32, (lowest, highest): (u32, u32)) -> usize {
    let last = LEVELS.len() - 1;
    match highest - lowest {
        0 => last,
        range => ((mhz - lowest) as usize * last + range as usize / 2) / range as usize,
    }
}
