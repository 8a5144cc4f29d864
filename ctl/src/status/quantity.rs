//! Figures as people read them: four significant digits, a prefix and a unit.

/// Seconds, such as `182.3 ms`.
pub(crate) fn seconds(value: f64) -> String {
    with_prefix(value, "s")
}

/// Joules, such as `5.123 kJ`.
pub(crate) fn joules(value: f64) -> String {
    with_prefix(value, "J")
}

/// Joules as watt-hours, such as `5.123 kWh`.
pub(crate) fn watt_hours(joules: f64) -> String {
    with_prefix(joules / 3600.0, "Wh")
}

/// Grams, such as `5.123 kg`.
pub(crate) fn grams(value: f64) -> String {
    with_prefix(value, "g")
}

/// Watts, whole ones: a driver knows them no better than to a few percent.
pub(crate) fn watts(value: f64) -> String {
    format!("{value:.0} W")
}

/// A share, such as `1.3 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", unsigned_zero(share * 100.0, 0.05))
}

/// A share that is small, such as `0.043 %`.
pub(crate) fn percent_finely(share: f64) -> String {
    format!("{:.3} %", unsigned_zero(share * 100.0, 0.0005))
}

/// A change, always with its sign, such as `+0.4 %`.
pub(crate) fn change(share: f64) -> String {
    format!("{:+.1} %", unsigned_zero(share * 100.0, 0.05))
}

/// A span of time in its two largest units, such as `2 h 5 min`.
pub(crate) fn span(seconds: f64) -> String {
    // Negative and absurd values saturate.
    let s = seconds as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86400, s % 86400 / 3600),
    }
}

/// What is printed as zero has no sign.
fn unsigned_zero(value: f64, smallest: f64) -> f64 {
    if value.abs() < smallest { 0.0 } else { value }
}

fn with_prefix(value: f64, unit: &str) -> String {
    const PREFIXES: [(f64, &str); 6] =
        [(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ")];
    if !value.is_finite() {
        return format!("{value} {unit}");
    }
    let magnitude = value.abs();
    if magnitude < 5e-10 {
        return format!("0 {unit}");
    }
    // 999.95 would be printed as 1000 with four digits, so it belongs to the next prefix already.
    let (scale, prefix) = PREFIXES
        .into_iter()
        .find(|(scale, _)| magnitude >= scale * 0.999_95)
        .unwrap_or(PREFIXES[5]);
    let scaled = value / scale;
    let decimals = match scaled.abs() {
        s if s < 9.9995 => 3,
        s if s < 99.995 => 2,
        s if s < 999.95 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$} {prefix}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_four_significant_digits() {
        assert_eq!(seconds(0.182_34), "182.3 ms");
        assert_eq!(seconds(1.234_56), "1.235 s");
        assert_eq!(seconds(0.000_008_1), "8.100 µs");
        assert_eq!(joules(5123.4), "5.123 kJ");
        assert_eq!(joules(51_234.0), "51.23 kJ");
        assert_eq!(joules(2.5e12), "2500 GJ");
    }

    #[test]
    fn a_figure_that_rounds_up_takes_the_next_prefix() {
        assert_eq!(seconds(0.999_96), "1.000 s");
        assert_eq!(seconds(0.099_999), "100.0 ms");
        assert_eq!(joules(999.94), "999.9 J");
    }

    #[test]
    fn nothing_and_nonsense_are_printed_and_not_hidden() {
        assert_eq!(joules(0.0), "0 J");
        assert_eq!(seconds(f64::NAN), "NaN s");
        assert_eq!(joules(-12.5), "-12.50 J");
        assert_eq!(change(-0.0001), "+0.0 %");
    }

    #[test]
    fn a_span_is_told_in_two_units() {
        assert_eq!(span(59.9), "59 s");
        assert_eq!(span(7500.0), "2 h 5 min");
        assert_eq!(span(200_000.0), "2 d 7 h");
        assert_eq!(span(-1.0), "0 s");
    }
}
