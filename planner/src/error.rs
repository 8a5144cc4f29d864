//! Everything that can be wrong with what the planner is given.
//!
//! A message names the value, the place and, where it is not obvious, what to do about it.

use pfo_vocabulary::{Instruction, Mhz, Stage, UnknownInstruction};

use crate::frontier::file::error::FrontierFileError;
use crate::limits;
use crate::profile::error::ProfileError;
use crate::schedule::name::{Schedule, UnknownSchedule};
use crate::step::dependencies::StageUnit;

/// Why a profile, a plan, a frontier file or a deadline was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An instruction name that does not exist.
    #[error(transparent)]
    UnknownInstruction(#[from] UnknownInstruction),

    /// A schedule name that does not exist.
    #[error(transparent)]
    UnknownSchedule(#[from] UnknownSchedule),

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

    /// A profile that cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),

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
        limit = limits::TABLE_ROWS
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

    /// A frontier file that cannot be read.
    #[error(transparent)]
    FrontierFile(#[from] FrontierFileError),

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
