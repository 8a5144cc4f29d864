//! The payloads of a profile's lines.
//!
//! Kareus measures each clock with several payloads, and a profile has one row for each clock. It keeps
//! the lines of the payload that takes least energy there, as Kareus itself chooses, and at the highest
//! clock those of the fastest one, so that the shortest possible step stays possible.

use std::collections::{BTreeMap, HashMap};

use csv::StringRecord;
use pfo_vocabulary::{Instruction, Mhz, Stage};

use crate::excerpt::excerpt;
use crate::payload::layout::Layout;
use crate::payload::{Payload, Payloads};
use crate::profile::Profile;
use crate::profile::combine::Lines;
use crate::profile::error::ProfileError;
use crate::profile::repeats::Line;

/// Where the values of payloads are.
pub(crate) struct PayloadColumns {
    forward: Places,
    /// Empty where no backward runs its forward again.
    recomputed: Places,
    backward: Places,
}

/// Columns with their names.
type Places = Vec<(&'static str, usize)>;

impl PayloadColumns {
    /// Those of a header; none if it has none.
    ///
    /// # Errors
    /// If it has some and lacks others.
    pub(crate) fn find(header: &StringRecord) -> Result<Option<Self>, ProfileError> {
        let place = |name: &str| header.iter().position(|field| field == name);
        let is_there = |layout: &Layout| layout.columns().any(|name| place(name).is_some());
        let Some(layout) = Layout::ALL.into_iter().find(is_there) else { return Ok(None) };
        let places = |names: &'static [&'static str]| -> Result<Places, ProfileError> {
            let found = names.iter().map(|&name| {
                let of_all = || header.iter().collect::<Vec<_>>().join(",");
                let missing = || ProfileError::MissingColumn { name, found: excerpt(&of_all()) };
                Ok((name, place(name).ok_or_else(missing)?))
            });
            found.collect()
        };
        let has_recomputed = layout.recomputed().iter().any(|name| place(name).is_some());
        Ok(Some(Self {
            forward: places(layout.forward())?,
            recomputed: if has_recomputed { places(layout.recomputed())? } else { Vec::new() },
            backward: places(layout.backward())?,
        }))
    }

    /// The payload of a line; none of an instruction that has none.
    ///
    /// # Errors
    /// If a value cannot be one of a list.
    pub(crate) fn read(
        &self,
        record: &StringRecord,
        instruction: Instruction,
        line: u64,
    ) -> Result<Option<Payload>, ProfileError> {
        let recomputes = self.recomputed.iter().any(|&(_, place)| !record[place].is_empty());
        let columns = match instruction {
            Instruction::Forward => self.forward.clone(),
            Instruction::Backward if recomputes => [&self.recomputed[..], &self.backward].concat(),
            Instruction::Backward => self.backward.clone(),
            _ => return Ok(None),
        };
        let mut values = Vec::with_capacity(columns.len());
        for (column, place) in columns {
            let value = &record[place];
            if !is_value(value) {
                let (value, expected) = (excerpt(value), "without quotes, commas and backslashes");
                return Err(ProfileError::BadField { line, column, value, expected });
            }
            values.push(value);
        }
        let text = values.join(",");
        let payload = Payload::try_from(text)
            .map_err(|error| ProfileError::UnreadableRow { line, problem: error.to_string() });
        payload.map(Some)
    }
}

/// Whether a text can be a value of a payload, in a profile and in a plan file.
pub(crate) fn is_value(text: &str) -> bool {
    !text.contains([',', '\'', '"', '\\']) && !text.chars().any(char::is_control)
}

/// Keeps, at each clock of each table, the lines of one payload.
pub(crate) fn keep_one_payload(
    tables: &mut BTreeMap<(Stage, Instruction), Lines>,
    of_line: &HashMap<u64, Payload>,
) -> Payloads {
    let mut kept = Payloads::new();
    for (&(stage, instruction), table) in tables {
        let highest = table.last_key_value().map(|(&clock, _)| clock);
        for (&clock, measurers) in table {
            let lines = measurers.values().flatten();
            let Some(best) = best(lines, of_line, highest == Some(clock)) else { continue };
            for lines in measurers.values_mut() {
                lines.retain(|line| of_line.get(&line.number) == Some(&best));
            }
            measurers.retain(|_, lines| !lines.is_empty());
            kept.insert((stage, instruction, clock), best);
        }
    }
    kept
}

/// The payload of the fastest lines, or of those of least energy.
fn best<'a>(
    lines: impl Iterator<Item = &'a Line>,
    of_line: &HashMap<u64, Payload>,
    is_fastest: bool,
) -> Option<Payload> {
    let mut sums: BTreeMap<&Payload, (f64, f64, f64)> = BTreeMap::new();
    for line in lines {
        let Some(payload) = of_line.get(&line.number) else { continue };
        let (time_s, energy_j, count) = sums.entry(payload).or_default();
        *time_s += line.measured.time_s;
        *energy_j += line.measured.energy_j;
        *count += 1.0;
    }
    let means = sums.into_iter().map(|(payload, (time_s, energy_j, count))| {
        let (time_s, energy_j) = (time_s / count, energy_j / count);
        let by = if is_fastest { [time_s, energy_j] } else { [energy_j, time_s] };
        (payload, by)
    });
    let by_first_then_second =
        |a: &[f64; 2], b: &[f64; 2]| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1]));
    means.min_by(|a, b| by_first_then_second(&a.1, &b.1)).map(|(payload, _)| payload.clone())
}

/// The columns of a profile's payloads as text, and the fields of each row.
pub(crate) struct WrittenPayloads<'a> {
    profile: &'a Profile,
    layout: Option<Layout>,
}

impl<'a> WrittenPayloads<'a> {
    pub(crate) fn of(profile: &'a Profile) -> Self {
        let payloads = profile.payloads();
        let layout = (!payloads.is_empty())
            .then(|| Layout::of(&payloads.iter().map(|(&(_, kind, _), payload)| (kind, payload))));
        Self { profile, layout: layout.flatten() }
    }

    pub(crate) fn header(&self) -> String {
        let columns = self.layout.into_iter().flat_map(Layout::columns);
        columns.map(|name| format!(",{name}")).collect()
    }

    pub(crate) fn fields(&self, stage: Stage, instruction: Instruction, clock: Mhz) -> String {
        let Some(layout) = self.layout else { return String::new() };
        let payload = self.profile.payload(stage, instruction, clock);
        let values: Vec<&str> = payload.into_iter().flat_map(Payload::values).collect();
        let names = layout.columns_of(instruction, values.len()).unwrap_or_default();
        let field = |column: &'static str| {
            let place = names.iter().position(|&name| name == column);
            format!(",{}", place.map_or("", |place| values[place]))
        };
        layout.columns().map(field).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_profiles::{assert_says, refused};

    /// Two payloads at each of two clocks, as Kareus writes them for layers without a part of the context.
    const CSV: &str = "stage,instruction,frequency,recompute_attention_configs,recompute_mlp_configs,\
                       attention_configs,mlp_configs,time,energy\n\
                       0,forward,900,,,2-8-27-1024,0-6-24-1024,0.060,17\n\
                       0,forward,900,,,none-none-16-1024,0-6-24-1024,0.058,18\n\
                       0,forward,1410,,,2-8-27-1024,0-6-24-1024,0.051,20\n\
                       0,forward,1410,,,-1--1-16-1024,0-6-24-1024,0.050,21\n\
                       0,backward,900,a,b,c,d,0.12,35\n\
                       0,backward,1410,a,b,c,d,0.10,41\n";

    fn read(csv: &str) -> Profile {
        Profile::from_csv(csv.as_bytes()).unwrap_or_else(|error| panic!("{error}: {csv}"))
    }

    fn payload(profile: &Profile, instruction: Instruction, mhz: u32) -> &str {
        profile.payload(Stage(0), instruction, Mhz(mhz)).map_or("", Payload::as_str)
    }

    #[test]
    fn of_the_payloads_of_a_clock_the_one_of_least_energy_is_kept_and_at_the_highest_the_fastest() {
        let profile = read(CSV);
        assert_eq!(payload(&profile, Instruction::Forward, 900), "2-8-27-1024,0-6-24-1024");
        assert_eq!(payload(&profile, Instruction::Forward, 1410), "-1--1-16-1024,0-6-24-1024");
        assert_eq!(payload(&profile, Instruction::Backward, 900), "a,b,c,d");
        let at = |mhz| profile.at(Stage(0), Instruction::Forward, Mhz(mhz)).unwrap();
        // Not the mean of both, as of repeats.
        assert_eq!((at(900).time_s, at(900).energy_j), (0.060, 17.0));
        assert_eq!((at(1410).time_s, at(1410).energy_j), (0.050, 21.0));
    }

    #[test]
    fn the_order_of_columns_and_rows_makes_no_difference() {
        let mut rows: Vec<Vec<&str>> = CSV.lines().map(|line| line.split(',').collect()).collect();
        rows.iter_mut().for_each(|row| row.reverse());
        rows[1..].reverse();
        let lines: Vec<String> = rows.iter().map(|row| row.join(",")).collect();
        assert_eq!(read(&lines.join("\n")), read(CSV));
    }

    #[test]
    fn repeats_of_one_payload_are_averaged_and_other_payloads_are_not_among_them() {
        let csv = "window,stage,instruction,frequency,attention_configs,mlp_configs,time,energy\n\
                   0,0,forward,900,x,y,0.05,20\n\
                   1,0,forward,900,x,y,0.07,22\n\
                   0,0,forward,900,x,z,0.06,40\n\
                   0,0,forward,1410,x,z,0.04,40\n\
                   0,0,backward,900,x,y,0.08,32\n";
        let profile = read(csv);
        let row = profile.at(Stage(0), Instruction::Forward, Mhz(900)).unwrap();
        assert!((row.time_s - 0.06).abs() < 1e-12 && (row.energy_j - 21.0).abs() < 1e-12);
        assert_eq!(profile.repeats(Stage(0), Instruction::Forward, Mhz(900)).count, 2);
        assert_eq!(payload(&profile, Instruction::Backward, 900), "x,y");
    }

    #[test]
    fn what_is_written_is_read_back_as_it_was_with_its_payloads() {
        let context = "stage,instruction,frequency,fwd_qkv_ar,fwd_qkv_ag,fwd_ao_ag,fwd_ao_ar,fwd_mlp,\
                       bwd_qkv_ar,bwd_qkv_rs,bwd_a_rs,bwd_a_ag,bwd_o_ag,bwd_o_ar,bwd_mlp,time,energy\n\
                       0,forward,900,a,b,c,d,e,,,,,,,,0.05,20\n\
                       0,backward,900,a,b,c,d,e,f,g,h,i,j,k,l,0.1,40\n\
                       1,forward,900,,,,,,,,,,,,,0.05,20\n\
                       1,backward,900,,,,,,f,g,h,i,j,k,l,0.1,40\n";
        for csv in [CSV, context] {
            let profile = read(csv);
            assert!(!profile.payloads().is_empty());
            assert_eq!(read(&profile.to_csv()), profile, "{}", profile.to_csv());
        }
        let profile = read(context);
        assert_eq!(payload(&profile, Instruction::Backward, 900), "a,b,c,d,e,f,g,h,i,j,k,l");
        let without = profile.payload(Stage(1), Instruction::Forward, Mhz(900));
        assert_eq!(without.map(Payload::as_str), Some(",,,,"));
    }

    #[test]
    fn a_column_that_is_missing_and_a_value_that_no_list_can_have_are_refused() {
        assert_says(&refused(&CSV.replace("mlp_configs,time", "mlp,time")), &["\"mlp_configs\""]);
        for value in ["\"1,2\"", "it's", "a\\b"] {
            let message = refused(&CSV.replacen("2-8-27-1024", value, 1));
            assert_says(&message, &["line 2", "attention_configs", "quotes"]);
        }
        let long = CSV.replacen("2-8-27-1024", &"x".repeat(600), 1);
        assert_says(&refused(&long), &["line 2", "512 bytes"]);
    }

    #[test]
    fn the_same_row_twice_is_refused_with_payloads_as_without() {
        let twice = format!("{CSV}0,backward,900,a,b,c,d,0.12,35\n");
        assert_says(&refused(&twice), &["line 8", "line 6", "900 MHz"]);
    }
}
