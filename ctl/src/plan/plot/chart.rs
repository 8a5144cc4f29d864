//! What charts have in common.

use plotters::chart::{ChartContext, SeriesLabelPosition};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::Cartesian2d;
use plotters::style::{Color, IntoFont, TextStyle};
use plotters_backend::DrawingBackend;

use super::colours::{FAINT, INK, PAPER};
use super::picture::Drawn;

/// One figure over another one.
pub(super) type Chart<'a, B> = ChartContext<'a, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The text beside axes, points and lines.
pub(super) fn small() -> TextStyle<'static> {
    TextStyle::from(("sans-serif", 15).into_font()).color(&INK)
}

/// Says which series is which.
pub(super) fn draw_legend<'a, B: DrawingBackend + 'a>(
    chart: &mut Chart<'a, B>,
    position: SeriesLabelPosition,
) -> Drawn<B> {
    chart
        .configure_series_labels()
        .position(position)
        .margin(14)
        .legend_area_size(28)
        .label_font(small())
        .background_style(PAPER.mix(0.9))
        .border_style(FAINT)
        .draw()
}
