//! The last step of a job over time: a row for each stage, from the first begin to the last end.

use std::collections::{BTreeSet, HashMap};

use pfo_protocol::{ClockTable, Instruction, RanUnit, Stage, Unit};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::inside::{LEVELS, level};
use crate::status::quantity::seconds;
use crate::top::step::Step;

const WAIT: &str = "\u{b7}";

/// The letter that an instruction begins with.
fn letter(instruction: Instruction) -> &'static str {
    match instruction {
        Instruction::Forward => "F",
        Instruction::Backward => "B",
        Instruction::ForwardBackward => "b",
        Instruction::Recomputation => "R",
        Instruction::BackwardInput => "I",
        Instruction::BackwardWeight => "W",
        Instruction::Load => "L",
        Instruction::P2p => "P",
        Instruction::Collective => "C",
        Instruction::OptimizerStep => "O",
        Instruction::Other => "?",
    }
}

/// A title, and a row for each stage: a letter where an instruction begins, then its clock in the plan as
/// a bar, and a dot where the stage waits.
pub(super) fn lines(
    step: &Step,
    table: Option<&ClockTable>,
    width: u16,
    colour: bool,
) -> Vec<Line<'static>> {
    let all = || step.stages.iter().flat_map(|(_, ran)| ran);
    let (Some(begin), Some(end)) =
        (all().map(|ran| ran.began_ns).min(), all().map(|ran| ran.ended_ns).max())
    else {
        return Vec::new();
    };
    let time = Time { begin, length: end.saturating_sub(begin).max(1) };
    let mut kinds = Vec::new();
    for ran in all() {
        if !kinds.contains(&ran.unit.instruction) {
            kinds.push(ran.unit.instruction);
        }
    }
    let kinds = kinds.iter().map(|kind| format!("{} {kind}", letter(*kind)));
    let ends = table.and_then(ends);
    let mut title = format!("Last step, {}: ", seconds(time.length as f64 / 1e9));
    title += &kinds.chain([format!("{WAIT} waits")]).collect::<Vec<_>>().join(", ");
    title += &match ends {
        Some((lowest, highest)) => {
            format!("; {lowest} MHz {} to {highest} {}", LEVELS[0], LEVELS[7])
        }
        None => String::new(),
    };
    let title = Line::styled(title, Style::new().add_modifier(Modifier::BOLD));
    let rows = step.stages.iter().map(|(stage, ran)| {
        let clocks = clocks(table, *stage);
        let prefix = format!("stage {:<4}", stage.0);
        let columns = width.saturating_sub(prefix.len() as u16).into();
        let mut spans = vec![Span::raw(prefix)];
        let shown = time.columns(ran, columns);
        let before = [None].into_iter().chain(shown.iter().copied());
        spans.extend(before.zip(&shown).map(|(before, here)| match here {
            None => Span::raw(WAIT),
            Some(index) => {
                let unit = ran[*index].unit;
                let bar = match (ends, clocks.get(&unit)) {
                    (Some(ends), Some(mhz)) => LEVELS[level(*mhz, ends)],
                    _ => LEVELS[7],
                };
                let text = if before == Some(*index) { bar } else { letter(unit.instruction) };
                Span::styled(text, style(unit.instruction, colour))
            }
        }));
        Line::from(spans)
    });
    [title].into_iter().chain(rows).collect()
}

/// Forwards have a colour of their own, as in the plan.
fn style(instruction: Instruction, colour: bool) -> Style {
    let is_forward = instruction == Instruction::Forward;
    if colour && is_forward { Style::new().fg(Color::Cyan) } else { Style::new() }
}

/// The lowest and the highest clock of a plan.
fn ends(table: &ClockTable) -> Option<(u32, u32)> {
    let clocks: BTreeSet<u32> = table.stages().iter().flatten().map(|unit| unit.mhz.0).collect();
    Some((*clocks.first()?, *clocks.last()?))
}

fn clocks(table: Option<&ClockTable>, stage: Stage) -> HashMap<Unit, u32> {
    let units = table.and_then(|table| table.stages().get(usize::from(stage.0)));
    units.into_iter().flatten().map(|unit| (unit.unit, unit.mhz.0)).collect()
}

/// From when to when the step is drawn. The times are those that the job gave.
struct Time {
    begin: u64,
    length: u64,
}

impl Time {
    /// What each column shows: the instruction that takes most of its time, if it takes half of it.
    fn columns(&self, ran: &[RanUnit], columns: usize) -> Vec<Option<usize>> {
        let mut most = vec![(0.5, None); columns];
        let column =
            |at: u64| at.saturating_sub(self.begin) as f64 / self.length as f64 * columns as f64;
        for (index, ran) in ran.iter().enumerate() {
            let (began, ended) = (column(ran.began_ns), column(ran.ended_ns));
            let (first, end) = (began as usize, ended.ceil() as usize);
            for (at, most) in most.iter_mut().enumerate().take(end).skip(first) {
                let share = ended.min(at as f64 + 1.0) - began.max(at as f64);
                if share >= most.0 {
                    *most = (share, Some(index));
                }
            }
        }
        most.into_iter().map(|(_, index)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(microbatch: u32, began_ns: u64, ended_ns: u64) -> RanUnit {
        RanUnit { unit: Unit::new(Instruction::Forward, microbatch), began_ns, ended_ns }
    }

    fn drawn(stages: &[&[RanUnit]], width: u16) -> Vec<String> {
        let stages = (0..).map(Stage).zip(stages.iter().map(|ran| ran.to_vec())).collect();
        let lines = lines(&Step { stages }, None, width, false);
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_stage_waits_where_it_runs_nothing() {
        let shown = drawn(&[&[ran(0, 100, 104), ran(1, 104, 106)], &[ran(0, 104, 110)]], 20);
        assert_eq!(shown[0], "Last step, 0.010 \u{b5}s: F forward, \u{b7} waits");
        assert_eq!(shown[1], "stage 0   F\u{2588}\u{2588}\u{2588}F\u{2588}····");
        assert_eq!(shown[2], "stage 1   ····F\u{2588}\u{2588}\u{2588}\u{2588}\u{2588}");
    }

    #[test]
    fn times_that_no_step_has_are_drawn_somewhere() {
        for (began, ended) in [(0, 0), (u64::MAX, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            for width in [0, 9, 10, 11, 80, 200] {
                let shown = drawn(&[&[ran(0, began, ended), ran(0, 5, 4)], &[]], width);
                assert_eq!(shown.len(), 3);
            }
        }
        assert!(drawn(&[], 80).is_empty());
    }
}
