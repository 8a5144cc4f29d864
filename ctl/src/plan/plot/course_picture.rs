//! What GPUs did over some seconds as a picture: clocks above, power below, a line for each GPU.

use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::element::PathElement;
use plotters::series::LineSeries;
use plotters::style::Color;
use plotters_backend::DrawingBackend;

use super::chart::{draw_legend, small};
use super::colours::{FAINT, PAPER, ramp};
use super::picture::{Area, Drawn, Picture, Size};

/// One GPU: what was seen at which second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Course {
    pub(crate) name: String,
    pub(crate) mhz: Vec<(f64, f64)>,
    pub(crate) power_w: Vec<(f64, f64)>,
}

/// The most lines that a reader can distinguish.
const MOST: usize = 8;

pub(super) struct CoursePicture<'a> {
    courses: &'a [Course],
}

impl<'a> CoursePicture<'a> {
    pub(super) const SIZE: Size = Size { width: 1200, height: 640 };

    /// Of the first GPUs, if there are many.
    pub(super) fn new(courses: &'a [Course]) -> Self {
        Self { courses: &courses[..courses.len().min(MOST)] }
    }

    fn half<B: DrawingBackend>(&self, area: &Area<B>, what: &Half) -> Drawn<B> {
        let all = || self.courses.iter().flat_map(what.of);
        let longest_s = all().map(|at| at.0).fold(0.0, f64::max).max(0.1);
        let highest = all().map(|at| at.1).fold(0.0, f64::max).max(1.0);
        let small = small();
        let mut chart = ChartBuilder::on(area)
            .margin(14)
            .x_label_area_size(if what.is_last { 54 } else { 30 })
            .y_label_area_size(96)
            .build_cartesian_2d(0.0..longest_s, 0.0..highest * 1.15)?;
        let written = |value: &f64| format!("{value:.0} {}", what.unit);
        chart
            .configure_mesh()
            .x_labels(10)
            .y_labels(6)
            .x_desc(if what.is_last { "time" } else { "" })
            .y_desc(what.name)
            .x_label_formatter(&|&s| format!("{s:.1} s"))
            .y_label_formatter(&written)
            .axis_desc_style(small.clone())
            .label_style(small.clone())
            .bold_line_style(FAINT.mix(0.25))
            .light_line_style(FAINT.mix(0.08))
            .axis_style(FAINT)
            .draw()?;
        for (index, course) in self.courses.iter().enumerate() {
            let share = (index + 1) as f64 / self.courses.len() as f64;
            let style = ramp(share).stroke_width(2);
            chart
                .draw_series(LineSeries::new((what.of)(course).iter().copied(), style))?
                .label(&course.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
        }
        if !what.is_last {
            draw_legend(&mut chart, SeriesLabelPosition::LowerRight)?;
        }
        Ok(())
    }
}

/// What one half of the picture shows.
struct Half {
    name: &'static str,
    unit: &'static str,
    of: fn(&Course) -> &Vec<(f64, f64)>,
    is_last: bool,
}

const CLOCKS: Half = Half { name: "SM clock", unit: "MHz", of: |one| &one.mhz, is_last: false };
const POWER: Half = Half { name: "power", unit: "W", of: |one| &one.power_w, is_last: true };

impl Picture for CoursePicture<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        area.fill(&PAPER)?;
        let (above, below) = area.split_vertically(Self::SIZE.height / 2);
        self.half(&above, &CLOCKS)?;
        self.half(&below, &POWER)
    }
}
