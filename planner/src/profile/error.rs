//! Why a profile is refused.

use pfo_vocabulary::{Instruction, Mhz, Stage};

/// What is wrong with a profile, and in which line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// A profile whose header lacks a column.
    #[error("profile: no column \"{name}\" in the header \"{found}\"")]
    MissingColumn {
        /// The column that is needed.
        name: &'static str,
        /// The header.
        found: String,
    },

    /// A line of a profile that is no CSV row of as many fields as the header.
    #[error("profile, line {line}: {problem}")]
    UnreadableRow {
        /// Counted from 1, the header.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },

    /// A field of a profile that cannot be what its column says.
    #[error("profile, line {line}: {column} is \"{value}\", must be {expected}")]
    BadField {
        /// Counted from 1, the header.
        line: u64,
        /// The field's column.
        column: &'static str,
        /// What is there.
        value: String,
        /// What should be.
        expected: &'static str,
    },

    /// Two rows that measure the same thing.
    #[error(
        "profile, line {line}: stage {stage}, {instruction} at {frequency} was measured in line \
         {first} already; drop one, or add a column (such as rank or window) that tells them apart"
    )]
    DuplicateRow {
        /// The row that came first.
        first: u64,
        /// The one that repeats it.
        line: u64,
        /// Of both.
        stage: Stage,
        /// Of both.
        instruction: Instruction,
        /// Of both.
        frequency: Mhz,
    },

    /// Ranks whose energies cannot be added up, because some are not there.
    #[error(
        "profile: stage {stage}, {instruction} at {frequency} has rows of {found} ranks of {expected}; \
         measure it on every rank, or combine ranks by their mean"
    )]
    RankMissing {
        /// Whose rows.
        stage: Stage,
        /// Of what.
        instruction: Instruction,
        /// At which clock.
        frequency: Mhz,
        /// Ranks that have a row.
        found: usize,
        /// The most that any instruction of the stage has.
        expected: usize,
    },

    /// A profile of nothing.
    #[error("profile: no rows below the header")]
    EmptyProfile,

    /// A profile that leaves out a stage.
    #[error("profile: no rows for stage {missing}, though there are some for stage {highest}")]
    StageWithoutRows {
        /// The first stage without rows.
        missing: usize,
        /// The highest stage with rows.
        highest: usize,
    },
}
