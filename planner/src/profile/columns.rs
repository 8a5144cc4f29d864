//! The columns of a profile and the values of their fields.

use std::ops::RangeInclusive;

use csv::StringRecord;
use pfo_vocabulary::{Chunk, Instruction, Mhz, Microbatch, Stage};

use crate::excerpt::excerpt;
use crate::limits;
use crate::profile::combine::Combine;
use crate::profile::error::ProfileError;
use crate::profile::header::{Header, POWER};
use crate::profile::measurement::Measurement;
use crate::profile::repeats::Repeats;

/// The required columns.
pub(crate) const COLUMNS: [&str; 5] = ["stage", "instruction", "frequency", "time", ENERGY];
const ENERGY: &str = "energy";

/// The columns for lines that are the mean of several measurements: their number and scatter.
pub(crate) const REPEATS: [&str; 3] = ["count", "time_sd", "energy_sd"];

/// A line with a value here is not part of the profile.
pub(super) const LEFT_OUT: &str = "left_out";

/// The clock that the GPU really had.
pub(super) const OBSERVED: &str = "observed_mhz";

/// The columns that say who measured. Lines that are equal in all of them are repeats.
pub(super) const MEASURERS: [&str; 5] = ["rank", "dp_rank", "pp_rank", "tp_rank", CHUNK];

/// The model chunk that was measured.
pub(crate) const CHUNK: &str = "chunk";

/// The microbatch that was measured.
pub(crate) const MICROBATCH: &str = "microbatch";

/// A day. No instruction takes as long; a larger value is in another unit.
const LONGEST_S: f64 = 86_400.0;

/// A day at a megawatt.
const MOST_J: f64 = 86_400e6;

/// The power of a computing GPU, in watts, or of those that a line adds up. Outside of this a time or
/// an energy is in another unit: ms for s, mJ for J.
const POSSIBLE_W: RangeInclusive<f64> = 1.0..=100e3;

const MOST_COUNTED: f64 = 1e9;

/// Where the fields of a row are.
pub(crate) struct Columns {
    needed: [usize; 5],
    repeats: [Option<usize>; 3],
    left_out: Option<usize>,
    observed: Option<usize>,
    chunk: Option<usize>,
    microbatch: Option<usize>,
    /// The columns that say who measured.
    pub(crate) measurers: Vec<usize>,
    /// All columns that tell repeats apart, measurers included.
    pub(crate) others: Vec<usize>,
    /// Whether the column of the energy has watts instead.
    has_watts: bool,
    /// For each column, how many of pfo's units one of its own is.
    scales: Vec<f64>,
}

impl Columns {
    /// # Errors
    /// If a required column is missing.
    pub(crate) fn find(header: &Header) -> Result<Self, ProfileError> {
        let Header { names: header, scales } = header;
        let place = |name: &str| header.iter().position(|field| field == name);
        let mut needed = [0; 5];
        let has_watts = place(ENERGY).is_none() && place(POWER).is_some();
        for (found, name) in needed.iter_mut().zip(COLUMNS) {
            let named = if has_watts && name == ENERGY { POWER } else { name };
            *found = place(named).ok_or_else(|| missing(name, header))?;
        }
        let repeats = REPEATS.map(place);
        let scatter = REPEATS.into_iter().zip(repeats).find(|(_, place)| place.is_some());
        if let (None, Some((name, _))) = (repeats[0], scatter) {
            return Err(ProfileError::ScatterWithoutCount { name });
        }
        let left_out = place(LEFT_OUT);
        let is_other = |index: &usize| {
            let known = [&repeats[..], &[left_out]].concat();
            !needed.contains(index) && !known.contains(&Some(*index))
        };
        let others: Vec<usize> = (0..header.len()).filter(is_other).collect();
        let is_measurer = |&&index: &&usize| MEASURERS.contains(&&header[index]);
        let measurers = others.iter().filter(is_measurer).copied().collect();
        let (observed, chunk, microbatch) = (place(OBSERVED), place(CHUNK), place(MICROBATCH));
        let scales = scales.clone();
        Ok(Self {
            needed,
            repeats,
            left_out,
            observed,
            chunk,
            microbatch,
            measurers,
            others,
            has_watts,
            scales,
        })
    }

    /// Whether a line is the header once more, as in files that were put together.
    pub(crate) fn is_header(&self, record: &StringRecord) -> bool {
        let [stage, instruction, ..] = self.needed.map(|place| &record[place]);
        stage.eq_ignore_ascii_case(COLUMNS[0]) && instruction.eq_ignore_ascii_case(COLUMNS[1])
    }

    /// The columns that have numbers.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        let [stage, _, frequency, time, energy] = self.needed;
        let others = self.repeats.into_iter().chain([self.observed, self.chunk, self.microbatch]);
        [stage, frequency, time, energy].into_iter().chain(others.flatten()).collect()
    }

    /// Why a line is not part of the profile, and its stage, if it says both.
    pub(crate) fn left_out<'a>(
        &self,
        record: &'a StringRecord,
    ) -> Option<(&'a str, Option<usize>)> {
        let reason = self.left_out.map(|place| &record[place]).filter(|reason| !reason.is_empty());
        Some((reason?, stage_of(&record[self.needed[0]]).map(Stage::index)))
    }

    /// The columns by which rows are combined.
    ///
    /// # Errors
    /// If there are none, but `combine` requires them.
    pub(crate) fn ranks(
        &self,
        header: &StringRecord,
        combine: Combine,
    ) -> Result<Vec<usize>, ProfileError> {
        let names = combine.columns();
        let is_rank = |&index: &usize| names.contains(&&header[index]);
        let ranks: Vec<usize> = self.measurers.iter().copied().filter(is_rank).collect();
        match names.first() {
            Some(name) if ranks.is_empty() => Err(missing(name, header)),
            _ => Ok(ranks),
        }
    }

    /// # Errors
    /// The first field that its column does not accept.
    pub(crate) fn read(
        &self,
        record: &StringRecord,
        line: u64,
    ) -> Result<(Stage, Instruction, Measurement), ProfileError> {
        let [stage, instruction, frequency, time, energy] = self.needed.map(|i| &record[i]);
        let [_, _, mhz_each, s_each, j_each] = self.needed.map(|i| self.scales[i]);
        let wrong = |column, value: &str, expected| bad_field(line, column, value, expected);
        let stage =
            stage_of(stage).ok_or_else(|| wrong("stage", stage, "a stage from 0 to 1023"))?;
        let instruction =
            instruction_of(instruction).ok_or_else(|| wrong("instruction", instruction, NAMES))?;
        // Some writers print whole MHz as a float.
        let frequency = frequency
            .parse()
            .ok()
            .map(|value: f64| in_mhz(value, mhz_each))
            .filter(|mhz: &f64| mhz.fract() == 0.0 && Mhz(*mhz as u32).is_plausible())
            .map(|mhz| Mhz(mhz as u32))
            .ok_or_else(|| {
                wrong("frequency", frequency, if frequency.is_empty() { ASKED } else { MHZ })
            })?;
        let positive = |value: &str, each: f64, most: f64| {
            let scaled = value.parse().ok().map(|value: f64| value * each);
            scaled.filter(|&number| number > 0.0 && number <= most)
        };
        let time_s = positive(time, s_each, LONGEST_S)
            .ok_or_else(|| wrong("time", time, "positive seconds, less than a day"))?;
        let energy_j = if self.has_watts {
            let power_w = positive(energy, j_each, MOST_J);
            power_w
                .map(|power_w| power_w * time_s)
                .ok_or_else(|| wrong(POWER, energy, "watts above 0"))
        } else {
            positive(energy, j_each, MOST_J).ok_or_else(|| wrong(ENERGY, energy, "positive joules"))
        }?;
        let power_w = energy_j / time_s;
        if !POSSIBLE_W.contains(&power_w) {
            return Err(ProfileError::ImpossiblePower { line, time_s, energy_j, power_w });
        }
        Ok((stage, instruction, Measurement { frequency, time_s, energy_j }))
    }

    /// The clock that the GPU really had, in MHz, if the line says it.
    ///
    /// # Errors
    /// If that is no clock.
    pub(crate) fn read_observed(
        &self,
        record: &StringRecord,
        line: u64,
    ) -> Result<Option<f64>, ProfileError> {
        let value = self.observed.map_or("", |place| &record[place]);
        let read = || value.parse().ok().filter(|mhz| (1.0..=f64::from(Mhz::MAX.0)).contains(mhz));
        match value.is_empty() {
            true => Ok(None),
            false => read().map(Some).ok_or_else(|| {
                bad_field(line, OBSERVED, value, "MHz between 1 and 10000, or empty")
            }),
        }
    }

    /// The model chunk that was measured, if the line says it.
    ///
    /// # Errors
    /// If that is no chunk.
    pub(crate) fn read_chunk(
        &self,
        record: &StringRecord,
        line: u64,
    ) -> Result<Option<Chunk>, ProfileError> {
        let value = self.chunk.map_or("", |place| &record[place]);
        let read = || whole(value, f64::from(Chunk::MAX_CHUNKS)).map(|of| Chunk(of as u16));
        match value.is_empty() {
            true => Ok(None),
            false => read()
                .map(Some)
                .ok_or_else(|| bad_field(line, CHUNK, value, "a chunk from 0 to 63, or empty")),
        }
    }

    /// The microbatch that was measured, if the line says it.
    ///
    /// # Errors
    /// If that is no microbatch.
    pub(crate) fn read_microbatch(
        &self,
        record: &StringRecord,
        line: u64,
    ) -> Result<Option<Microbatch>, ProfileError> {
        let value = self.microbatch.map_or("", |place| &record[place]);
        let read = || whole(value, f64::from(limits::MICROBATCHES)).map(Microbatch);
        match value.is_empty() {
            true => Ok(None),
            false => read().map(Some).ok_or_else(|| {
                bad_field(line, MICROBATCH, value, "a microbatch from 0 to 65535, or empty")
            }),
        }
    }

    /// What a line says about the measurements of which it is the mean.
    ///
    /// # Errors
    /// The first field that its column does not accept.
    pub(crate) fn read_repeats(
        &self,
        record: &StringRecord,
        line: u64,
        measured: Measurement,
    ) -> Result<Repeats, ProfileError> {
        let field = |index: usize| {
            let value = self.repeats[index].map_or("", |place| &record[place]);
            (!value.is_empty()).then_some(value)
        };
        let count = match field(0) {
            None => 1,
            // Some writers print whole numbers as floats.
            Some(value) => value
                .parse()
                .ok()
                .filter(|count: &f64| count.fract() == 0.0 && (1.0..=MOST_COUNTED).contains(count))
                .map(|count| count as u32)
                .ok_or_else(|| {
                    bad_field(line, REPEATS[0], value, "a whole number from 1 to a billion")
                })?,
        };
        let sd = |index: usize, unit, mean: f64| {
            let Some(value) = field(index) else { return Ok(None) };
            let each = self.repeats[index].map_or(1.0, |place| self.scales[place]);
            let sd = value.parse().ok().map(|sd: f64| sd * each);
            let sd = sd.filter(|sd| *sd >= 0.0 && sd.is_finite());
            if count == 1 {
                // A single line has no repeats: its deviation says how exactly the row is known.
                return Ok(sd.filter(|sd| *sd > 0.0 && *sd <= mean));
            }
            let column = REPEATS[index];
            let sd = sd.ok_or_else(|| bad_field(line, column, value, "0 or more, or empty"))?;
            match sd > most_scatter(mean, count) {
                true => {
                    Err(ProfileError::ImpossibleScatter { line, column, sd, mean, unit, count })
                }
                false => Ok(Some(sd)),
            }
        };
        let (time_sd_s, energy_sd_j) =
            (sd(1, "s", measured.time_s)?, sd(2, "J", measured.energy_j)?);
        Ok(Repeats { count, time_sd_s, energy_sd_j })
    }
}

/// The largest standard deviation of this many measurements above 0: all but one took nothing. That of
/// many may exceed the mean: `pfo-agent` writes the standard error of an energy as the deviation that
/// explains it.
fn most_scatter(mean: f64, count: u32) -> f64 {
    // Rounding may put a deviation at the limit above it.
    (1.0 + 1e-9) * mean * f64::from(count).sqrt()
}

/// The names of all instructions, for messages.
const NAMES: &str = "forward, backward, forward_backward, recomputation, backward_input, \
                     backward_weight, load, p2p, collective, optimizer_step or other";

const MHZ: &str = "whole MHz between 1 and 10000";

/// The same for a line without a clock, as it is measured at default clocks.
const ASKED: &str = "whole MHz between 1 and 10000; lines measured at default clocks have none: measure at \
                     given clocks (pfoctl profile samples --mhz 1410,1200)";

fn stage_of(value: &str) -> Option<Stage> {
    whole(value, f64::from(limits::STAGES)).map(|stage| Stage(stage as u16))
}

/// An instruction by its name, in letters of any case.
fn instruction_of(name: &str) -> Option<Instruction> {
    let lower = || name.to_lowercase().replace([' ', '-'], "_");
    name.parse().ok().or_else(|| lower().parse().ok())
}

/// A number below a limit. Some writers print whole numbers as floats.
fn whole(value: &str, below: f64) -> Option<u32> {
    let number: f64 = value.parse().ok()?;
    (number.fract() == 0.0 && (0.0..below).contains(&number)).then_some(number as u32)
}

/// A clock in MHz. A GHz is a thousand of them, whatever a float makes of its fraction.
fn in_mhz(value: f64, each: f64) -> f64 {
    const ROUNDED: f64 = 1e-6;
    let mhz = value * each;
    if each != 1.0 && (mhz - mhz.round()).abs() < ROUNDED { mhz.round() } else { mhz }
}

fn missing(name: &'static str, header: &StringRecord) -> ProfileError {
    let found = header.iter().collect::<Vec<_>>().join(",");
    ProfileError::MissingColumn { name, found: excerpt(&found) }
}

fn bad_field(line: u64, column: &'static str, value: &str, expected: &'static str) -> ProfileError {
    ProfileError::BadField { line, column, value: excerpt(value), expected }
}

#[cfg(test)]
mod tests {
    use crate::profile::Profile;
    use crate::test_profiles::{GOOD_CSV, assert_says, refused};

    #[test]
    fn a_time_that_is_not_positive_is_refused_with_its_line_and_value() {
        for time in ["-0.5", "0", "NaN", "inf", "fast", ""] {
            let message =
                refused(&GOOD_CSV.replace("1410,0.5,20\n1,b", &format!("1410,{time},20\n1,b")));
            assert_says(&message, &["line 2", "time", &format!("\"{time}\"")]);
        }
    }

    #[test]
    fn an_energy_that_is_not_positive_is_refused_with_its_line_and_value() {
        for energy in ["-39", "0", "NaN"] {
            let message = refused(&GOOD_CSV.replace("1.1,39", &format!("1.1,{energy}")));
            assert_says(&message, &["line 4", "energy", &format!("\"{energy}\"")]);
        }
    }

    #[test]
    fn a_frequency_that_no_gpu_has_is_refused_with_its_line_and_value() {
        for frequency in ["0", "1410.5", "-1410", "1410000", "high"] {
            let message = refused(&GOOD_CSV.replace("1395", frequency));
            assert_says(&message, &["line 4", "frequency", &format!("\"{frequency}\"")]);
        }
    }

    #[test]
    fn a_frequency_that_is_missing_is_refused_with_the_option_that_asks_for_one() {
        let message = refused(&GOOD_CSV.replace("1395", ""));
        assert_says(&message, &["line 4", "frequency is \"\"", "default clocks", "--mhz"]);
    }

    #[test]
    fn a_bad_stage_and_an_unknown_instruction_are_refused_with_their_line() {
        assert_says(
            &refused(&GOOD_CSV.replace("\n1,forward", "\n-1,forward")),
            &["line 2", "\"-1\""],
        );
        assert_says(
            &refused(&GOOD_CSV.replace("\n1,forward", "\n5000,forward")),
            &["line 2", "\"5000\""],
        );
        assert_says(
            &refused(&GOOD_CSV.replace("\n1,forward", "\n1,sideways")),
            &["line 2", "sideways"],
        );
    }

    #[test]
    fn a_time_in_ms_or_an_energy_in_mj_is_refused_with_its_line_and_the_power_that_it_means() {
        for (row, says) in [("50,20", "0.400 W"), ("0.05,20000", "400000.000 W")] {
            let csv = format!(
                "stage,instruction,frequency,time,energy\n\
                 0,forward,1410,0.05,20\n0,backward,1410,{row}\n"
            );
            assert_says(&refused(&csv), &["line 3", says, "seconds", "joules"]);
        }
    }

    #[test]
    fn a_missing_column_is_named() {
        assert_says(&refused("stage,instruction,frequency,energy\n"), &["\"time\"", "energy"]);
        assert_says(&refused(""), &["\"stage\""]);
    }

    #[test]
    fn a_deviation_in_ms_or_mj_is_refused_with_its_line_value_and_remedy() {
        let csv = |time_sd: &str, energy_sd: &str| {
            format!(
                "stage,instruction,frequency,time,energy,count,time_sd,energy_sd\n\
                 0,forward,1410,0.05,20,20,{time_sd},{energy_sd}\n"
            )
        };
        assert_says(
            &refused(&csv("1", "0.4")),
            &["line 2", "time_sd 1 s of a mean of 0.05 s", "in ms?", "\"time_sd (ms)\""],
        );
        assert_says(
            &refused(&csv("0.001", "400")),
            &["line 2", "energy_sd 400 J of a mean of 20 J", "in mJ?", "\"energy_sd (mJ)\""],
        );
        let of_ms = csv("1", "0.4").replace("time_sd", "time_sd (ms)");
        assert!(Profile::from_csv(of_ms.as_bytes()).is_ok());
        // The error of the energy of many short instructions.
        assert!(Profile::from_csv(csv("0.001", "30").as_bytes()).is_ok());
    }

    #[test]
    fn a_count_or_a_deviation_that_cannot_be_is_refused_with_its_line_and_value() {
        let csv = |count: &str, sd: &str| {
            format!(
                "stage,instruction,frequency,time,energy,count,time_sd\n\
                 0,forward,1410,0.5,20,{count},{sd}\n"
            )
        };
        for count in ["0", "-1", "1.5", "many", "1e99"] {
            assert_says(&refused(&csv(count, "")), &["line 2", "count", &format!("\"{count}\"")]);
        }
        for sd in ["-0.1", "NaN", "inf", "little"] {
            assert_says(&refused(&csv("3", sd)), &["line 2", "time_sd", &format!("\"{sd}\"")]);
        }
        assert_says(
            &refused(&csv("", "").replace("count", "counter")),
            &["column time_sd requires", "add count, or leave time_sd out"],
        );
    }
}
