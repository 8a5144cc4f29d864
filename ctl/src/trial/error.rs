//! Why a measurement ended without a result.

use pfo_protocol::JobName;

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TrialError {
    #[error("interrupted: job {job} returns to default clocks at its next step")]
    Interrupted { job: JobName },
    #[error("job {job} has {now} ranks on this node; it had {before} when the measurement began")]
    OtherRanks { job: JobName, before: usize, now: usize },
    #[error(
        "job {job} has {stages} stages, and these have no rank on this node: {missing}; a plan is \
         measured on whole pipelines only"
    )]
    StagesElsewhere { job: JobName, missing: String, stages: u32 },
    #[error("job {job} has a GPU without an energy counter: the energy of its steps is not known")]
    NoEnergy { job: JobName },
    #[error("GPUs of job {job} have no energy counter, so that nothing can be tuned: {gpus}")]
    NoEnergyCounter { job: JobName, gpus: String },
}

impl Explained for TrialError {
    fn exit(&self) -> Exit {
        match self {
            Self::Interrupted { .. } => Exit::Interrupted,
            Self::OtherRanks { .. }
            | Self::StagesElsewhere { .. }
            | Self::NoEnergy { .. }
            | Self::NoEnergyCounter { .. } => Exit::Failed,
        }
    }

    fn remedy(&self) -> Option<String> {
        match self {
            Self::OtherRanks { .. } => {
                Some("figures of different ranks cannot be compared; measure again".to_owned())
            }
            Self::StagesElsewhere { .. } => Some(
                "if they are on other nodes, run `pfoctl profile start` on each, plan with the \
                 rows of all in one file, and run `pfoctl plan swap` on each with the same \
                 --at-step"
                    .to_owned(),
            ),
            Self::NoEnergyCounter { .. } => Some(
                "make a plan from the profile of other GPUs of the same model, and run it with \
                 `pfoctl plan swap`"
                    .to_owned(),
            ),
            Self::Interrupted { .. } | Self::NoEnergy { .. } => None,
        }
    }
}
