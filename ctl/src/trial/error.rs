//! Why a measurement ended without a result.

use pfo_protocol::JobName;

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TrialError {
    #[error(
        "interrupted; if a trial was running, job {job} returns to default clocks at its next step"
    )]
    Interrupted { job: JobName },
    #[error(
        "job {job} did not show how its GPUs change their clocks within {seconds} s; it returns to \
         default clocks at its next step"
    )]
    TooLong { job: JobName, seconds: u32 },
    #[error("job {job} has {now} ranks on this node; it had {before} when the measurement began")]
    OtherRanks { job: JobName, before: usize, now: usize },
    #[error(
        "job {job} has {stages} stages, and these have no rank on this node: {missing}; a plan is \
         measured on whole pipelines only"
    )]
    StagesElsewhere { job: JobName, missing: String, stages: u32 },
    #[error("job {job} has ranks on other nodes, and a calibration is of the GPUs of one node")]
    OneNodeOnly { job: JobName },
    #[error(
        "the energy of the steps of job {job} is not known: a GPU has no energy counter, or it was not \
         read in time"
    )]
    NoEnergy { job: JobName },
}

impl Explained for TrialError {
    fn exit(&self) -> Exit {
        match self {
            Self::Interrupted { .. } => Exit::Interrupted,
            Self::TooLong { .. }
            | Self::OtherRanks { .. }
            | Self::StagesElsewhere { .. }
            | Self::OneNodeOnly { .. }
            | Self::NoEnergy { .. } => Exit::Failed,
        }
    }

    fn remedy(&self) -> Option<String> {
        match self {
            Self::TooLong { .. } => Some(
                "see in `pfoctl status` whether it trains, and give steps that take long more time \
                 with --within"
                    .to_owned(),
            ),
            Self::OtherRanks { .. } => {
                Some("figures of different ranks cannot be compared; measure again".to_owned())
            }
            Self::StagesElsewhere { .. } => Some(
                "if they are on other nodes, put all of them into a fleet (docs/fleet.md): then all of \
                 them are measured; or run `pfoctl profile start` on each, plan with the rows of all \
                 in one file, and run `pfoctl plan swap --this-node-only` on each with the same \
                 --at-step"
                    .to_owned(),
            ),
            Self::OneNodeOnly { .. } => Some(
                "measure a free GPU with --gpu, or let the job run plans: these show the same meanwhile"
                    .to_owned(),
            ),
            Self::Interrupted { .. } | Self::NoEnergy { .. } => None,
        }
    }
}
