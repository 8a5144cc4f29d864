//! The error of the crate's face.
//!
//! A message names the value, the place and, where it is not obvious, the remedy. Errors that only
//! one part of the crate reports are defined there and wrapped here.

use pfo_vocabulary::{Instruction, Mhz, Stage, UnknownInstruction};

use crate::frontier::confident::Confidence;
use crate::frontier::file::error::FrontierFileError;
use crate::limits;
use crate::profile::error::ProfileError;
use crate::schedule::name::{Schedule, UnknownSchedule};
use crate::step::dependencies::StageUnit;

/// Why a profile, a plan, a frontier file or a deadline is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An instruction name that does not exist.
    #[error(transparent)]
    UnknownInstruction(#[from] UnknownInstruction),

    /// A schedule name that does not exist.
    #[error(transparent)]
    UnknownSchedule(#[from] UnknownSchedule),

    /// A plan file that is larger than any real one.
    #[error("the plan is {size} bytes long, the limit is {limit}")]
    PlanTooLarge {
        /// The size of the file in bytes.
        size: usize,
        /// The largest size that is read, in bytes.
        limit: usize,
    },

    /// A plan that is not JSON, or that has missing, unknown or mistyped fields.
    #[error("not a plan: {0}")]
    PlanSyntax(String),

    /// A plan of another format or version.
    #[error("plan format \"{found}\" is not supported; this version reads \"{expected}\"")]
    PlanFormat {
        /// The format that the file names.
        found: String,
        /// The format that is supported.
        expected: &'static str,
    },

    /// A plan whose parts contradict each other.
    #[error("plan, {place}: {problem}")]
    PlanContent {
        /// The place, such as `stage 3, instruction 17`.
        place: String,
        /// The problem at that place.
        problem: String,
    },

    /// A plan file of lowtime or Zeus that is not a list of lists of clocks, or that does not fit.
    #[error("plan, line {line}, column {column}: {problem}")]
    PythonPlan {
        /// The line, counted from 1.
        line: u32,
        /// The column in characters, counted from 1.
        column: u32,
        /// The problem at that place.
        problem: String,
    },

    /// An order file that cannot be read, or whose instructions do not make up a step.
    #[error("order, {place}: {problem}")]
    OrderFile {
        /// The place, such as `stage 3, instruction 17`.
        place: String,
        /// The problem at that place.
        problem: String,
    },

    /// A profile that cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),

    /// A profile without an instruction that the schedule runs.
    #[error(
        "profile: stage {stage} has no rows for {instruction}, which schedule {schedule} runs; measure \
         it, or plan for an order without it"
    )]
    UnmeasuredInstruction {
        /// The stage that lacks it.
        stage: Stage,
        /// The instruction without rows.
        instruction: Instruction,
        /// The schedule that runs it.
        schedule: Schedule,
    },

    /// An instruction that would wait forever.
    #[error(
        "the order deadlocks: {waiting} waits for {awaited}; change the order of the instructions \
         or their dependencies"
    )]
    Deadlock {
        /// The instruction that cannot begin.
        waiting: StageUnit,
        /// The instruction or data that it waits for, and why that never comes.
        awaited: String,
    },

    /// A measured step that is shorter than the instructions that it consists of.
    #[error(
        "a measured step of {step_s:.4} s is shorter than its instructions at the highest clocks, \
         {replayed_s:.4} s; measure one of this job at default clocks"
    )]
    ShortStep {
        /// What was measured.
        step_s: f64,
        /// What the instructions take.
        replayed_s: f64,
    },

    /// A step too much of which is in no instruction.
    #[error(
        "{percent:.0} % of the step is in no instruction; above {most:.0} %, only a measurement says \
         what a plan does (pfoctl plan sweep)"
    )]
    Unpredictable {
        /// The share of the step.
        percent: f64,
        /// The largest that is predicted.
        most: f64,
    },

    /// A plan that asks for a clock that was not measured.
    #[error("the profile has no row for stage {stage}, {instruction} at {frequency}")]
    UnmeasuredFrequency {
        /// The stage of the instruction.
        stage: Stage,
        /// The instruction.
        instruction: Instruction,
        /// The clock that the plan sets.
        frequency: Mhz,
    },

    /// A profile whose instructions have no clock in common.
    #[error(
        "profile: no frequency was measured for every instruction, but one is to be set for \
         several; measure all instructions at the same frequencies"
    )]
    NoCommonClock,

    /// A table to which lowtime cannot fit its curve.
    #[error("stage {stage}, {instruction}: lowtime cannot fit its curve: {problem}")]
    NoFit {
        /// The stage of the table.
        stage: Stage,
        /// The instruction of the table.
        instruction: Instruction,
        /// The problem with the rows of the table.
        problem: String,
    },

    /// A plan with another number of stages than the profile.
    #[error(
        "the plan has {plan} stages, the profile {profile}; give the profile that the plan was made from"
    )]
    StagesDiffer {
        /// The number of stages of the plan.
        plan: u16,
        /// The number of stages of the profile.
        profile: u16,
    },

    /// A table with more clocks than a frontier can hold.
    #[error(
        "profile: stage {stage}, {instruction} has {rows} frequencies, the limit is {limit}; leave \
         some out",
        limit = limits::TABLE_ROWS
    )]
    TableTooLong {
        /// The stage of the table.
        stage: Stage,
        /// The instruction of the table.
        instruction: Instruction,
        /// The number of its rows.
        rows: usize,
    },

    /// A deadline that no plan keeps as often as it has to.
    #[error(
        "not even the fastest plan is within {deadline_s:.6} s in {confidence} of its steps, which are \
         within {within_s:.6} s; allow as much, or less confidence"
    )]
    TooUncertain {
        /// The deadline in seconds.
        deadline_s: f64,
        /// The share of steps.
        confidence: Confidence,
        /// The time in seconds within which that share of the fastest plan's steps are done.
        within_s: f64,
    },

    /// A deadline that is shorter than every plan.
    #[error(
        "no plan takes {} s or less; the fastest takes {} s",
        told_apart(*deadline_s, *fastest_s),
        told_apart(*fastest_s, *deadline_s)
    )]
    DeadlineTooEarly {
        /// The requested iteration time.
        deadline_s: f64,
        /// The iteration time of the fastest plan.
        fastest_s: f64,
    },

    /// A deadline without a unit that no plan takes in seconds, but that may be a factor.
    #[error(
        "the deadline {number} may be seconds or a factor of the fastest time, and plans take \
         {fastest_s} s to {cheapest_s} s; write {number}s or {number}x"
    )]
    SecondsOrFactor {
        /// The number as it was written.
        number: f64,
        /// The iteration time of the fastest plan.
        fastest_s: f64,
        /// The iteration time of the plan of least energy.
        cheapest_s: f64,
    },

    /// A P2P-blocking power above that of computing.
    #[error(
        "no GPU draws {power_w} W while it waits, every instruction draws at most {most_w:.0} W; \
         give the P2P-blocking power in watts, and a profile in seconds and joules"
    )]
    ImpossibleWaiting {
        /// The largest P2P-blocking power.
        power_w: f64,
        /// The largest power of a row of the profile.
        most_w: f64,
    },

    /// A number that no plan of the frontier has.
    #[error("the frontier has no plan {place}; it has {plans} plans, counted from 0")]
    NoSuchPlan {
        /// The requested number, counted from 0.
        place: usize,
        /// The number of plans.
        plans: usize,
    },

    /// A frontier without plans.
    #[error("the frontier has no plans")]
    EmptyFrontier,

    /// A frontier file that cannot be read.
    #[error(transparent)]
    FrontierFile(#[from] FrontierFileError),

    /// An argument outside its range.
    #[error("{name} is {value}, must be {expected}")]
    BadArgument {
        /// The name of the argument.
        name: &'static str,
        /// The value given.
        value: String,
        /// The values that are accepted.
        expected: &'static str,
    },
}

/// A number in as many digits as people read, or in all if another one looks the same in these.
fn told_apart(number: f64, other: f64) -> String {
    let short = |number: f64| {
        let text = format!("{number:.6}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let shown = short(number);
    if shown == short(other) || shown == "0" { number.to_string() } else { shown }
}
