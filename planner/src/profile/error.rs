//! Why a profile is refused.

use pfo_vocabulary::{Instruction, Mhz, Stage};

/// A problem of a profile, with its line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// A header that lacks a column.
    #[error(
        "profile: no column \"{name}\" in the header \"{found}\"; it must have stage, instruction, \
         frequency (MHz), time (s) and energy (J), separated by commas, semicolons or tabs"
    )]
    MissingColumn {
        /// The missing column.
        name: &'static str,
        /// The header.
        found: String,
    },

    /// A header with two columns that could be the same one.
    #[error(
        "profile: \"{first}\" and \"{second}\" could both be the column {name}; leave one out, or \
         rename the one that it is to {name}"
    )]
    TwoColumns {
        /// The name of the column.
        name: &'static str,
        /// What the header has first.
        first: String,
        /// What it has later.
        second: String,
    },

    /// A column with a unit that its quantity does not have.
    #[error("profile: the unit of the column \"{column}\" must be {expected}")]
    WrongUnit {
        /// The column as the header has it.
        column: String,
        /// The name of the column.
        name: &'static str,
        /// The units that there are.
        expected: &'static str,
    },

    /// A number that has points and commas.
    #[error(
        "profile, line {line}: \"{value}\" has more than one decimal sign; write numbers without \
         separators of thousands"
    )]
    DecimalSigns {
        /// The line, counted from 1 at the header.
        line: u64,
        /// The number as it is written.
        value: String,
    },

    /// Numbers with decimal points and numbers with decimal commas.
    #[error(
        "profile: numbers have decimal points in line {point} and decimal commas in line {comma}; \
         write all of them with points"
    )]
    BothDecimalSigns {
        /// The first line with a point.
        point: u64,
        /// The first line with a comma.
        comma: u64,
    },

    /// A line that is not a CSV row with as many fields as the header.
    #[error("profile, line {line}: {problem}")]
    UnreadableRow {
        /// The line, counted from 1 at the header.
        line: u64,
        /// The problem.
        problem: String,
    },

    /// A field with a value that its column does not accept.
    #[error("profile, line {line}: {column} is \"{value}\", must be {expected}")]
    BadField {
        /// The line, counted from 1 at the header.
        line: u64,
        /// The column of the field.
        column: &'static str,
        /// The value of the field.
        value: String,
        /// The values that the column accepts.
        expected: &'static str,
    },

    /// A row whose energy over time no GPU draws.
    #[error(
        "profile, line {line}: {energy_j} J in {time_s} s are {power_w:.3} W, which no computing \
         GPU draws; time is in seconds, energy in joules"
    )]
    ImpossiblePower {
        /// The line, counted from 1 at the header.
        line: u64,
        /// The time as it was read.
        time_s: f64,
        /// The energy as it was read.
        energy_j: f64,
        /// Their quotient.
        power_w: f64,
    },

    /// A standard deviation that no positive measurements of this mean have.
    #[error(
        "profile, line {line}: {column} {sd} {unit} of a mean of {mean} {unit} is more than {count} \
         measurements can have; is it in m{unit}? Write it in {unit}, or its unit into the header: \
         \"{column} (m{unit})\""
    )]
    ImpossibleScatter {
        /// The line, counted from 1 at the header.
        line: u64,
        /// The column of the standard deviation.
        column: &'static str,
        /// The standard deviation as it was read.
        sd: f64,
        /// Time or energy of the line.
        mean: f64,
        /// The unit of both.
        unit: &'static str,
        /// The number of measurements.
        count: u32,
    },

    /// Two rows that measure the same thing.
    #[error(
        "profile, line {line}: stage {stage}, {instruction} at {frequency} is already in line \
         {first}; delete one, or add a column (such as rank or window) that tells them apart"
    )]
    DuplicateRow {
        /// The line of the first row.
        first: u64,
        /// The line of the second row.
        line: u64,
        /// The stage of both rows.
        stage: Stage,
        /// The instruction of both rows.
        instruction: Instruction,
        /// The clock of both rows.
        frequency: Mhz,
    },

    /// Ranks whose energies cannot be added up, because some ranks have no row.
    #[error(
        "profile: stage {stage}, {instruction} at {frequency} has rows of {found} of \
         {expected} ranks; measure it on every rank, or combine ranks by their mean"
    )]
    RankMissing {
        /// The stage of the rows.
        stage: Stage,
        /// The instruction of the rows.
        instruction: Instruction,
        /// The clock of the rows.
        frequency: Mhz,
        /// The number of ranks with a row.
        found: usize,
        /// The largest number of ranks that another row of the stage has.
        expected: usize,
    },

    /// More parts of a step with rows of their own than there is room for.
    #[error(
        "profile: {parts} model chunks and microbatches of {stages} stages differ, and at most 2048 in \
         all can have rows of their own; leave the column microbatch or chunk out"
    )]
    TooManyParts {
        /// The number of chunks and microbatches.
        parts: usize,
        /// The number of stages.
        stages: usize,
    },

    /// A header with standard deviations, but without the number of measurements that they are of.
    #[error(
        "profile: the column {name} requires a column count: how many measurements each line is the \
         mean of; add count, or leave {name} out"
    )]
    ScatterWithoutCount {
        /// The column of the standard deviations.
        name: &'static str,
    },

    /// A profile without rows.
    #[error("profile: no rows below the header")]
    EmptyProfile,

    /// A profile that leaves out all of its rows.
    #[error(
        "profile: all {rows} rows have a value in the column left_out (line {line}: \"{reason}\"); \
         measure the job again"
    )]
    AllLeftOut {
        /// The number of rows.
        rows: u64,
        /// The line of the first one.
        line: u64,
        /// The value in that line.
        reason: String,
    },

    /// A profile that leaves out all rows of a stage.
    #[error(
        "profile: all {rows} rows of stage {stage} have a value in the column left_out (line {line}: \
         \"{reason}\"); measure that stage again"
    )]
    StageLeftOut {
        /// The stage.
        stage: usize,
        /// The number of its rows.
        rows: u64,
        /// The line of the first one.
        line: u64,
        /// The value in that line.
        reason: String,
    },

    /// A profile that skips a stage.
    #[error(
        "profile: no rows for stage {missing}, but rows for stage {highest}; number the \
         stages from 0 without gaps"
    )]
    StageWithoutRows {
        /// The first stage without rows.
        missing: usize,
        /// The highest stage with rows.
        highest: usize,
    },
}
