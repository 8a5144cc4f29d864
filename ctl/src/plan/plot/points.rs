//! Points of others to draw over a frontier: another frontier, whose plans were replayed, or
//! `time,energy` CSV, as `plan sweep` and Perseus' planner write it.

use std::path::Path;

use pfo_planner::Frontier;

use crate::failure::Failure;
use crate::planning::file;

/// A time in seconds or an energy in joules from here on is a mistake in the file.
const MOST: f64 = 1e12;

/// Points with what to call them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Points {
    pub(super) name: String,
    pub(super) origin: Origin,
    /// Seconds and joules.
    pub(super) points: Vec<(f64, f64)>,
}

/// What points are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Replays of the plans of a frontier.
    Replayed,
    /// Windows of a job.
    Measured,
    /// What another planner says that its plans take.
    Claimed,
}

/// Reads the plans of a frontier, or the columns `time` (s) and `energy` (J) of a CSV file.
pub(super) fn read(name: &str) -> Result<Points, Failure> {
    let bytes = file::read(name)?;
    let stem = Path::new(name).file_stem().map_or(name.into(), |stem| stem.to_string_lossy());
    let name_of = stem.into_owned();
    if Frontier::is_likely(&bytes) {
        let frontier = Frontier::from_bytes(&bytes).map_err(Failure::bad_file(name))?;
        let points = frontier.points().map(|at| (at.iteration_time_s, at.iteration_energy_j));
        let points = points.collect();
        return Ok(Points { name: name_of, origin: Origin::Replayed, points });
    }
    let text = String::from_utf8_lossy(&bytes);
    let points = parse(&text)
        .map_err(|problem| Failure::BadPoints { name: file::shown(name).to_owned(), problem })?;
    // Only `plan sweep` has a window of steps for each.
    let header = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    let is_measured = header.split(',').any(|column| column.trim() == "steps");
    let origin = if is_measured { Origin::Measured } else { Origin::Claimed };
    Ok(Points { name: name_of, origin, points })
}

fn parse(text: &str) -> Result<Vec<(f64, f64)>, String> {
    let mut reader = csv::ReaderBuilder::new();
    let mut reader = reader.trim(csv::Trim::All).flexible(true).from_reader(text.as_bytes());
    let bad = |error: csv::Error| error.to_string();
    let header = reader.headers().map_err(bad)?.clone();
    let column = |wanted: &str| {
        header.iter().position(|name| name == wanted).ok_or_else(|| {
            let header = header.iter().collect::<Vec<_>>().join(",");
            format!("no column \"{wanted}\" in the header \"{header:.60}\"")
        })
    };
    let (time, energy) = (column("time")?, column("energy")?);
    let mut points = Vec::new();
    for record in reader.records() {
        let record = record.map_err(bad)?;
        let number = record.position().map_or(0, csv::Position::line);
        let field = |column: usize, name: &str| {
            let text = record.get(column).unwrap_or("");
            let value = text.parse().ok().filter(|value: &f64| *value > 0.0 && *value < MOST);
            value.ok_or_else(|| {
                format!("line {number}: {name} is \"{text:.40}\", not a number above 0 and below {MOST:e}")
            })
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
    fn a_comma_in_a_quoted_name_ends_no_field() {
        let parsed = parse("plan,time,energy\n\"zeus-global, up to +0 %\",3.5,5000\n").unwrap();
        assert_eq!(parsed, [(3.5, 5000.0)]);
    }

    #[test]
    fn a_missing_column_a_bad_number_and_an_empty_file_are_reported() {
        let wrong = [
            "time,power\n1,2\n",
            "time,energy\n1,2\n1,x\n",
            "time,energy\n1\n",
            "time,energy\n-1,2\n",
            "time,energy\n1,1e300\n",
            "time,energy\n",
            "",
        ];
        insta::assert_snapshot!(wrong.map(|text| parse(text).unwrap_err()).join("\n"));
    }
}
