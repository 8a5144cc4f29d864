//! What can go wrong with the files that people name: profiles, plans, frontiers and pictures.

use std::io;

use pfo_planner::{PlanError, Schedule};
use pfo_protocol::{ClockTableError, JobName};

use crate::exit::Exit;
use crate::explained::Explained;
use crate::status::quantity::seconds;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot read {name}: {source}")]
    Read { name: String, source: io::Error },
    #[error("{name} is empty")]
    Empty { name: String },
    #[error("{name} is larger than the {limit} bytes that are read")]
    TooLarge { name: String, limit: u64 },
    #[error("{name}: {source}")]
    BadFile { name: String, source: PlanError },
    #[error("the plan {name}: {source}")]
    BadPlan { name: String, source: PlanError },
    #[error("the plan {name}: {source}")]
    NoClockTable { name: String, source: ClockTableError },
    #[error(
        "no plan takes {} or less: the fastest takes {}",
        seconds(*.deadline_s),
        seconds(*.fastest_s)
    )]
    DeadlineTooEarly { deadline_s: f64, fastest_s: f64 },
    #[error(
        "the deadline {number} may be seconds or a factor of the fastest time; plans take {} to {}",
        seconds(*.fastest_s),
        seconds(*.cheapest_s)
    )]
    SecondsOrFactor { number: f64, fastest_s: f64, cheapest_s: f64 },
    #[error(transparent)]
    BadRequest(PlanError),
    #[error("{name} does not say the P2P-blocking power that it was made for")]
    NoPower { name: String },
    #[error(
        "no GPU draws {power_w} W while it waits: every instruction draws at most {most_w:.0} W"
    )]
    ImpossiblePower { power_w: f64, most_w: f64 },
    #[error("the P2P-blocking power is not known: {why}")]
    UnknownPower { why: String },
    #[error("the order of job {job} is not known: {why}")]
    UnknownOrder { job: JobName, why: String },
    #[error("how many microbatches a step has is not known")]
    NoMicrobatches,
    #[error("{directory} has no file named freqs_pipeline_*.py")]
    NoPlans { directory: String },
    #[error("{directory} has no plan named *.json")]
    NoPlansToRun { directory: String },
    #[error("{name} orders a step of {has} microbatches, not of {given}")]
    OtherMicrobatches { name: String, given: u32, has: u32 },
    #[error("{option} is no part of an order: it is for the plan")]
    NotInAnOrder { option: &'static str },
    #[error("{option} changes nothing in schedule {schedule}: it is for {}", names(of))]
    UnusedOption { option: &'static str, schedule: Schedule, of: &'static [Schedule] },
    #[error("{option} changes nothing in {picture}")]
    UnusedInPicture { option: &'static str, picture: &'static str },
    #[error("{name} is a plan, not a frontier")]
    NotAFrontier { name: String },
    #[error("{name} is a plan, which is drawn over the profile that it runs on")]
    NoProfile { name: String },
    #[error("{name}: the name of a picture ends in .svg or .png")]
    NoPictureFormat { name: String },
    #[error("{name}: {problem}")]
    BadPoints { name: String, problem: String },
    #[error("cannot draw the picture: {problem}")]
    Draw { problem: String },
    #[error("{name} is what this was made from, and stays as it is")]
    OverInput { name: String },
    #[error("cannot write {name}: {source}")]
    Write { name: String, source: io::Error },
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::DeadlineTooEarly { deadline_s, fastest_s } => {
                Self::DeadlineTooEarly { deadline_s, fastest_s }
            }
            PlanError::SecondsOrFactor { number, fastest_s, cheapest_s } => {
                Self::SecondsOrFactor { number, fastest_s, cheapest_s }
            }
            PlanError::ImpossibleWaiting { power_w, most_w } => {
                Self::ImpossiblePower { power_w, most_w }
            }
            error => Self::BadRequest(error),
        }
    }
}

impl Failure {
    /// The failure of a file that was read and is not what it should be.
    pub(crate) fn bad_file(name: &str) -> impl Fn(PlanError) -> Self {
        let name = if name == "-" { "standard input" } else { name }.to_owned();
        move |source| Self::BadFile { name: name.clone(), source }
    }
}

impl Explained for Failure {
    fn exit(&self) -> Exit {
        match self {
            Self::Write { .. } | Self::Draw { .. } => Exit::Failed,
            Self::UnknownOrder { .. } => Exit::Refused,
            Self::Read { .. }
            | Self::Empty { .. }
            | Self::TooLarge { .. }
            | Self::BadFile { .. }
            | Self::BadPlan { .. }
            | Self::NoClockTable { .. }
            | Self::DeadlineTooEarly { .. }
            | Self::SecondsOrFactor { .. }
            | Self::ImpossiblePower { .. }
            | Self::BadRequest(_)
            | Self::NoPower { .. }
            | Self::UnknownPower { .. }
            | Self::NoMicrobatches
            | Self::NoPlans { .. }
            | Self::NoPlansToRun { .. }
            | Self::OtherMicrobatches { .. }
            | Self::NotInAnOrder { .. }
            | Self::UnusedOption { .. }
            | Self::UnusedInPicture { .. }
            | Self::NotAFrontier { .. }
            | Self::NoProfile { .. }
            | Self::NoPictureFormat { .. }
            | Self::OverInput { .. }
            | Self::BadPoints { .. } => Exit::Usage,
        }
    }

    fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::BadPlan { .. } | Self::NoClockTable { .. } => {
                "`pfoctl plan export` writes plans that pfod takes"
            }
            Self::NoPower { .. } => "give it with --p2p-power WATTS",
            Self::UnknownPower { .. } => {
                "give it with --p2p-power WATTS, or measure it with `pfoctl p2p measure`"
            }
            Self::UnknownOrder { .. } => "give the order with --order or --schedule",
            Self::NoMicrobatches => "give it with --microbatches, or the order with --order",
            Self::NotInAnOrder { .. } => "give it to `pfoctl plan optimize`",
            Self::UnusedOption { .. } => "leave it out, or give that schedule",
            Self::NoPlansToRun { .. } => "`pfoctl plan sample` writes some",
            Self::ImpossiblePower { .. } => {
                "give --p2p-power in watts, and a profile in seconds and joules"
            }
            Self::DeadlineTooEarly { .. } => "--deadline fastest gives the fastest",
            Self::SecondsOrFactor { number, .. } => {
                return Some(format!("give --deadline {number}x, or {number}s"));
            }
            Self::NotAFrontier { .. } => {
                "give a frontier, which `pfoctl plan optimize` writes, or --kind timeline"
            }
            Self::NoProfile { .. } => "give the profile with --profile",
            Self::UnusedInPicture { .. } => "leave it out",
            Self::OverInput { .. } => "give another name with -o",
            Self::Read { .. }
            | Self::Empty { .. }
            | Self::TooLarge { .. }
            | Self::BadFile { .. }
            | Self::BadRequest(_)
            | Self::NoPlans { .. }
            | Self::OtherMicrobatches { .. }
            | Self::NoPictureFormat { .. }
            | Self::BadPoints { .. }
            | Self::Draw { .. }
            | Self::Write { .. } => return None,
        };
        Some(remedy.to_owned())
    }
}

/// Schedules in a sentence.
fn names(of: &[Schedule]) -> String {
    of.iter().map(|schedule| schedule.name()).collect::<Vec<_>>().join(", ")
}
