//! Everything that can be wrong with what the planner is given.
//!
//! A message names the value, the place and, where it is not obvious, what to do about it.

use crate::dependencies::StageUnit;
use crate::frontier::Frontier;
use crate::schedule::Schedule;
use pfo_vocabulary::{Instruction, Mhz, Stage, UnknownInstruction};

/// Why a profile, a plan, a frontier file or a deadline was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An instruction name that does not exist.
    #[error(transparent)]
    UnknownInstruction(#[from] UnknownInstruction),

    /// A schedule name that does not exist.
    #[error("unknown schedule \"{0}\" (known: {names})", names = Schedule::ALL.map(Schedule::name).join(", "))]
    UnknownSchedule(String),

    /// A plan of more bytes than any real one has.
    #[error("the plan is {size} bytes long; at most {limit} are read")]
    PlanTooLarge {
        /// Bytes given.
        size: usize,
        /// Bytes read at most.
        limit: usize,
    },

    /// A plan that is not JSON, or whose fields are missing, unknown or of another type.
    #[error("not a plan: {0}")]
    PlanSyntax(String),

    /// A plan of another format or version.
    #[error("plan format \"{found}\" is not supported; this version reads \"{expected}\"")]
    PlanFormat {
        /// What the file says.
        found: String,
        /// What is read.
        expected: &'static str,
    },

    /// A plan whose parts contradict each other.
    #[error("plan, {place}: {problem}")]
    PlanContent {
        /// Where, such as `stage 3, instruction 17`.
        place: String,
        /// What is wrong there.
        problem: String,
    },

    /// A plan file of lowtime's or Zeus' that is no list of lists of clocks, or does not fit.
    #[error("plan, line {line}, column {column}: {problem}")]
    PythonPlan {
        /// Counted from 1.
        line: u32,
        /// Counted from 1, in characters.
        column: u32,
        /// What is wrong there.
        problem: String,
    },

    /// An order file that is none, or whose instructions make up no step.
    #[error("order, {place}: {problem}")]
    OrderFile {
        /// Where, such as `stage 3, instruction 17`.
        place: String,
        /// What is wrong there.
        problem: String,
    },

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

    /// A profile without an instruction that the schedule runs.
    #[error("profile: stage {stage} has no rows for {instruction}, which schedule {schedule} runs")]
    UnmeasuredInstruction {
        /// Where it is missing.
        stage: Stage,
        /// What is missing.
        instruction: Instruction,
        /// Who needs it.
        schedule: Schedule,
    },

    /// An instruction that waits for ever.
    #[error(
        "the order deadlocks: {waiting} waits for {awaited}; change the order of instructions, or \
         what they wait for"
    )]
    Deadlock {
        /// What cannot begin.
        waiting: StageUnit,
        /// What it waits for, and why in vain.
        awaited: String,
    },

    /// A plan that asks for a clock that was not measured.
    #[error("the profile has no row for stage {stage}, {instruction} at {frequency}")]
    UnmeasuredFrequency {
        /// Of the plan's instruction.
        stage: Stage,
        /// Which one.
        instruction: Instruction,
        /// The clock that the plan gives it.
        frequency: Mhz,
    },

    /// A profile whose instructions have no clock in common.
    #[error(
        "profile: no frequency was measured of every instruction, and this policy sets the same \
         one for several"
    )]
    NoCommonClock,

    /// A table to which lowtime cannot fit its curve.
    #[error("stage {stage}, {instruction}: lowtime cannot fit its curve: {problem}")]
    NoFit {
        /// Whose table.
        stage: Stage,
        /// Of what.
        instruction: Instruction,
        /// What is wrong with its rows.
        problem: String,
    },

    /// A plan for a pipeline of another length than the profile's.
    #[error("the plan has {plan} stages, the profile {profile}")]
    StagesDiffer {
        /// Stages of the plan.
        plan: u16,
        /// Stages of the profile.
        profile: u16,
    },

    /// A table with more clocks than a frontier can hold.
    #[error(
        "profile: stage {stage}, {instruction} has {rows} frequencies; a frontier holds up to {limit}, leave some out",
        limit = Frontier::MAX_TABLE_ROWS
    )]
    TableTooLong {
        /// Whose table.
        stage: Stage,
        /// Of what.
        instruction: Instruction,
        /// Its rows.
        rows: usize,
    },

    /// A deadline that no plan keeps.
    #[error("no plan takes {deadline_s} s or less: the fastest takes {fastest_s} s")]
    DeadlineTooEarly {
        /// What was asked for.
        deadline_s: f64,
        /// What can be had.
        fastest_s: f64,
    },

    /// A place at which a frontier has no plan.
    #[error("the frontier has no plan {place}: it has {plans}, counted from 0")]
    NoSuchPlan {
        /// What was asked for.
        place: usize,
        /// How many there are.
        plans: usize,
    },

    /// A frontier of nothing.
    #[error("the frontier has no plans")]
    EmptyFrontier,

    /// A file that is no frontier, or of a version that this one does not know.
    #[error("not a frontier file that this version reads: {0}")]
    ForeignFrontier(String),

    /// A frontier file that was cut short or changed.
    #[error("the frontier file is damaged: {0}; make it again with pfoctl plan optimize")]
    DamagedFrontier(String),

    /// A number of the request that cannot be worked with.
    #[error("{name} is {value}, must be {expected}")]
    BadArgument {
        /// What it is.
        name: &'static str,
        /// What was given.
        value: String,
        /// What can be.
        expected: &'static str,
    },
}

/// The start of a text that may come from anybody, short enough for a message.
pub(crate) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 48;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text[..end].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}
