//! Profiles as CSV, in the format of Perseus and Zeus.
//!
//! ```text
//! stage,instruction,frequency,time,energy,count,time_sd,energy_sd
//! 0,forward,1410,0.0512,20.1,12,0.0004,0.31
//! ```
//!
//! The first five columns (MHz, s, J) are required. A line may be the mean of `count` measurements;
//! a missing or empty `count` is 1. `time_sd` and `energy_sd`, which require the column `count`, are the
//! standard deviations of a single measurement, or empty where they are unknown. With a `count` of 1, they say
//! within what a row is known that was not measured itself: it was fitted, and is wrong as others are.
//!
//! Columns may be separated by `;`, a tab or `|` instead, and numbers may then have decimal commas.
//! Names of columns and instructions may have capitals, and a column may have its unit with its name:
//! `Time (ms)`, `energy_mj`. Instead of `energy`, a column `power` has watts. Lines that begin with `#`
//! and rows of empty fields are passed over.
//!
//! Any other column tells apart lines of the same stage, instruction and frequency. Columns that
//! say who measured (`rank`, `dp_rank`, `pp_rank`, `tp_rank`, `chunk`) give every measurer the same
//! weight in the mean, as in Zeus' pipeline frequency optimizer; differences between measurers are
//! not noise. Where `chunk` has several values, each chunk has its own rows beside the mean. So has
//! each `microbatch`, for the instructions of a stage of which one microbatch takes more than 2 %
//! more or less time or power than the mean of all, and more than four standard errors of its repeats.
//! Any other column (`window`, `run`, …), and that of microbatches that are alike, makes lines repeats
//! of one measurement: a repeat that is far from the others is left out, and their scatter is kept. A line with a reason
//! in the column `left_out` is skipped. `observed_mhz` is the clock that the GPU really had, where a
//! power limit held it back; clocks at which it had no higher one than at a lower clock are left
//! out.
//!
//! The columns in which Kareus writes how collectives overlap with computation (`attention_configs`,
//! `mlp_configs` and their like) are payloads: of the lines of a clock that differ in them, those of one
//! payload count, and are not averaged with the others.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use pfo_vocabulary::{Instruction, Mhz, Stage};

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::payload::columns::{PayloadColumns, WrittenPayloads, keep_one_payload};
use crate::profile::Profile;
use crate::profile::columns::{CHUNK, COLUMNS, Columns, MICROBATCH, REPEATS};
use crate::profile::combine::{Combine, Lines, Measurer, combined};
use crate::profile::dialect::{DecimalSigns, Text};
use crate::profile::error::ProfileError;
use crate::profile::header::Header;
use crate::profile::left_out::leave_out;
use crate::profile::measurement::Measurement;
use crate::profile::microbatches;
use crate::profile::parts::{Part, of_parts};
use crate::profile::repeats::{Line, Repeats};
use crate::profile::unheld::leave_out_unheld;

impl Profile {
    /// Reads a profile from CSV, with columns and rows in any order.
    ///
    /// # Errors
    /// The first problem, with its line.
    pub fn from_csv(csv: impl Read) -> Result<Self, PlanError> {
        Self::from_csv_combined(csv, Combine::Mean)
    }

    /// Reads a profile and combines the ranks of a stage in the given way.
    ///
    /// # Errors
    /// The first problem, with its line; or there are no ranks to combine, or some ranks lack rows.
    pub fn from_csv_combined(csv: impl Read, combine: Combine) -> Result<Self, PlanError> {
        Ok(read(csv, combine)?)
    }

    /// The profile as CSV, from which [`Profile::from_csv`] reads the same profile. The columns
    /// about repeats are written if any row was measured more than once.
    pub fn to_csv(&self) -> String {
        let repeated = self.with_those_of_parts().any(|profile| profile.repeated().len() > 0);
        let has_chunks = self.parts().any(|part| part.chunk.is_some());
        let has_microbatches = self.parts().any(|part| part.microbatch.is_some());
        let mut csv = COLUMNS.join(",");
        for (name, has) in [(CHUNK, has_chunks), (MICROBATCH, has_microbatches)] {
            if has {
                csv += &format!(",{name}");
            }
        }
        if repeated {
            csv += &format!(",{}", REPEATS.join(","));
        }
        let payloads = WrittenPayloads::of(self);
        csv += &payloads.header();
        csv.push('\n');
        let fields = |part: Part| {
            let chunk = part.chunk.map_or_else(String::new, |chunk| chunk.to_string());
            let microbatch = part.microbatch.map_or_else(String::new, |of| of.to_string());
            let fields = [(has_chunks, chunk), (has_microbatches, microbatch)];
            fields.into_iter().filter(|(has, _)| *has).map(|(_, field)| format!(",{field}"))
        };
        for (part, own) in std::iter::once((Part::default(), self)).chain(self.parts_measured()) {
            let fields: String = fields(part).collect();
            own.write_rows(&mut csv, (&fields, &payloads), repeated, |stage, instruction| {
                // Else it is the mean of those of smaller parts.
                !self.has_smaller(part, stage, instruction)
            });
        }
        csv
    }

    /// Adds rows of a part.
    fn write_rows(
        &self,
        csv: &mut String,
        (part, payloads): (&str, &WrittenPayloads<'_>),
        repeated: bool,
        is_written: impl Fn(Stage, Instruction) -> bool,
    ) {
        let rows = self.rows().filter(|&(stage, instruction, _)| is_written(stage, instruction));
        for (stage, instruction, Measurement { frequency, time_s, energy_j }) in rows {
            *csv += &format!("{stage},{instruction},{},{time_s},{energy_j}{part}", frequency.0);
            if repeated {
                let repeats = self.repeats(stage, instruction, frequency);
                let sd = |sd: Option<f64>| sd.map_or_else(String::new, |sd| sd.to_string());
                let Repeats { count, time_sd_s, energy_sd_j } = repeats;
                *csv += &format!(",{count},{},{}", sd(time_sd_s), sd(energy_sd_j));
            }
            *csv += &payloads.fields(stage, instruction, frequency);
            csv.push('\n');
        }
    }
}

fn read(csv: impl Read, combine: Combine) -> Result<Profile, ProfileError> {
    let text = Text::new(csv).map_err(|error| unreadable(error.into()))?;
    let mut reader = csv::ReaderBuilder::new();
    reader.trim(csv::Trim::All).comment(Some(b'#')).delimiter(text.separator);
    let mut reader = reader.from_reader(text.lines);
    let header = Header::new(reader.headers().map_err(unreadable)?)?;
    let columns = Columns::find(&header)?;
    let ranks = columns.ranks(&header.names, combine)?;
    let payload_columns = PayloadColumns::find(&header.names)?;
    let (mut payloads, mut passed_over) = (HashMap::new(), PassedOver::new());
    let (numbers, mut signs) = (columns.numbers(), DecimalSigns::default());

    let mut tables: BTreeMap<(Stage, Instruction), Lines> = BTreeMap::new();
    let mut lines: HashMap<(Stage, Instruction, Mhz, Vec<String>), u64> = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(unreadable)?;
        if record.iter().all(str::is_empty) || columns.is_header(&record) {
            continue;
        }
        let number = record.position().map_or(0, csv::Position::line);
        if let Some((reason, stage)) = columns.left_out(&record) {
            passed_over.entry(stage).or_insert_with(|| (number, 0, excerpt(reason))).1 += 1;
            continue;
        }
        let record = match text.separator {
            b',' => record,
            _ => signs.pointed(record, &numbers, number)?,
        };
        let (stage, instruction, measured) = columns.read(&record, number)?;
        let repeats = columns.read_repeats(&record, number, measured)?;
        let frequency = measured.frequency;

        let fields = |of: &[usize]| of.iter().map(|&i| record[i].to_owned()).collect();
        let row = (stage, instruction, frequency, fields(&columns.others));
        if let Some(first) = lines.insert(row, number) {
            let line = number;
            return Err(ProfileError::DuplicateRow { first, line, stage, instruction, frequency });
        }
        let chunk = columns.read_chunk(&record, number)?;
        let microbatch = columns.read_microbatch(&record, number)?;
        let (rank, within) = (fields(&ranks), fields(&columns.measurers));
        let who = Measurer { rank, within, chunk, microbatch };
        let table = tables.entry((stage, instruction)).or_default();
        let repeated = table.entry(frequency).or_default().entry(who).or_default();
        if let Some(columns) = &payload_columns
            && let Some(payload) = columns.read(&record, instruction, number)?
        {
            payloads.insert(number, payload);
        }
        let observed_mhz = columns.read_observed(&record, number)?;
        repeated.push(Line { number, measured, repeats, observed_mhz });
    }
    let payloads = keep_one_payload(&mut tables, &payloads);
    tables.values_mut().for_each(microbatches::pool_alike);
    let (mut left_out, mut unheld) = (Vec::new(), Vec::new());
    for (&of, table) in &mut tables {
        left_out.append(&mut leave_out(of, table));
        unheld.extend(leave_out_unheld(of, table));
    }
    let parts = of_parts(&tables)?;
    let profile = Profile::from_repeated(&combined(&tables)?, left_out, unheld, parts)
        .map_err(|error| of_left_out(error, &passed_over))?;
    Ok(profile.with_payloads(payloads))
}

/// Of each stage the first line that has a reason to be left out, how many have one, and that of the first.
type PassedOver = BTreeMap<Option<usize>, (u64, u64, String)>;

/// Names the lines that are left out, if that is why there is no row, or none of a stage.
fn of_left_out(error: ProfileError, passed_over: &PassedOver) -> ProfileError {
    let named = match &error {
        ProfileError::EmptyProfile => passed_over.values().min().map(|(line, _, reason)| {
            let rows = passed_over.values().map(|(_, rows, _)| rows).sum();
            ProfileError::AllLeftOut { rows, line: *line, reason: reason.clone() }
        }),
        ProfileError::StageWithoutRows { missing, .. } => {
            passed_over.get(&Some(*missing)).map(|(line, rows, reason)| {
                let (stage, reason) = (*missing, reason.clone());
                ProfileError::StageLeftOut { stage, rows: *rows, line: *line, reason }
            })
        }
        _ => None,
    };
    named.unwrap_or(error)
}

fn unreadable(error: csv::Error) -> ProfileError {
    let line = error.position().map_or(1, csv::Position::line);
    let problem = match error.into_kind() {
        csv::ErrorKind::Io(error) => error.to_string(),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields, but the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "not UTF-8 text".to_owned(),
        kind => format!("{kind:?}"),
    };
    ProfileError::UnreadableRow { line, problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_profiles::{GOOD_CSV, assert_says, refused};

    #[test]
    fn rows_may_come_in_any_order_and_are_kept_by_rising_clock() {
        let profile = Profile::from_csv(GOOD_CSV.as_bytes()).unwrap();
        assert_eq!(profile.num_stages(), 2);
        let clocks: Vec<_> =
            profile.table(Stage(0), Instruction::Backward).iter().map(|m| m.frequency.0).collect();
        assert_eq!(clocks, [1395, 1410]);
        assert_eq!(profile.at(Stage(1), Instruction::Forward, Mhz(1410)).unwrap().time_s, 0.5);
        assert_eq!(profile.at(Stage(1), Instruction::Forward, Mhz(1395)), None);
        assert!(profile.table(Stage(0), Instruction::Load).is_empty());
        assert_eq!(profile.rows().count(), 5);
    }

    #[test]
    fn columns_may_come_in_any_order() {
        let csv = "energy,time,frequency,instruction,stage\n20,0.5,1410,forward,0\n";
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let measured = profile.at(Stage(0), Instruction::Forward, Mhz(1410)).unwrap();
        assert_eq!((measured.time_s, measured.energy_j), (0.5, 20.0));
    }

    #[test]
    fn rows_of_several_ranks_are_averaged() {
        let csv = "rank,dp_rank,stage,instruction,frequency,time,energy\n\
                   0,0,0,forward,1410,0.4,10\n\
                   1,1,0,forward,1410,0.6,30\n";
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let measured = profile.at(Stage(0), Instruction::Forward, Mhz(1410)).unwrap();
        assert!((measured.time_s - 0.5).abs() < 1e-12 && (measured.energy_j - 20.0).abs() < 1e-12);
    }

    #[test]
    fn a_duplicate_row_is_refused_with_both_lines() {
        let message = refused(&format!("{GOOD_CSV}1,forward,1410,0.6,20\n"));
        assert_says(&message, &["line 7", "line 2", "stage 1", "forward", "1410 MHz"]);
    }

    #[test]
    fn a_duplicate_row_of_one_rank_is_refused_too() {
        let csv = "rank,stage,instruction,frequency,time,energy\n\
                   3,0,forward,1410,0.4,10\n\
                   3,0,forward,1410,0.6,30\n";
        assert_says(&refused(csv), &["line 3", "line 2"]);
    }

    #[test]
    fn a_row_of_another_length_is_refused_with_its_line() {
        assert_says(&refused(&GOOD_CSV.replace("1.1,39", "1.1")), &["line 4", "4 fields", "5"]);
    }

    #[test]
    fn lines_that_end_as_on_windows_are_counted_alike() {
        let cut = GOOD_CSV.replace("1.1,39", "1.1");
        assert_says(&refused(&cut.replace('\n', "\r\n")), &["line 4", "4 fields", "5"]);
        let impossible = GOOD_CSV.replace("1.1,39", "1100,39").replacen('\n', "\r\n", 1);
        assert_says(&refused(&impossible), &["line 4", "39 J in 1100 s"]);
    }

    #[test]
    fn a_stage_without_rows_is_named() {
        let message = refused(&GOOD_CSV.replace("\n1,", "\n3,"));
        assert_says(&message, &["stage 1", "stage 3"]);
    }

    #[test]
    fn a_profile_without_rows_is_refused() {
        assert_says(&refused("stage,instruction,frequency,time,energy\n"), &["no rows"]);
    }

    #[test]
    fn the_scatter_of_repeats_and_what_lines_say_of_their_own_come_together() {
        let csv = "window,stage,instruction,frequency,time,energy,energy_sd,count,time_sd\n\
                   0,0,forward,1410,0.50,20,,1,\n\
                   1,0,forward,1410,0.52,22,0,,0\n\
                   2,0,forward,1410,0.51,21,1,3.0,0.01\n\
                   0,0,forward,1395,0.6,19,,,\n";
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let measured = profile.at(Stage(0), Instruction::Forward, Mhz(1410)).unwrap();
        assert!((measured.time_s - 0.51).abs() < 1e-12 && (measured.energy_j - 21.0).abs() < 1e-12);
        let repeats = profile.repeats(Stage(0), Instruction::Forward, Mhz(1410));
        assert_eq!(repeats.count, 5);
        assert!((repeats.time_sd_s.unwrap() - 0.01).abs() < 1e-12);
        assert!((repeats.energy_sd_j.unwrap() - 1.0).abs() < 1e-12);
        let once = profile.repeats(Stage(0), Instruction::Forward, Mhz(1395));
        assert_eq!(once, Repeats::default());
    }

    #[test]
    fn a_repeat_that_cannot_be_right_is_left_out_and_named_by_its_line() {
        let csv = "run,stage,instruction,frequency,time,energy\n\
                   0,0,forward,1410,0.50,20\n\
                   1,0,forward,1410,0.52,21\n\
                   2,0,forward,1410,5.00,22\n";
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let measured = profile.at(Stage(0), Instruction::Forward, Mhz(1410)).unwrap();
        assert!((measured.time_s - 0.51).abs() < 1e-12 && (measured.energy_j - 20.5).abs() < 1e-12);
        let [out] = profile.left_out() else { panic!("{:?}", profile.left_out()) };
        assert_eq!((out.line, out.repeats, out.median.time_s), (4, 3, 0.52));
    }

    #[test]
    fn a_line_that_says_why_it_is_left_out_is_passed_over_whatever_else_it_says() {
        let csv = "stage,instruction,frequency,time,energy,step,left_out\n\
                   0,forward,1410,0.50,20,7,\n\
                   0,forward,1410,9.99,,7,settling\n\
                   0,forward,1410,0.52,22,8,\n";
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let measured = profile.at(Stage(0), Instruction::Forward, Mhz(1410)).unwrap();
        assert!((measured.time_s - 0.51).abs() < 1e-12 && (measured.energy_j - 21.0).abs() < 1e-12);
        assert_eq!(profile.repeats(Stage(0), Instruction::Forward, Mhz(1410)).count, 2);
        let all = csv.replace(",\n", ",throttled\n").replace("left_out,throttled", "left_out");
        assert_says(&refused(&all), &["all 3 rows", "left_out (line 2: \"throttled\")"]);
        let other = format!("{csv}2,forward,1410,0.5,20,7,\n");
        let message = refused(&format!(
            "{other}1,forward,1410,0.5,20,7,other_clock\n1,forward,,0.5,,8,throttled\n"
        ));
        assert_says(&message, &["all 2 rows of stage 1", "line 6: \"other_clock\"", "again"]);
        assert_says(&refused(&other), &["no rows for stage 1, but rows for stage 2"]);
    }

    #[test]
    fn ranks_that_differ_are_averaged_and_none_is_left_out() {
        let csv = "dp_rank,stage,instruction,frequency,time,energy\n\
                   0,0,forward,1410,0.5,20\n\
                   1,0,forward,1410,0.5,20\n\
                   2,0,forward,1410,0.8,32\n";
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let measured = profile.at(Stage(0), Instruction::Forward, Mhz(1410)).unwrap();
        assert!((measured.time_s - 0.6).abs() < 1e-12);
        let repeats = profile.repeats(Stage(0), Instruction::Forward, Mhz(1410));
        assert_eq!((repeats.count, repeats.time_sd_s), (3, None));
    }

    #[test]
    fn what_is_written_is_read_back_as_it_was() {
        let repeated = "count,time_sd,energy_sd,stage,instruction,frequency,time,energy\n\
                        7,0.001,0.25,0,forward,1410,0.1,20.000000000000004\n\
                        ,,,0,forward,1395,0.30000000000000004,1.1e1\n";
        for csv in [GOOD_CSV, repeated] {
            let profile = Profile::from_csv(csv.as_bytes()).unwrap();
            let written = profile.to_csv();
            assert_eq!(Profile::from_csv(written.as_bytes()).unwrap(), profile, "{written}");
        }
        let profile = Profile::from_csv(GOOD_CSV.as_bytes()).unwrap();
        assert!(!profile.to_csv().contains("count"));
    }
}
