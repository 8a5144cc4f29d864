//! Bars with intervals, as SVG.

use std::fmt::Write;

use pfo_protocol::SavedEnergy;

use crate::report::escaped;
use crate::status::quantity::watt_hours;

/// A name, and what was saved there.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) saved: Option<SavedEnergy>,
}

const WIDTH: f64 = 720.0;
const ROW: f64 = 26.0;
/// Where bars are: right of names, left of figures.
const FROM: f64 = 170.0;
const TO: f64 = 610.0;

/// Letters of a name that are drawn.
const MOST_LETTERS: usize = 20;

/// A picture of these; none if nothing was compared.
pub(super) fn bars(bars: &[Bar]) -> Option<String> {
    let known: Vec<_> = bars.iter().filter_map(|bar| Some((bar, bar.saved?))).collect();
    let ends = || known.iter().flat_map(|(_, saved)| [saved.low_j, saved.high_j, saved.estimate_j]);
    let (low, high) = ends().fold((0.0_f64, 0.0_f64), |(low, high), j| (low.min(j), high.max(j)));
    if !(high - low > 0.0 && (high - low).is_finite()) {
        return None;
    }
    let x = |j: f64| FROM + (j - low) / (high - low) * (TO - FROM);
    let height = ROW * known.len() as f64 + 12.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#212529\">\n"
    );
    for (row, (bar, saved)) in known.iter().enumerate() {
        let y = 6.0 + ROW * row as f64;
        let middle = y + ROW / 2.0;
        let (from, to) = (x(saved.estimate_j.min(0.0)), x(saved.estimate_j.max(0.0)));
        let colour = if saved.estimate_j < 0.0 { "#c2410c" } else { "#2b8a3e" };
        let paint = if saved.shown { 1.0 } else { 0.35 };
        let name: String = bar.name.chars().take(MOST_LETTERS).collect();
        // Writing to a string never fails.
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\" \
             fill-opacity=\"{paint}\"/>\n\
             <path d=\"M{:.1} {middle:.1}H{:.1}M{:.1} {:.1}v8M{:.1} {:.1}v8\" stroke=\"#212529\" \
             fill=\"none\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            FROM - 8.0,
            middle + 4.0,
            escaped(&name),
            y + 5.0,
            to - from,
            ROW - 10.0,
            x(saved.low_j),
            x(saved.high_j),
            x(saved.low_j),
            middle - 4.0,
            x(saved.high_j),
            middle - 4.0,
            TO + 8.0,
            middle + 4.0,
            escaped(&watt_hours(saved.estimate_j)),
        );
    }
    let zero = x(0.0);
    let _ = write!(
        svg,
        "<path d=\"M{zero:.1} 2V{:.1}\" stroke=\"#868e96\" fill=\"none\"/>\n</svg>\n",
        height - 2.0
    );
    Some(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, low_j: f64, estimate_j: f64, high_j: f64) -> Bar {
        let shown = low_j > 0.0 || high_j < 0.0;
        Bar { name: name.into(), saved: Some(SavedEnergy { low_j, estimate_j, high_j, shown }) }
    }

    #[test]
    fn a_bar_has_its_interval_and_what_is_not_shown_is_pale() {
        let svg = bars(&[
            bar("alice", 3.6e6, 7.2e6, 10.8e6),
            bar("<bob>", -3.6e6, 1e6, 7.2e6),
            Bar { name: "carol".into(), saved: None },
        ]);
        insta::assert_snapshot!(svg.unwrap());
    }

    #[test]
    fn where_nothing_was_compared_there_is_no_picture() {
        assert_eq!(bars(&[]), None);
        assert_eq!(bars(&[Bar { name: "carol".into(), saved: None }]), None);
        assert_eq!(bars(&[bar("nothing", 0.0, 0.0, 0.0)]), None);
        assert_eq!(bars(&[bar("no figure", 0.0, f64::NAN, f64::INFINITY)]), None);
    }
}
