//! Numbers as arguments, within the bounds that they have.

use std::ops::RangeInclusive;

use pfo_planner::{PerStage, Watts};
use pfo_protocol::Mhz;

/// The most steps that a measurement takes.
pub(crate) const MOST_STEPS: u32 = 10_000;

/// A parser of whole numbers within these bounds.
pub(crate) fn whole(
    bounds: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.trim().parse().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| match (bounds.start(), bounds.end()) {
            (least, &u32::MAX) => format!("give a whole number from {least}"),
            (least, most) => format!("give a whole number from {least} to {most}"),
        })
    }
}

/// A number of steps.
pub(crate) fn steps(text: &str) -> Result<u32, String> {
    whole(1..=MOST_STEPS)(text)
}

/// A number of at least 1.
pub(crate) fn positive(text: &str) -> Result<u32, String> {
    whole(1..=u32::MAX)(text)
}

/// A clock, or a distance between clocks.
pub(crate) fn mhz(text: &str) -> Result<Mhz, String> {
    let clock = text.trim().trim_end_matches("MHz").trim_end().parse().ok().map(Mhz);
    let complaint = || format!("give MHz from 1 to {}, such as 1200", Mhz::MAX.0);
    clock.filter(|clock| clock.is_plausible()).ok_or_else(complaint)
}

/// A power that a GPU may draw.
pub(crate) fn watts(text: &str) -> Result<Watts, String> {
    /// No GPU draws more; a higher number is another unit.
    const MOST_W: f64 = 10_000.0;
    let watts = text.trim().trim_end_matches('W').trim_end().parse().ok();
    let watts = watts.filter(|watts: &f64| *watts >= 0.0 && *watts <= MOST_W);
    watts.map(Watts).ok_or_else(|| "give watts from 0 to 10000, such as 83.6".to_owned())
}

/// The power of all stages, or of each with commas between them.
pub(crate) fn watts_of_stages(text: &str) -> Result<PerStage<Watts>, String> {
    let powers = text.split(',').map(watts).collect::<Result<_, _>>()?;
    PerStage::new(powers).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_out_of_bounds_is_refused_with_the_bounds() {
        assert_eq!(steps("10"), Ok(10));
        for text in ["0", "10001", "-1", "x", "1.5", ""] {
            assert_eq!(steps(text).unwrap_err(), "give a whole number from 1 to 10000");
        }
        assert_eq!(positive("0").unwrap_err(), "give a whole number from 1");
    }

    #[test]
    fn a_clock_and_a_power_may_have_their_unit_and_must_be_possible() {
        assert_eq!((mhz("1410"), mhz("30 MHz")), (Ok(Mhz(1410)), Ok(Mhz(30))));
        assert_eq!((watts("83.64"), watts("70W")), (Ok(Watts(83.64)), Ok(Watts(70.0))));
        let clocks = ["0", "abc", "99999", "-5"].map(|text| mhz(text).unwrap_err());
        let powers = ["-5", "nan", "inf", "70000", "x"].map(|text| watts(text).unwrap_err());
        insta::assert_snapshot!([clocks.join("\n"), powers.join("\n")].join("\n"));
    }
}
