//! A step as a picture: stages as rows, instructions along time, coloured by power or clock, with
//! the critical path drawn through those that make it up. Where a row shows its ground, it waits. A
//! long step is broken into bands below each other, like lines of text.

use clap::ValueEnum;
use pfo_planner::{Chunk, Instruction, Plan, Span, Timeline};
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, TextStyle};
use plotters_backend::DrawingBackend;

use super::colours::{CHOSEN, CHUNKS, FAINT, INK, PAPER, WAITING, on_ramp, ramp};
use super::picture::{Area, Drawn, Picture, Size};
use crate::status::quantity::{joules, seconds};

/// What colours show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Colouring {
    /// Watts while an instruction runs
    Power,
    /// Its clock
    Frequency,
}

pub(super) struct TimelinePicture<'a> {
    title: String,
    timeline: &'a Timeline,
    colouring: Colouring,
    lowest: f64,
    highest: f64,
    /// What the whole width stands for.
    length_s: f64,
    /// Model chunks of a stage.
    chunks: u16,
}

/// Around and between things, in pixels.
const LEFT: i32 = 92;
const RIGHT: i32 = 24;
const TOP: i32 = 104;
const BOTTOM: i32 = 56;
const GAP: i32 = 6;
/// The lowest row that has room for names.
const LOWEST_ROW: i32 = 34;
/// For an instruction and its name, and more for that of a chunk.
const ROOM: i32 = 48;
const CHUNK_ROOM: i32 = 24;
/// A letter of the smallest text.
const LETTER_WIDTH: i32 = 8;
/// The height of what marks a chunk.
const CHUNK_MARK: i32 = 4;

impl<'a> TimelinePicture<'a> {
    pub(super) fn new(
        plan: &Plan,
        timeline: &'a Timeline,
        energy_j: Option<f64>,
        colouring: Colouring,
    ) -> Self {
        let spans = || timeline.stages.iter().flatten();
        let values = || spans().map(|span| value(span, colouring));
        let title = format!(
            "{}{} stages, {} microbatches, {}: {}{}",
            plan.gpu.as_ref().map_or_else(String::new, |gpu| format!("{gpu}, ")),
            plan.num_stages,
            plan.num_microbatches,
            plan.schedule,
            seconds(timeline.iteration_time_s),
            energy_j.map_or_else(String::new, |energy_j| format!(", {}", joules(energy_j))),
        );
        Self {
            title,
            timeline,
            colouring,
            lowest: values().fold(f64::INFINITY, f64::min),
            highest: values().fold(f64::NEG_INFINITY, f64::max),
            length_s: timeline.iteration_time_s,
            chunks: spans().map(|span| span.chunk.0 + 1).max().unwrap_or(1),
        }
    }

    /// The same on the scales of both, so that lengths and colours of the two can be compared.
    pub(super) fn beside(self, other: &TimelinePicture<'_>) -> Self {
        Self {
            lowest: self.lowest.min(other.lowest),
            highest: self.highest.max(other.highest),
            length_s: self.length_s.max(other.length_s),
            ..self
        }
    }

    /// Wide and high enough for the name of each instruction, as far as that is bearable.
    pub(super) fn size(&self) -> Size {
        let stages = self.timeline.stages.len() as i32;
        let row = if stages > 16 { LOWEST_ROW } else { 52 };
        let width = (self.room() + LEFT + RIGHT).clamp(1000, 1920);
        let bands = self.bands(width).min((6000 / (stages * row + BOTTOM)).max(1));
        let height = (bands * (stages * row + BOTTOM) + TOP).clamp(240, 20_000);
        Size { width: width as u32, height: height as u32 }
    }

    /// For the instructions of a stage and their names.
    fn room(&self) -> i32 {
        let most = self.timeline.stages.iter().map(Vec::len).max().unwrap_or(0) as i32;
        most * if self.chunks > 1 { ROOM + CHUNK_ROOM } else { ROOM }
    }

    /// Into how many bands a step is to be broken so that its instructions can be named.
    fn bands(&self, width: i32) -> i32 {
        let width = (width - LEFT - RIGHT).max(1);
        ((self.room() * 5 / 8 + width - 1) / width).max(1)
    }

    fn frames(&self, (width, height): (u32, u32)) -> Vec<Frame> {
        let (width, height) = (width as i32, height as i32);
        let stages = self.timeline.stages.len().max(1) as i32;
        let most = (height - TOP) / (stages * LOWEST_ROW + BOTTOM);
        let bands = self.bands(width).min(most).max(1);
        let length_s = self.length_s / f64::from(bands);
        let band = (height - TOP) / bands;
        (0..bands)
            .map(|number| Frame {
                top: TOP + number * band,
                width: width - LEFT - RIGHT,
                row: ((band - BOTTOM) / stages).max(GAP + 4),
                from_s: f64::from(number) * length_s,
                length_s,
            })
            .collect()
    }

    fn share(&self, value: f64) -> f64 {
        if self.highest > self.lowest {
            (value - self.lowest) / (self.highest - self.lowest)
        } else {
            1.0
        }
    }
}

fn value(span: &Span, colouring: Colouring) -> f64 {
    match colouring {
        Colouring::Power => span.power_w(),
        Colouring::Frequency => f64::from(span.frequency.0),
    }
}

/// One band: where it is, and which part of the step is in it.
struct Frame {
    top: i32,
    width: i32,
    row: i32,
    from_s: f64,
    length_s: f64,
}

impl Frame {
    fn to_s(&self) -> f64 {
        self.from_s + self.length_s
    }

    /// A time that is not in this band is at its nearer end.
    fn x(&self, time_s: f64) -> i32 {
        let share = ((time_s - self.from_s) / self.length_s).clamp(0.0, 1.0);
        LEFT + (share * f64::from(self.width)).round() as i32
    }

    fn top(&self, stage: usize) -> i32 {
        self.top + self.row * stage as i32 + GAP / 2
    }

    fn bottom(&self, stage: usize) -> i32 {
        self.top(stage) + self.row - GAP
    }

    fn middle(&self, stage: usize) -> i32 {
        i32::midpoint(self.top(stage), self.bottom(stage))
    }
}

impl Picture for TimelinePicture<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        area.fill(&PAPER)?;
        area.draw(&Text::new(self.title.clone(), (LEFT, 14), text(20, INK, HPos::Left)))?;
        self.legend(area)?;
        for frame in self.frames(area.dim_in_pixel()) {
            self.band(area, &frame)?;
        }
        Ok(())
    }
}

impl TimelinePicture<'_> {
    fn band<B: DrawingBackend>(&self, area: &Area<B>, frame: &Frame) -> Drawn<B> {
        self.axis(area, frame)?;
        for (stage, spans) in self.timeline.stages.iter().enumerate() {
            let label = format!("stage {stage}");
            let at = (LEFT - 10, frame.middle(stage));
            area.draw(&Text::new(label, at, text(15, INK, HPos::Right)))?;
            let ends = [(LEFT, frame.top(stage)), (LEFT + frame.width, frame.bottom(stage))];
            area.draw(&Rectangle::new(ends, WAITING.filled()))?;
            let is_in = |span: &&Span| span.end_s > frame.from_s && span.start_s < frame.to_s();
            for span in spans.iter().filter(is_in) {
                self.span(area, frame, stage, span)?;
            }
        }
        self.critical_path(area, frame)
    }

    fn span<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        frame: &Frame,
        stage: usize,
        span: &Span,
    ) -> Drawn<B> {
        let (left, right) = (frame.x(span.start_s), frame.x(span.end_s));
        let (mut top, bottom) = (frame.top(stage), frame.bottom(stage));
        let fill = |ends, colour: RGBColor| area.draw(&Rectangle::new(ends, colour.filled()));
        // A pixel between neighbours, where there is one to spare.
        let end = if right - left > 3 { right - 1 } else { right.max(left + 1) };
        // Lower ones are forwards, so that a step's shape is seen where no letter fits. Above them
        // nothing waits.
        fill([(left, top), (right, bottom)], PAPER)?;
        if span.instruction == Instruction::Forward {
            top += (bottom - top) / 4;
        }
        let right = end;
        let share = self.share(value(span, self.colouring));
        fill([(left, top), (right, bottom)], ramp(share))?;
        if let Some(colour) = chunk_colour(span.chunk) {
            fill([(left, bottom - CHUNK_MARK), (right, bottom)], colour)?;
        }
        let number = if self.chunks > 1 {
            format!("{}\u{b7}{}", span.microbatch, span.chunk)
        } else {
            span.microbatch.to_string()
        };
        let long = format!("{}{number}", letter(span.instruction));
        let fits = |text: &str| letters_width(text) + 2 <= right - left;
        let label = [long, number].into_iter().find(|text| fits(text));
        // The middle is the critical path's.
        let at = (i32::midpoint(left, right), bottom - CHUNK_MARK - 6);
        if let Some(label) = label.filter(|_| bottom - top > 24) {
            area.draw(&Text::new(label, at, text(13, on_ramp(share), HPos::Center)))?;
        }
        Ok(())
    }

    /// From instruction to instruction, through the rows that it visits.
    fn critical_path<B: DrawingBackend>(&self, area: &Area<B>, frame: &Frame) -> Drawn<B> {
        let mut visited: Vec<(f64, f64, usize)> = self
            .timeline
            .stages
            .iter()
            .enumerate()
            .flat_map(|(stage, spans)| {
                let critical = spans.iter().filter(|span| {
                    span.is_critical && span.end_s > frame.from_s && span.start_s < frame.to_s()
                });
                critical.map(move |span| (span.start_s, span.end_s, stage))
            })
            .collect();
        visited.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<(i32, i32)> = visited
            .into_iter()
            .flat_map(|(start_s, end_s, stage)| {
                let y = frame.middle(stage) - 6;
                [(frame.x(start_s), y), (frame.x(end_s), y)]
            })
            .collect();
        area.draw(&PathElement::new(path, CHOSEN.stroke_width(2)))
    }

    fn axis<B: DrawingBackend>(&self, area: &Area<B>, frame: &Frame) -> Drawn<B> {
        let bottom = frame.top(self.timeline.stages.len()) + 4;
        area.draw(&PathElement::new([(LEFT, bottom), (LEFT + frame.width, bottom)], FAINT))?;
        let step_s = tick(frame.length_s, (frame.width / 110).max(2));
        let decimals = (-step_s.log10().floor()).clamp(0.0, 9.0) as usize;
        let first = (frame.from_s / step_s).ceil() as u32;
        for place in first..=(frame.to_s() / step_s) as u32 {
            let time_s = f64::from(place) * step_s;
            let x = frame.x(time_s);
            area.draw(&PathElement::new([(x, bottom), (x, bottom + 6)], FAINT))?;
            let at = (x, bottom + 18);
            let label = format!("{time_s:.decimals$} s");
            area.draw(&Text::new(label, at, text(14, INK, HPos::Center)))?;
        }
        Ok(())
    }

    /// What colours and shapes tell, and below it what letters do.
    fn legend<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        const WIDTH: i32 = 160;
        const Y: i32 = 48;
        let unit = match self.colouring {
            Colouring::Power => "W",
            Colouring::Frequency => "MHz",
        };
        let write = |at: i32, words: String| {
            let after = at + letters_width(&words);
            area.draw(&Text::new(words, (at, Y + 7), text(14, INK, HPos::Left))).map(|()| after)
        };
        let mut x = write(LEFT, format!("{:.0} {unit} ", self.lowest))? + 4;
        for pixel in 0..WIDTH {
            let share = match self.highest - self.lowest < 0.5 {
                true => 1.0,
                false => f64::from(pixel) / f64::from(WIDTH - 1),
            };
            let ends = [(x + pixel, Y), (x + pixel + 1, Y + 14)];
            area.draw(&Rectangle::new(ends, ramp(share).filled()))?;
        }
        // One value has no second end.
        let highest = match self.highest - self.lowest < 0.5 {
            true => String::new(),
            false => format!("{:.0} {unit}", self.highest),
        };
        x = write(x + WIDTH + 8, highest)? + 32;
        let swatch = |x: i32, top: i32, colour: RGBColor| {
            area.draw(&Rectangle::new([(x, top), (x + 22, Y + 14)], colour.filled()))
        };
        swatch(x, Y + 4, ramp(0.6))?;
        x = write(x + 30, "forward".to_owned())? + 24;
        swatch(x, Y, ramp(0.6))?;
        x = write(x + 30, self.beside_forwards())? + 24;
        swatch(x, Y, WAITING)?;
        x = write(x + 30, "waits".to_owned())? + 24;
        let line = [(x, Y + 7), (x + 22, Y + 7)];
        area.draw(&PathElement::new(line, CHOSEN.stroke_width(2)))?;
        x = write(x + 30, "critical path".to_owned())? + 24;
        for chunk in (1..self.chunks).take(CHUNKS.len()).map(Chunk) {
            if let Some(colour) = chunk_colour(chunk) {
                swatch(x, Y + 14 - CHUNK_MARK, colour)?;
                x = write(x + 30, format!("chunk {chunk}"))? + 24;
            }
        }
        let at = (LEFT, Y + 29);
        area.draw(&Text::new(self.letters(), at, text(14, FAINT, HPos::Left)))
    }

    /// The instructions that are drawn higher than forwards.
    fn beside_forwards(&self) -> String {
        const MOST: usize = 2;
        let names: Vec<String> = self
            .instructions()
            .filter(|instruction| *instruction != Instruction::Forward)
            .map(|instruction| instruction.to_string())
            .collect();
        if names.len() > MOST { "others".to_owned() } else { names.join(", ") }
    }

    /// The kinds of instructions of the step.
    fn instructions(&self) -> impl Iterator<Item = Instruction> {
        let is_run = |instruction: &Instruction| {
            self.timeline.stages.iter().flatten().any(|span| span.instruction == *instruction)
        };
        Instruction::ALL.into_iter().filter(is_run)
    }

    /// What the letters of the instructions stand for.
    fn letters(&self) -> String {
        let mut words: Vec<String> = self
            .instructions()
            .map(|instruction| format!("{} {instruction}", letter(instruction)))
            .collect();
        words.push(match self.chunks {
            1 => "then the microbatch".to_owned(),
            _ => "then the microbatch\u{b7}chunk".to_owned(),
        });
        words.join(", ")
    }
}

/// A mark for chunks, so that they can be distinguished where no number fits; the first one has
/// none.
fn chunk_colour(chunk: Chunk) -> Option<RGBColor> {
    usize::from(chunk.0).checked_sub(1).map(|mark| CHUNKS[mark % CHUNKS.len()])
}

fn letters_width(text: &str) -> i32 {
    text.chars().count() as i32 * LETTER_WIDTH
}

fn text(size: u32, colour: RGBColor, anchor: HPos) -> TextStyle<'static> {
    let mut style = TextStyle::from(("sans-serif", size).into_font());
    style.color = colour.to_backend_color();
    style.pos(Pos::new(anchor, VPos::Center))
}

fn letter(instruction: Instruction) -> &'static str {
    match instruction {
        Instruction::Forward => "F",
        Instruction::Backward => "B",
        Instruction::ForwardBackward => "FB",
        Instruction::Recomputation => "R",
        Instruction::BackwardInput => "I",
        Instruction::BackwardWeight => "W",
        Instruction::Load => "L",
        Instruction::P2p => "P",
        Instruction::Collective => "C",
        Instruction::OptimizerStep => "S",
        Instruction::Other => "O",
    }
}

/// A round distance that divides a length into about this many ticks.
fn tick(length: f64, count: i32) -> f64 {
    let least = length / f64::from(count);
    let magnitude = 10_f64.powf(least.log10().floor());
    let round = [1.0, 2.0, 5.0].map(|factor| factor * magnitude);
    round.into_iter().find(|&distance| distance >= least).unwrap_or(10.0 * magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_not_more_than_wanted() {
        for (length, count, expected) in [(3.27, 8, 0.5), (41.0, 20, 5.0), (0.9, 10, 0.1)] {
            let distance = tick(length, count);
            assert!((distance - expected).abs() < 1e-9, "{distance}");
            assert!(length / distance <= f64::from(count) + 1e-9);
        }
    }
}
