//! Text in bitmaps, from letters that are part of the program.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use plotters::prelude::BitMapBackend;
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
    text_anchor::{HPos, VPos},
};

/// A bitmap that can be written on.
pub(super) struct Lettered<'a>(pub(super) BitMapBackend<'a>);

type Drawn<'a> = Result<(), DrawingErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>>;

impl<'a> DrawingBackend for Lettered<'a> {
    type ErrorType = <BitMapBackend<'a> as DrawingBackend>::ErrorType;

    fn get_size(&self) -> (u32, u32) {
        self.0.get_size()
    }

    fn ensure_prepared(&mut self) -> Drawn<'a> {
        self.0.ensure_prepared()
    }

    fn present(&mut self) -> Drawn<'a> {
        self.0.present()
    }

    fn draw_pixel(&mut self, point: BackendCoord, color: BackendColor) -> Drawn<'a> {
        self.0.draw_pixel(point, color)
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
    ) -> Drawn<'a> {
        self.0.draw_line(from, to, style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        upper_left: BackendCoord,
        bottom_right: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn<'a> {
        self.0.draw_rect(upper_left, bottom_right, style, fill)
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Self::ErrorType>> {
        let height = raster_height(style.size());
        let width = get_raster_width(FontWeight::Regular, height) * text.chars().count();
        Ok((width as u32, height.val() as u32))
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        at: BackendCoord,
    ) -> Drawn<'a> {
        let height = raster_height(style.size());
        let letter_width = get_raster_width(FontWeight::Regular, height) as i32;
        let width = letter_width * text.chars().count() as i32;
        let left = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Center => -width / 2,
            HPos::Right => -width,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -(height.val() as i32) / 2,
            VPos::Bottom => -(height.val() as i32),
        };
        let (turn, color) = (style.transform(), style.color());
        for (place, letter) in (0..).zip(text.chars()) {
            let raster = get_raster(letter, FontWeight::Regular, height)
                .or_else(|| get_raster('?', FontWeight::Regular, height));
            let Some(raster) = raster else { continue };
            for (y, row) in (0..).zip(raster.rows()) {
                for (x, &shade) in (0..).zip(row).filter(|(_, shade)| **shade > 0) {
                    let (x, y) = turn.transform(left + place * letter_width + x, top + y);
                    let alpha = color.alpha * f64::from(shade) / 255.0;
                    self.0
                        .draw_pixel((at.0 + x, at.1 + y), BackendColor { alpha, rgb: color.rgb })?;
                }
            }
        }
        Ok(())
    }
}

/// The letters that come nearest to a font's size; they are a little smaller than their raster.
fn raster_height(font_size: f64) -> RasterHeight {
    match font_size {
        size if size < 17.0 => RasterHeight::Size16,
        size if size < 20.5 => RasterHeight::Size20,
        _ => RasterHeight::Size24,
    }
}
