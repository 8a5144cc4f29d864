//! Points of others to draw over a frontier: `time,energy` CSV, as Perseus' planner writes it.

use std::path::Path;

use crate::failure::Failure;
use crate::planning::file;

/// Points with what to call them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Points {
    pub(super) name: String,
    /// Seconds and joules.
    pub(super) points: Vec<(f64, f64)>,
}

/// Reads the columns `time` (s) and `energy` (J) of a CSV file; others are left alone.
pub(super) fn read(name: &str) -> Result<Points, Failure> {
    let bytes = file::read(name)?;
    let points = parse(&String::from_utf8_lossy(&bytes))
        .map_err(|problem| Failure::BadPoints { name: file::shown(name).to_owned(), problem })?;
    let stem =
        Path::new(name).file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy());
    Ok(Points { name: stem.into_owned(), points })
}

fn parse(text: &str) -> Result<Vec<(f64, f64)>, String> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let header = lines.next().map_or("", |(_, line)| line);
    let column = |wanted: &str| {
        header
            .split(',')
            .position(|name| name.trim().trim_matches('"') == wanted)
            .ok_or_else(|| format!("no column \"{wanted}\" in the header \"{header:.60}\""))
    };
    let (time, energy) = (column("time")?, column("energy")?);
    let mut points = Vec::new();
    for (number, line) in lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |column: usize, name: &str| {
            let text = fields.get(column).copied().unwrap_or("");
            text.parse()
                .ok()
                .filter(|value: &f64| value.is_finite())
                .ok_or_else(|| format!("line {number}: {name} is \"{text:.40}\", not a number"))
        };
        points.push((field(time, "time")?, field(energy, "energy")?));
    }
    if points.is_empty() {
        return Err("no rows below the header".to_owned());
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_may_come_in_any_order_among_others() {
        let parsed = parse("plan,energy,time\na,5000,3.5\n\nb,4800.5,3.6\n").unwrap();
        assert_eq!(parsed, [(3.5, 5000.0), (3.6, 4800.5)]);
    }

    #[test]
    fn a_missing_column_a_bad_number_and_an_empty_file_are_reported() {
        for (text, words) in [
            ("time,power\n1,2\n", &["\"energy\"", "time,power"][..]),
            ("time,energy\n1,2\n1,x\n", &["line 3", "energy", "\"x\""]),
            ("time,energy\n1\n", &["line 2", "energy"]),
            ("time,energy\n", &["no rows"]),
            ("", &["\"time\""]),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(words.iter().all(|word| problem.contains(word)), "{problem}");
        }
    }
}
