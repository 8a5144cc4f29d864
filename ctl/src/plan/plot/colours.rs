//! The colours of pictures; they can be distinguished without telling red from green.

use plotters::style::RGBColor;

/// Text and axes.
pub(super) const INK: RGBColor = RGBColor(33, 37, 41);
/// What matters less.
pub(super) const FAINT: RGBColor = RGBColor(134, 142, 150);
/// A stage's row where it waits.
pub(super) const WAITING: RGBColor = RGBColor(237, 239, 241);
/// Between things that touch.
pub(super) const PAPER: RGBColor = RGBColor(255, 255, 255);
/// The frontier.
pub(super) const OURS: RGBColor = RGBColor(28, 100, 178);
/// The plan that was chosen, and the critical path.
pub(super) const CHOSEN: RGBColor = RGBColor(230, 85, 13);

/// Points of others, in the order in which they are given.
const OTHERS: [RGBColor; 4] =
    [RGBColor(122, 62, 157), RGBColor(0, 128, 115), RGBColor(191, 144, 0), RGBColor(200, 60, 110)];

/// The colour of the so-many-th set of points.
pub(super) fn other(index: usize) -> RGBColor {
    OTHERS[index % OTHERS.len()]
}

/// Marks of model chunks but the first, on any colour of the ramp.
pub(super) const CHUNKS: [RGBColor; 4] =
    [RGBColor(224, 49, 113), RGBColor(245, 186, 20), RGBColor(150, 90, 200), INK];

/// From low to high.
const RAMP: [RGBColor; 4] =
    [RGBColor(178, 226, 205), RGBColor(84, 178, 196), RGBColor(48, 105, 175), RGBColor(43, 30, 98)];

/// The colour of a share from 0 to 1.
pub(super) fn ramp(share: f64) -> RGBColor {
    let place = share.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let below = (place as usize).min(RAMP.len() - 2);
    let part = place - below as f64;
    let (low, high) = (RAMP[below], RAMP[below + 1]);
    let mix = |low: u8, high: u8| {
        (f64::from(low) + part * (f64::from(high) - f64::from(low))).round() as u8
    };
    RGBColor(mix(low.0, high.0), mix(low.1, high.1), mix(low.2, high.2))
}

/// Ink that can be read on a colour of the ramp.
pub(super) fn on_ramp(share: f64) -> RGBColor {
    if share > 0.45 { PAPER } else { INK }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ramp_runs_from_its_first_to_its_last_colour() {
        assert_eq!(ramp(0.0), RAMP[0]);
        assert_eq!(ramp(1.0), RAMP[3]);
        assert_eq!(ramp(-3.0), RAMP[0]);
    }
}
