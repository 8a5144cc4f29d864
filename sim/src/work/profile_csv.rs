//! Reading and writing profiles: `stage,instruction,frequency,time,energy` in MHz, s and J.
//!
//! Further columns, such as a rank, are averaged over; without any, the same row twice is an error.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use csv::{StringRecord, Trim};

use crate::error::SimError;
use crate::model::ModelFacts;
use crate::units::{Mhz, Milliwatts};
use crate::work::table::{Kind, StageWork, Work, WorkPoint};

const COLUMNS: [&str; 5] = ["stage", "instruction", "frequency", "time", "energy"];

/// Measurements of one instruction at one clock.
#[derive(Default)]
struct Sum {
    count: f64,
    time_s: f64,
    energy_j: f64,
}

type Sums = BTreeMap<(usize, Kind), BTreeMap<Mhz, Sum>>;

/// Reads all stages of a profile. Instructions that the simulated trainer does not run are left
/// out.
pub fn read(path: &Path) -> Result<Vec<StageWork>, SimError> {
    let file = File::open(path).map_err(|source| SimError::file("read", path, source))?;
    read_from(file, path)
}

fn read_from(input: impl io::Read, path: &Path) -> Result<Vec<StageWork>, SimError> {
    let whole = |difference: String| SimError::Profile {
        path: path.into(),
        place: String::new(),
        difference,
    };
    let mut reader = csv::ReaderBuilder::new().trim(Trim::All).from_reader(input);
    let header = reader.headers().map_err(|error| whole(error.to_string()))?.clone();
    let mut columns = [0; COLUMNS.len()];
    for (column, name) in columns.iter_mut().zip(COLUMNS) {
        *column = header.iter().position(|title| title == name).ok_or_else(|| {
            whole(format!("it has no column {name:?}: its first line must name {COLUMNS:?}"))
        })?;
    }
    let averaged = header.len() > COLUMNS.len();
    let mut sums = Sums::new();
    for row in reader.records() {
        let row = row.map_err(|error| whole(error.to_string()))?;
        let line = row.position().map_or(0, csv::Position::line);
        add(&mut sums, &row, columns, averaged).map_err(|difference| SimError::Profile {
            path: path.into(),
            place: format!(":{line}"),
            difference,
        })?;
    }
    stages(&sums).map_err(whole)
}

fn add(
    sums: &mut Sums,
    row: &StringRecord,
    [stage, instruction, frequency, time, energy]: [usize; 5],
    averaged: bool,
) -> Result<(), String> {
    let cell = |column: usize| row.get(column).unwrap_or_default();
    let number = |column: usize, what: &str| match cell(column).parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err(format!("{what} is {:?}, it must be a number above 0", cell(column))),
    };
    let stage: usize =
        cell(stage).parse().map_err(|_| format!("stage is {:?}, not a number", cell(stage)))?;
    let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == cell(instruction)) else {
        return Ok(());
    };
    let clock: u32 = cell(frequency)
        .parse()
        .ok()
        .filter(|&mhz| mhz > 0)
        .ok_or_else(|| format!("frequency is {:?}, it must be whole MHz", cell(frequency)))?;
    let sum = sums.entry((stage, kind)).or_default().entry(Mhz(clock)).or_default();
    if sum.count > 0.0 && !averaged {
        let name = kind.name();
        return Err(format!("stage {stage}, {name}, {clock} MHz is there twice: remove one"));
    }
    sum.count += 1.0;
    sum.time_s += number(time, "time")?;
    sum.energy_j += number(energy, "energy")?;
    Ok(())
}

fn stages(sums: &Sums) -> Result<Vec<StageWork>, String> {
    let count = sums.keys().map(|&(stage, _)| stage + 1).max().ok_or("it has no rows")?;
    let work = |stage: usize, kind: Kind| {
        let by_clock = sums
            .get(&(stage, kind))
            .ok_or_else(|| format!("it has no rows for stage {stage}, {}", kind.name()))?;
        let point = |(&clock, sum): (&Mhz, &Sum)| WorkPoint {
            clock,
            time_s: sum.time_s / sum.count,
            power: Milliwatts::from_watts(sum.energy_j / sum.time_s),
        };
        Work::new(by_clock.iter().map(point).collect()).map_err(|error| error.to_string())
    };
    (0..count)
        .map(|stage| {
            Ok(StageWork {
                forward: work(stage, Kind::Forward)?,
                backward: work(stage, Kind::Backward)?,
            })
        })
        .collect()
}

/// Every clock of an ideal GPU, which holds each.
pub fn held(facts: &ModelFacts) -> Vec<(Mhz, Mhz)> {
    facts.sm_clocks().into_iter().map(|clock| (clock, clock)).collect()
}

/// Writes what stages would measure at some clocks, highest first. Each clock comes with the one that
/// is held in its place; where an instruction draws more than `most` there, it is left out.
pub fn write(
    output: impl io::Write,
    stages: &[StageWork],
    clocks: &[(Mhz, Mhz)],
    most: Milliwatts,
) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(output);
    writer.write_record(COLUMNS)?;
    for (stage, work) in stages.iter().enumerate() {
        for (asked, held) in clocks.iter().rev() {
            for kind in Kind::ALL {
                let work = work.of(kind);
                if work.curve().at(*held) > most {
                    continue;
                }
                writer.write_record([
                    stage.to_string(),
                    kind.name().to_owned(),
                    asked.0.to_string(),
                    format!("{:.9}", work.time_s(*held)),
                    format!("{:.9}", work.energy_j(*held)),
                ])?;
            }
        }
    }
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GpuModel;
    use crate::work::built_in;

    fn parse(text: &str) -> Result<Vec<StageWork>, SimError> {
        read_from(text.as_bytes(), Path::new("p.csv"))
    }

    #[test]
    fn what_is_written_reads_back_as_the_same_work() {
        let facts = GpuModel::A100.facts();
        let stages: Vec<_> = (0..3).map(|i| built_in::stage(facts, i, 3).unwrap()).collect();
        let mut text = Vec::new();
        write(&mut text, &stages, &held(facts), Milliwatts(u32::MAX)).unwrap();
        let again = read_from(&text[..], Path::new("p.csv")).unwrap();
        for (one, other) in stages.iter().zip(&again) {
            for kind in Kind::ALL {
                for clock in facts.sm_clocks() {
                    let (one, other) = (one.of(kind), other.of(kind));
                    assert!((one.time_s(clock) - other.time_s(clock)).abs() < 1e-8);
                    assert!((one.energy_j(clock) - other.energy_j(clock)).abs() < 1e-3);
                }
            }
        }
    }

    #[test]
    fn further_columns_are_averaged_over_and_other_instructions_left_out() {
        let stages = parse(
            "rank,stage,instruction,frequency,time,energy\n\
             0,0,forward,900,0.1,20\n1,0,forward,900,0.3,40\n\
             0,0,backward,900,0.2,30\n0,0,recomputation,900,oops,\n",
        )
        .unwrap();
        assert!((stages[0].forward.time_s(Mhz(900)) - 0.2).abs() < 1e-12);
        assert!((stages[0].forward.energy_j(Mhz(900)) - 30.0).abs() < 1e-3);
    }

    #[test]
    fn a_bad_profile_is_refused_with_value_and_line() {
        const HEADER: &str = "stage,instruction,frequency,time,energy\n";
        let row = "0,forward,900,0.1,20\n";
        for (text, culprit) in [
            ("stage,instruction,time,energy\n".to_owned(), "no column \"frequency\""),
            (HEADER.to_owned(), "no rows"),
            (format!("{HEADER}{row}"), "no rows for stage 0, backward"),
            (format!("{HEADER}{row}{row}"), "p.csv:3: stage 0, forward, 900 MHz is there twice"),
            (format!("{HEADER}0,forward,900,-1,20\n"), "p.csv:2: time is \"-1\""),
            (format!("{HEADER}0,forward,900,1,nan\n"), "energy is \"nan\""),
            (format!("{HEADER}x,forward,900,1,1\n"), "stage is \"x\""),
            (format!("{HEADER}0,forward,0,1,1\n"), "frequency is \"0\""),
            (format!("{HEADER}0,forward,900,1\n"), "line: 2"),
        ] {
            let message = parse(&text).unwrap_err().to_string();
            assert!(message.contains(culprit), "{message}");
        }
    }
}
