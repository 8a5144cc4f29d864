//! What can go wrong between a profile and a plan.

use std::io;

use pfo_planner::PlanError;

use crate::exit::Exit;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot read {name}: {source}")]
    Read { name: String, source: io::Error },
    #[error("{name} is larger than the {limit} bytes that are read")]
    TooLarge { name: String, limit: u64 },
    #[error("{name}: {source}")]
    BadFile { name: String, source: PlanError },
    #[error(transparent)]
    BadRequest(PlanError),
    #[error("{name} does not say the P2P-blocking power that it was made for; give --p2p-power")]
    NoPower { name: String },
    #[error("--p2p-power is not given, and {why}; give it, or see `pfoctl p2p measure`")]
    UnknownPower { why: String },
    #[error("{directory} has no file named freqs_pipeline_*.py")]
    NoPlans { directory: String },
    #[error("{directory} has no plan named *.json; `pfoctl plan sample` writes some")]
    NoPlansToRun { directory: String },
    #[error("{name} orders a step of {has} microbatches, not of {given}")]
    OtherMicrobatches { name: String, given: u32, has: u32 },
    #[error(
        "{name} is a plan, not a frontier: give what `plan optimize` wrote, or --kind timeline"
    )]
    NotAFrontier { name: String },
    #[error("{name} is a plan, which is drawn over the profile it runs on; give --profile")]
    NoProfile { name: String },
    #[error("{name}: a picture's name ends in .svg or .png")]
    NoPictureFormat { name: String },
    #[error("{name}: {problem}")]
    BadPoints { name: String, problem: String },
    #[error("cannot draw the picture: {problem}")]
    Draw { problem: String },
    #[error("cannot write {name}: {source}")]
    Write { name: String, source: io::Error },
}

impl Failure {
    /// What the process exits with.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Write { .. } | Self::Draw { .. } => Exit::Failed,
            Self::Read { .. }
            | Self::TooLarge { .. }
            | Self::BadFile { .. }
            | Self::BadRequest(_)
            | Self::NoPower { .. }
            | Self::UnknownPower { .. }
            | Self::NoPlans { .. }
            | Self::NoPlansToRun { .. }
            | Self::OtherMicrobatches { .. }
            | Self::NotAFrontier { .. }
            | Self::NoProfile { .. }
            | Self::NoPictureFormat { .. }
            | Self::BadPoints { .. } => Exit::Usage,
        }
    }
}
