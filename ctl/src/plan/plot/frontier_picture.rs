//! A frontier as a picture: iteration time against energy, with the plans for stragglers, the bound
//! below all plans, the chosen plan, the highest clocks, and points of others.

use pfo_planner::{Deadline, Frontier, LowerBound, Plan, Point};
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::element::{Circle, Cross, EmptyElement, PathElement, Text, TriangleMarker};
use plotters::series::LineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, ShapeStyle, TextStyle};
use plotters_backend::DrawingBackend;

use super::chart::{Chart, draw_legend, small};
use super::colours::{CHOSEN, FAINT, INK, OURS, PAPER, other};
use super::picture::{Area, Drawn, Picture, Size};
use super::points::{Origin, Points};
use crate::status::quantity::{change, joules, percent, seconds};
use pfo_experiment::Cost;

pub(super) struct FrontierPicture {
    title: String,
    /// Seconds and joules, fastest first.
    frontier: Vec<(f64, f64)>,
    /// From the plan of least energy on.
    tail: Vec<(f64, f64)>,
    /// Below the frontier and its tail.
    bound: Vec<(f64, f64)>,
    chosen: (f64, f64),
    chosen_label: String,
    all_max: (f64, f64),
    over: Vec<Over>,
}

/// Points that have room to be large.
const FEW: usize = 12;

/// Points of others and what the legend says of them.
struct Over {
    label: String,
    is_line: bool,
    points: Vec<(f64, f64)>,
}

impl FrontierPicture {
    pub(super) const SIZE: Size = Size { width: 1200, height: 720 };

    pub(super) fn new(
        frontier: &Frontier,
        chosen: &Plan,
        called: &str,
        all_max: Cost,
        over: Vec<Points>,
    ) -> Self {
        let pipeline = frontier.pipeline();
        let pair = |point: Point| (point.iteration_time_s, point.iteration_energy_j);
        let points: Vec<(f64, f64)> = frontier.points().map(pair).collect();
        let chosen = chosen.predicted.map_or(points[0], |predicted| {
            (predicted.iteration_time_s, predicted.iteration_energy_j)
        });
        let cheapest_s = frontier.seconds(Deadline::MinEnergy);
        let plans = frontier.plans().map(pair);
        let tail = plans.filter(|&(time_s, _)| time_s >= cheapest_s).collect();
        let bound = frontier.bound();
        let over = over.into_iter().map(|points| Over::new(points, &bound)).collect();
        let highest = (all_max.iteration_time_s, all_max.iteration_energy_j);
        let label = format!(
            "{called}: {}, {} ({})",
            seconds(chosen.0),
            joules(chosen.1),
            change(chosen.1 / highest.1 - 1.0),
        );
        Self {
            title: format!(
                "{}{} stages, {} microbatches, {}: {} plans, up to {} saved",
                frontier.gpu.as_ref().map_or_else(String::new, |gpu| format!("{gpu}, ")),
                pipeline.profile().num_stages(),
                pipeline.num_microbatches(),
                pipeline.schedule(),
                points.len(),
                percent(1.0 - points[points.len() - 1].1 / highest.1),
            ),
            frontier: points,
            tail,
            bound: bound_below(frontier, &bound),
            chosen,
            chosen_label: label,
            all_max: highest,
            over,
        }
    }

    /// What a coordinate of all points spans, with some room around it.
    fn range(&self, coordinate: impl Fn(&(f64, f64)) -> f64) -> std::ops::Range<f64> {
        let over = self.over.iter().flat_map(|over| &over.points);
        let own = self.frontier.iter().chain(&self.tail).chain(&self.bound);
        let all = own.chain([&self.chosen, &self.all_max]).chain(over);
        let (low, high) =
            all.map(coordinate).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        let room = match (high - low) * 0.06 {
            0.0 => (high.abs() * 0.05).max(1e-9),
            room => room,
        };
        low - room..high + room
    }

    /// The frontier, the points over it, and the plans that are marked.
    fn series<B: DrawingBackend>(&self, chart: &mut Chart<'_, B>) -> Drawn<B> {
        for (index, over) in self.over.iter().enumerate() {
            let colour = other(index);
            if over.is_line {
                line(chart, &over.points, colour.stroke_width(2), &over.label)?;
                continue;
            }
            let (size, style) = match over.points.len() {
                ..=FEW => (6, colour.stroke_width(2)),
                _ => (3, colour.mix(0.7).into()),
            };
            chart
                .draw_series(over.points.iter().map(|&at| Cross::new(at, size, style)))?
                .label(&over.label)
                .legend(move |(x, y)| Cross::new((x + 10, y), 4, colour.stroke_width(2)));
        }
        line(chart, &self.bound, FAINT.stroke_width(1), "bound: no plan takes less")?;
        line(chart, &self.frontier, OURS.stroke_width(2), "frontier")?;
        if self.tail.len() > 1 {
            line(chart, &self.tail, OURS.mix(0.45).stroke_width(2), "for stragglers")?;
        }
        // Dots that touch would hide the line's shape and say nothing.
        if self.frontier.len() <= 120 {
            chart.draw_series(self.frontier.iter().map(|&at| Circle::new(at, 2, OURS.filled())))?;
        }
        chart
            .draw_series([TriangleMarker::new(self.all_max, 8, INK.filled())])?
            .label("highest clocks")
            .legend(|(x, y)| TriangleMarker::new((x + 10, y), 6, INK.filled()));
        let chosen = EmptyElement::at(self.chosen)
            + Circle::new((0, 0), 7, CHOSEN.filled())
            + Circle::new((0, 0), 3, PAPER.filled());
        chart
            .draw_series([chosen])?
            .label(&self.chosen_label)
            .legend(|(x, y)| Circle::new((x + 10, y), 6, CHOSEN.filled()));
        Ok(())
    }
}

impl Over {
    fn new(Points { name, origin, points }: Points, bound: &LowerBound) -> Self {
        // Sums of the same energies in another order.
        const ROUNDING: f64 = 1e-9;
        let label = match origin {
            Origin::Replayed => format!("{name}, replayed"),
            Origin::Measured => format!("{name}, measured"),
            Origin::Claimed => {
                let is_impossible = |&&(time_s, energy_j): &&(f64, f64)| {
                    time_s < bound.fastest_s()
                        || energy_j < bound.energy_j(time_s) * (1.0 - ROUNDING)
                };
                match points.iter().filter(is_impossible).count() {
                    0 => format!("{name}, as claimed"),
                    below => format!("{name}, as claimed: {below} below the bound"),
                }
            }
        };
        Self { label, is_line: origin == Origin::Replayed, points }
    }
}

/// The bound from the fastest time to the slowest plan.
fn bound_below(frontier: &Frontier, bound: &LowerBound) -> Vec<(f64, f64)> {
    const POINTS: u32 = 240;
    let slowest_s = frontier.plans().last().map_or(0.0, |plan| plan.iteration_time_s);
    let apart_s = (slowest_s - bound.fastest_s()).max(0.0) / f64::from(POINTS);
    let times = (0..=POINTS).map(|number| bound.fastest_s() + f64::from(number) * apart_s);
    times.map(|time_s| (time_s, bound.energy_j(time_s))).collect()
}

fn line<B: DrawingBackend>(
    chart: &mut Chart<'_, B>,
    points: &[(f64, f64)],
    style: ShapeStyle,
    label: &str,
) -> Drawn<B> {
    chart
        .draw_series(LineSeries::new(points.iter().copied(), style))?
        .label(label)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    Ok(())
}

impl Picture for FrontierPicture {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        area.fill(&PAPER)?;
        let small = small();
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, TextStyle::from(("sans-serif", 20).into_font()).color(&INK))
            .margin(18)
            .x_label_area_size(54)
            .y_label_area_size(96)
            .build_cartesian_2d(self.range(|point| point.0), self.range(|point| point.1))?;
        chart
            .configure_mesh()
            .x_desc("iteration time")
            .y_desc("energy of a step")
            .x_labels(10)
            .y_labels(10)
            .x_label_formatter(&|&value| seconds(value))
            .y_label_formatter(&|&value| joules(value))
            .axis_desc_style(small.clone())
            .label_style(small.clone())
            .bold_line_style(FAINT.mix(0.25))
            .light_line_style(FAINT.mix(0.08))
            .axis_style(FAINT)
            .draw()?;
        self.series(&mut chart)?;
        let beside = small.clone().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        let label = EmptyElement::at(self.all_max)
            + Text::new(
                format!("{}, {}", seconds(self.all_max.0), joules(self.all_max.1)),
                (12, 0),
                beside,
            );
        chart.draw_series([label])?;
        draw_legend(&mut chart, SeriesLabelPosition::UpperRight)
    }
}
