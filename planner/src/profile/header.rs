//! The names of columns as people write them: `Stage`, `Time (ms)`, `energy_j`.
//!
//! A column is renamed where its meaning is certain. A column that has its right name already always
//! comes first; two others that could both be meant are refused.

use csv::StringRecord;

use crate::excerpt::excerpt;
use crate::profile::columns::{COLUMNS, LEFT_OUT, MEASURERS, MICROBATCH, OBSERVED, REPEATS};
use crate::profile::error::ProfileError;

/// The column that may stand for the energy: energy over time, in watts.
pub(super) const POWER: &str = "power";

/// The units of a quantity, and how many of pfo's one of them is.
type Units = &'static [(&'static str, f64)];

const SECONDS: Units = &[("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9)];
const JOULES: Units = &[("J", 1.0), ("mJ", 1e-3), ("uJ", 1e-6), ("µJ", 1e-6), ("kJ", 1e3)];
const WATTS: Units = &[("W", 1.0), ("mW", 1e-3), ("kW", 1e3)];
const MEGAHERTZ: Units = &[("MHz", 1.0), ("GHz", 1e3), ("kHz", 1e-3), ("Hz", 1e-6)];

/// A header with the names that pfo knows, and for each column how many of pfo's units one of its own
/// is.
pub(super) struct Header {
    pub(super) names: StringRecord,
    pub(super) scales: Vec<f64>,
}

impl Header {
    /// # Errors
    /// If two columns could be the same one, or a column has a unit of something else.
    pub(super) fn new(written: &StringRecord) -> Result<Self, ProfileError> {
        let mut names: Vec<String> = written.iter().map(str::to_owned).collect();
        let mut units: Vec<Option<f64>> = vec![None; names.len()];
        let mut found: Vec<(&'static str, usize)> = Vec::new();
        for (index, field) in written.iter().enumerate() {
            let Some(column) = meant(field)? else { continue };
            let is_exact = field == column.name;
            if !is_exact && written.iter().any(|field| field == column.name) {
                continue;
            }
            if let Some((_, first)) = found.iter().find(|(name, _)| *name == column.name) {
                return Err(ProfileError::TwoColumns {
                    name: column.name,
                    first: excerpt(&written[*first]),
                    second: excerpt(field),
                });
            }
            found.push((column.name, index));
            column.name.clone_into(&mut names[index]);
            units[index] = column.scale;
        }
        let of = |name: &str| {
            let place = names.iter().position(|found| found == name)?;
            units[place]
        };
        let scales = names.iter().zip(&units).map(|(name, unit)| {
            // A deviation without a unit has that of its quantity.
            let quantity = name.strip_suffix("_sd").and_then(of);
            unit.or(quantity).unwrap_or(1.0)
        });
        let scales = scales.collect();
        Ok(Self { names: StringRecord::from(names), scales })
    }
}

/// A column that pfo knows.
struct Column {
    name: &'static str,
    /// None without a unit.
    scale: Option<f64>,
}

/// The column that a field of a header means, if pfo knows one.
fn meant(field: &str) -> Result<Option<Column>, ProfileError> {
    let known = |name: &str| {
        let name = name.trim().to_lowercase().replace([' ', '-'], "_");
        all().find(|known| *known == name)
    };
    if let Some(name) = known(field) {
        return Ok(Some(Column { name, scale: None }));
    }
    if let Some((name, unit)) = bracketed(field)
        && let Some(name) = known(name)
    {
        let scale = units(name).iter().find(|(known, _)| is_unit(known, unit));
        let scale = scale.map(|&(_, scale)| scale).ok_or_else(|| ProfileError::WrongUnit {
            column: excerpt(field),
            name,
            expected: expected(name),
        })?;
        return Ok(Some(Column { name, scale: Some(scale) }));
    }
    // Other columns may end in anything: only the units of the quantity count.
    let suffixed = field.rsplit_once(['_', ' ']).and_then(|(name, unit)| {
        let name = known(name)?;
        // A header in capitals has its times in MS.
        let is_it = |known: &str| {
            is_unit(known, unit) || units(name) == SECONDS && known.eq_ignore_ascii_case(unit)
        };
        let of_it = units(name).iter().find(|(known, _)| is_it(known));
        of_it.map(|&(_, scale)| Column { name, scale: Some(scale) })
    });
    Ok(suffixed)
}

/// `MJ` is no `mJ`; of other units there is one whichever way it is written.
fn is_unit(known: &str, written: &str) -> bool {
    known == written
        || (known.eq_ignore_ascii_case(written)
            && (!written.starts_with('M') || known.starts_with('M')))
}

/// The name and the unit of `Time (ms)` or `Time [ms]`.
fn bracketed(field: &str) -> Option<(&str, &str)> {
    let (name, unit) = field.trim().split_once(['(', '['])?;
    Some((name, unit.strip_suffix([')', ']'])?.trim()))
}

fn all() -> impl Iterator<Item = &'static str> {
    let others = [LEFT_OUT, OBSERVED, MICROBATCH, POWER];
    COLUMNS.into_iter().chain(REPEATS).chain(MEASURERS).chain(others)
}

fn units(name: &str) -> Units {
    match name {
        "time" | "time_sd" => SECONDS,
        "energy" | "energy_sd" => JOULES,
        "frequency" => MEGAHERTZ,
        POWER => WATTS,
        _ => &[],
    }
}

fn expected(name: &str) -> &'static str {
    match name {
        "time" | "time_sd" => "s, ms, us or ns",
        "energy" | "energy_sd" => "J, mJ, uJ or kJ; a column of watts is named power",
        "frequency" => "MHz, GHz, kHz or Hz",
        POWER => "W, mW or kW",
        _ => "left out: it has no unit",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use crate::test_profiles::{assert_says, refused};

    fn header(fields: &[&str]) -> Result<Header, ProfileError> {
        Header::new(&StringRecord::from(fields.to_vec()))
    }

    #[test]
    fn a_name_in_other_letters_or_with_a_unit_is_the_column_that_it_means() {
        let written = ["STAGE", "Instruction", "Frequency (GHz)", "Time [ms]", "energy_mJ", "run"];
        let Header { names, scales } = header(&written).unwrap();
        let expected = ["stage", "instruction", "frequency", "time", "energy", "run"];
        assert_eq!(names, StringRecord::from(expected.to_vec()));
        assert_eq!(scales, [1.0, 1.0, 1e3, 1e-3, 1e-3, 1.0]);
    }

    #[test]
    fn megajoules_are_no_millijoules() {
        let Header { names, scales } = header(&["TIME_MS", "energy_MJ"]).unwrap();
        assert_eq!((&names[0], &names[1]), ("time", "energy_MJ"));
        assert_eq!(scales, [1e-3, 1.0]);
    }

    #[test]
    fn a_deviation_has_the_unit_of_its_quantity_unless_it_has_its_own() {
        let of = |sd| header(&["time (ms)", "energy", sd]).unwrap().scales[2];
        assert_eq!((of("time_sd"), of("time_sd (s)"), of("energy_sd")), (1e-3, 1.0, 1.0));
    }

    #[test]
    fn a_column_with_its_right_name_comes_before_one_that_could_be_meant() {
        let Header { names, scales } = header(&["time", "Time (ms)"]).unwrap();
        assert_eq!((&names[0], &names[1], scales), ("time", "Time (ms)", vec![1.0, 1.0]));
    }

    #[test]
    fn two_columns_that_could_both_be_meant_and_units_of_something_else_are_refused() {
        let message = refused("Stage,instruction,frequency,Time,time_ms,energy\n");
        assert_says(&message, &["\"Time\"", "\"time_ms\"", "time"]);
        let message = refused("stage,instruction,frequency,time,energy,energy\n");
        assert_says(&message, &["\"energy\" and \"energy\""]);
        for unit in ["W", "MJ", "cal"] {
            let message = refused(&format!("stage,instruction,frequency,time,Energy ({unit})\n"));
            assert_says(&message, &[&format!("\"Energy ({unit})\""), "mJ", "power"]);
        }
        assert_says(&refused("stage,Instruction (J),frequency,time,energy\n"), &["no unit"]);
    }

    #[test]
    fn watts_are_read_where_the_column_is_named_power_and_there_are_no_joules() {
        let read = |csv: &str| Profile::from_csv(csv.as_bytes()).unwrap();
        let watts =
            read("stage,instruction,frequency,time (ms),Power (W)\n0,forward,1410,50,400\n");
        let joules = read("stage,instruction,frequency,time,energy\n0,forward,1410,0.05,20\n");
        assert_eq!(watts, joules);
        let both =
            read("stage,instruction,frequency,time,energy,power\n0,forward,1410,0.05,20,9\n");
        assert_eq!(both, joules);
    }
}
