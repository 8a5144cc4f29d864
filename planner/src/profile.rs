//! What was measured: time and energy of each instruction of each stage at each clock.
//!
//! Reads the CSV that Perseus and Zeus write. Nothing is smoothed, fitted or scaled here: a plan's
//! prediction must be what these rows say.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use csv::StringRecord;

use crate::combine::{Combine, Ranks, combined};
use crate::error::{PlanError, excerpt};
use crate::instruction::Instruction;
use crate::plan::Plan;
use crate::units::{Mhz, Stage};

const COLUMNS: [&str; 5] = ["stage", "instruction", "frequency", "time", "energy"];

/// No instruction takes a day; a longer one is in another unit.
const LONGEST_S: f64 = 86_400.0;

/// A day at a megawatt.
const MOST_J: f64 = 86_400e6;

/// Time and energy of one instruction at one clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// The clock it was measured at.
    pub frequency: Mhz,
    /// Seconds it took.
    pub time_s: f64,
    /// Joules it took.
    pub energy_j: f64,
}

/// A measured profile of all stages of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Rows of each instruction by rising clock; stage `s` is at index `s`.
    stages: Vec<BTreeMap<Instruction, Vec<Measurement>>>,
}

impl Profile {
    /// Reads a profile from CSV with the columns `stage`, `instruction`, `frequency` (MHz), `time`
    /// (s) and `energy` (J), in any order of columns and rows.
    ///
    /// Any other column (`rank`, `dp_rank`, …) tells apart rows of the same stage, instruction and
    /// frequency; these are averaged, as Zeus' pipeline frequency optimizer does.
    ///
    /// # Errors
    /// The first thing wrong, with its line.
    pub fn from_csv(csv: impl Read) -> Result<Self, PlanError> {
        Self::from_csv_combined(csv, Combine::Mean)
    }

    /// The same, with another way to combine what the ranks of a stage measured.
    ///
    /// # Errors
    /// The first thing wrong, with its line; or there are no ranks to combine, or some of them
    /// lack rows.
    pub fn from_csv_combined(csv: impl Read, combine: Combine) -> Result<Self, PlanError> {
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(csv);
        let header = reader.headers().map_err(unreadable)?.clone();
        let columns = Columns::find(&header)?;
        let ranks = columns.ranks(&header, combine)?;

        let mut rows: BTreeMap<(Stage, Instruction, Mhz), Ranks> = BTreeMap::new();
        let mut lines: HashMap<(Stage, Instruction, Mhz, Vec<String>), u64> = HashMap::new();
        for record in reader.records() {
            let record = record.map_err(unreadable)?;
            let line = record.position().map_or(0, csv::Position::line);
            let (stage, instruction, measured) = columns.read(&record, line)?;

            let others = columns.others.iter().map(|&i| record[i].to_owned()).collect();
            let row = (stage, instruction, measured.frequency, others);
            if let Some(first) = lines.insert(row, line) {
                let frequency = measured.frequency;
                return Err(PlanError::DuplicateRow { first, line, stage, instruction, frequency });
            }
            let rank = ranks.iter().map(|&i| record[i].to_owned()).collect();
            let row = rows.entry((stage, instruction, measured.frequency)).or_default();
            row.entry(rank).or_default().add(measured);
        }
        Self::from_measurements(combined(rows)?)
    }

    /// A profile of these rows, each (stage, instruction, frequency) at most once.
    ///
    /// # Errors
    /// If there is no row, or none of a stage below the highest one.
    pub fn from_measurements(
        rows: impl IntoIterator<Item = (Stage, Instruction, Measurement)>,
    ) -> Result<Self, PlanError> {
        let mut stages: Vec<BTreeMap<_, Vec<Measurement>>> = Vec::new();
        for (stage, instruction, measured) in rows {
            if stages.len() <= stage.index() {
                stages.resize_with(stage.index() + 1, BTreeMap::new);
            }
            stages[stage.index()].entry(instruction).or_default().push(measured);
        }
        for table in stages.iter_mut().flat_map(BTreeMap::values_mut) {
            table.sort_by_key(|measured| measured.frequency);
        }
        if stages.is_empty() {
            return Err(PlanError::EmptyProfile);
        }
        if let Some(missing) = stages.iter().position(BTreeMap::is_empty) {
            return Err(PlanError::StageWithoutRows { missing, highest: stages.len() - 1 });
        }
        Ok(Self { stages })
    }

    /// The number of stages.
    pub fn num_stages(&self) -> u16 {
        // Bounded when the rows were read: a stage is a u16 below `Plan::MAX_STAGES`.
        self.stages.len() as u16
    }

    /// The rows of an instruction by rising clock; empty if it was not measured.
    pub fn table(&self, stage: Stage, instruction: Instruction) -> &[Measurement] {
        self.stages
            .get(stage.index())
            .and_then(|tables| tables.get(&instruction))
            .map_or(&[], Vec::as_slice)
    }

    /// What an instruction took at a clock: its row; for one whose time does not depend on the
    /// clock, at any clock the mean of its rows, which are then all measurements of the same.
    pub fn at(&self, stage: Stage, instruction: Instruction, clock: Mhz) -> Option<Measurement> {
        let table = self.table(stage, instruction);
        if instruction.is_fixed() && !table.is_empty() {
            let mut sum = Sum::default();
            table.iter().for_each(|&row| sum.add(row));
            return Some(sum.mean(clock));
        }
        let index = table.binary_search_by_key(&clock, |measured| measured.frequency).ok()?;
        Some(table[index])
    }

    /// All rows, by stage, instruction and clock.
    pub fn rows(&self) -> impl Iterator<Item = (Stage, Instruction, Measurement)> {
        (0..).zip(&self.stages).flat_map(|(stage, tables)| {
            tables.iter().flat_map(move |(&instruction, table)| {
                table.iter().map(move |&measured| (Stage(stage), instruction, measured))
            })
        })
    }
}

/// Where the fields of a row are.
struct Columns {
    needed: [usize; 5],
    others: Vec<usize>,
}

impl Columns {
    fn find(header: &StringRecord) -> Result<Self, PlanError> {
        let mut needed = [0; 5];
        for (place, name) in needed.iter_mut().zip(COLUMNS) {
            *place = header.iter().position(|field| field == name).ok_or_else(|| {
                let found = header.iter().collect::<Vec<_>>().join(",");
                PlanError::MissingColumn { name, found: excerpt(&found) }
            })?;
        }
        let others = (0..header.len()).filter(|index| !needed.contains(index)).collect();
        Ok(Self { needed, others })
    }

    /// Those of the other columns by which rows are combined.
    fn ranks(&self, header: &StringRecord, combine: Combine) -> Result<Vec<usize>, PlanError> {
        let names = combine.columns();
        let is_rank = |&index: &usize| names.contains(&&header[index]);
        let ranks: Vec<usize> = self.others.iter().copied().filter(is_rank).collect();
        match names.first() {
            Some(name) if ranks.is_empty() => {
                let found = header.iter().collect::<Vec<_>>().join(",");
                Err(PlanError::MissingColumn { name, found: excerpt(&found) })
            }
            _ => Ok(ranks),
        }
    }

    fn read(
        &self,
        record: &StringRecord,
        line: u64,
    ) -> Result<(Stage, Instruction, Measurement), PlanError> {
        let [stage, instruction, frequency, time, energy] = self.needed.map(|i| &record[i]);
        let wrong = |column, value: &str, expected| PlanError::BadField {
            line,
            column,
            value: excerpt(value),
            expected,
        };

        let stage = stage
            .parse()
            .ok()
            .filter(|&stage| stage < Plan::MAX_STAGES)
            .map(Stage)
            .ok_or_else(|| wrong("stage", stage, "a stage from 0 to 1023"))?;
        let instruction = instruction
            .parse()
            .map_err(|_| wrong("instruction", instruction, "an instruction such as forward"))?;
        // Some writers print whole MHz as a float.
        let frequency = frequency
            .parse()
            .ok()
            .filter(|mhz: &f64| mhz.fract() == 0.0 && Mhz(*mhz as u32).is_plausible())
            .map(|mhz| Mhz(mhz as u32))
            .ok_or_else(|| wrong("frequency", frequency, "whole MHz between 1 and 10000"))?;
        let positive = |value: &str, most: f64| {
            value.parse().ok().filter(|&number: &f64| number > 0.0 && number <= most)
        };
        let time_s = positive(time, LONGEST_S)
            .ok_or_else(|| wrong("time", time, "positive seconds, less than a day"))?;
        let energy_j =
            positive(energy, MOST_J).ok_or_else(|| wrong("energy", energy, "positive joules"))?;
        Ok((stage, instruction, Measurement { frequency, time_s, energy_j }))
    }
}

/// Of rows that measure the same.
#[derive(Default)]
pub(crate) struct Sum {
    time_s: f64,
    energy_j: f64,
    rows: u32,
}

impl Sum {
    fn add(&mut self, measured: Measurement) {
        self.time_s += measured.time_s;
        self.energy_j += measured.energy_j;
        self.rows += 1;
    }

    pub(crate) fn mean(&self, frequency: Mhz) -> Measurement {
        let rows = f64::from(self.rows);
        Measurement { frequency, time_s: self.time_s / rows, energy_j: self.energy_j / rows }
    }
}

fn unreadable(error: csv::Error) -> PlanError {
    let line = error.position().map_or(1, csv::Position::line);
    let problem = match error.into_kind() {
        csv::ErrorKind::Io(error) => error.to_string(),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields, but the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "not UTF-8 text".to_owned(),
        kind => format!("{kind:?}"),
    };
    PlanError::UnreadableRow { line, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "stage,instruction,frequency,time,energy\n\
                        1,forward,1410,0.5,20\n\
                        1,backward,1410.0,1.0,40\n\
                        0,backward,1395,1.1,39\n\
                        0,backward,1410,1.0,40\n\
                        0,forward,1410,0.5,20\n";

    fn refused(csv: &str) -> String {
        Profile::from_csv(csv.as_bytes()).unwrap_err().to_string()
    }

    fn assert_says(message: &str, words: &[&str]) {
        for word in words {
            assert!(message.contains(word), "no {word:?} in {message:?}");
        }
    }

    #[test]
    fn rows_may_come_in_any_order_and_are_kept_by_rising_clock() {
        let profile = Profile::from_csv(GOOD.as_bytes()).unwrap();
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
    fn a_missing_column_is_named() {
        assert_says(&refused("stage,instruction,frequency,energy\n"), &["\"time\"", "energy"]);
        assert_says(&refused(""), &["\"stage\""]);
    }

    #[test]
    fn a_duplicate_row_is_refused_with_both_lines() {
        let message = refused(&format!("{GOOD}1,forward,1410,0.6,20\n"));
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
    fn a_time_that_is_not_positive_is_refused_with_its_line_and_value() {
        for time in ["-0.5", "0", "NaN", "inf", "fast", ""] {
            let message =
                refused(&GOOD.replace("1410,0.5,20\n1,b", &format!("1410,{time},20\n1,b")));
            assert_says(&message, &["line 2", "time", &format!("\"{time}\"")]);
        }
    }

    #[test]
    fn an_energy_that_is_not_positive_is_refused_with_its_line_and_value() {
        for energy in ["-39", "0", "NaN"] {
            let message = refused(&GOOD.replace("1.1,39", &format!("1.1,{energy}")));
            assert_says(&message, &["line 4", "energy", &format!("\"{energy}\"")]);
        }
    }

    #[test]
    fn a_frequency_that_no_gpu_has_is_refused_with_its_line_and_value() {
        for frequency in ["0", "1410.5", "-1410", "1410000", "high"] {
            let message = refused(&GOOD.replace("1395", frequency));
            assert_says(&message, &["line 4", "frequency", &format!("\"{frequency}\"")]);
        }
    }

    #[test]
    fn a_bad_stage_and_an_unknown_instruction_are_refused_with_their_line() {
        assert_says(&refused(&GOOD.replace("\n1,forward", "\n-1,forward")), &["line 2", "\"-1\""]);
        assert_says(
            &refused(&GOOD.replace("\n1,forward", "\n5000,forward")),
            &["line 2", "\"5000\""],
        );
        assert_says(
            &refused(&GOOD.replace("\n1,forward", "\n1,sideways")),
            &["line 2", "sideways"],
        );
    }

    #[test]
    fn a_row_of_another_length_is_refused_with_its_line() {
        assert_says(&refused(&GOOD.replace("1.1,39", "1.1")), &["line 4", "4 fields", "5"]);
    }

    #[test]
    fn a_stage_without_rows_is_named() {
        let message = refused(&GOOD.replace("\n1,", "\n3,"));
        assert_says(&message, &["stage 1", "stage 3"]);
    }

    #[test]
    fn a_profile_without_rows_is_refused() {
        assert_says(&refused("stage,instruction,frequency,time,energy\n"), &["no rows"]);
    }
}
