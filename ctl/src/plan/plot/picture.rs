//! A picture's file: SVG, whose reader has fonts, or PNG, for which this brings letters along, so
//! that a machine without any font draws the same.

use std::path::Path;
use std::str::FromStr;

use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::prelude::{BitMapBackend, SVGBackend};
use plotters_backend::DrawingBackend;

use super::lettering::Lettered;
use crate::failure::Failure;

/// Where to draw, in pixels from the top left corner.
pub(super) type Area<B> = DrawingArea<B, Shift>;

/// What a stroke may fail with.
pub(super) type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Something that can be drawn in any format.
pub(super) trait Picture {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B>;
}

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Svg,
    Png,
}

impl Form {
    /// By the end of a file's name.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "svg" => Some(Self::Svg),
            "png" => Some(Self::Png),
            _ => None,
        }
    }
}

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: u32,
    pub(super) height: u32,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let side = |text: &str| text.parse().ok().filter(|side| (200..=20_000).contains(side));
        text.split_once('x')
            .and_then(|(width, height)| Some(Self { width: side(width)?, height: side(height)? }))
            .ok_or_else(|| "give width and height from 200 to 20000, such as 1600x600".to_owned())
    }
}

/// The bytes of a picture's file.
pub(super) fn draw(form: Form, size: Size, picture: &impl Picture) -> Result<Vec<u8>, Failure> {
    let dimensions = (size.width, size.height);
    match form {
        Form::Svg => {
            let mut text = String::new();
            {
                let area = SVGBackend::with_string(&mut text, dimensions).into_drawing_area();
                picture.draw(&area).and_then(|()| area.present()).map_err(failed)?;
            }
            Ok(text.into_bytes())
        }
        Form::Png => {
            let mut pixels = vec![0; size.width as usize * size.height as usize * 3];
            {
                let bitmap = BitMapBackend::with_buffer(&mut pixels, dimensions);
                let area = Lettered(bitmap).into_drawing_area();
                picture.draw(&area).and_then(|()| area.present()).map_err(failed)?;
            }
            png(size, &pixels).map_err(failed)
        }
    }
}

fn png(size: Size, pixels: &[u8]) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, size.width, size.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(pixels)?;
    Ok(bytes)
}

fn failed(error: impl std::error::Error) -> Failure {
    Failure::Draw { problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_follows_from_the_files_name() {
        assert_eq!(Form::of(Path::new("a/b.svg")), Some(Form::Svg));
        assert_eq!(Form::of(Path::new("b.PNG")), Some(Form::Png));
        assert_eq!(Form::of(Path::new("b.pdf")), None);
        assert_eq!(Form::of(Path::new("svg")), None);
    }

    #[test]
    fn a_size_is_two_numbers_of_pixels() {
        assert_eq!("1600x600".parse(), Ok(Size { width: 1600, height: 600 }));
        for text in ["", "1600", "x", "10x10", "99999x600", "-1x600"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
