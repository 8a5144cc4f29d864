//! Why a job could not be tuned.

use pfo_planner::PlanError;
use pfo_protocol::{ClockTableError, JobName, Refusal, RefusalCode, Stage};

use crate::bench::BenchError;

/// Why a job could not be tuned.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// A daemon refused, or cannot be reached.
    #[error(transparent)]
    Refused(Refusal),
    /// A daemon answered another request than the one that was asked.
    #[error("an answer does not belong to its request: {0}")]
    Unexpected(String),
    /// Without a file, nothing says the P2P-blocking power.
    #[error("no wait of job {job} was long enough to measure the P2P-blocking power")]
    NoWaits {
        /// The job.
        job: JobName,
    },
    /// The schedule has no size.
    #[error("the ranks of job {job} report no forward, or not all as many in a step")]
    UnknownMicrobatches {
        /// The job.
        job: JobName,
    },
    /// No power limit is one of all GPUs.
    #[error(
        "the GPUs of job {job} have no power limit in common: their supported ranges do not \
         overlap ({lowest} W … {highest} W)"
    )]
    NoCommonLimit {
        /// The job.
        job: JobName,
        /// The highest of the lowest limits, in watts.
        lowest: u32,
        /// The lowest of the highest limits, in watts.
        highest: u32,
    },
    /// Nothing is known of power limits.
    #[error("the power limits of job {job} are not known here: none of its GPUs is on this node")]
    NoGpuHere {
        /// The job.
        job: JobName,
    },
    /// Steps have a time only.
    #[error(
        "the energy of the steps of job {job} is not known: a GPU has no energy counter, or it was not \
         read in time"
    )]
    NoEnergy {
        /// The job.
        job: JobName,
    },
    /// Some of its GPUs can measure no energy at all.
    #[error("GPUs of job {job} measure no energy, so that nothing can be tuned: {gpus}")]
    NoEnergyCounter {
        /// The job.
        job: JobName,
        /// The GPUs and their ranks.
        gpus: String,
    },
    /// A plan cannot be measured here.
    #[error(
        "job {job} has {stages} stages, and these have no rank on this node: {missing}; a plan is \
         measured on whole pipelines only"
    )]
    StagesElsewhere {
        /// The job.
        job: JobName,
        /// The stages.
        missing: String,
        /// How many there are.
        stages: u32,
    },
    /// Other ranks were measured than before.
    #[error("job {job} has {now} ranks on this node; it had {before} when the measurement began")]
    OtherRanks {
        /// The job.
        job: JobName,
        /// Their number before.
        before: usize,
        /// Their number now.
        now: usize,
    },
    /// The calibration does not end.
    #[error(
        "job {job} did not show how its GPUs change their clocks within {seconds} s; it returns to \
         default clocks at its next step"
    )]
    TooLong {
        /// The job.
        job: JobName,
        /// For how long it was calibrated.
        seconds: u64,
    },
    /// Somebody else paused the sweep.
    #[error("the sweep of job {job} is paused: {why}")]
    SweepPaused {
        /// The job.
        job: JobName,
        /// Why.
        why: String,
        /// Whether it was not somebody, but the driver of a GPU that does not do what is asked of it.
        not_in_force: bool,
    },
    /// Somebody else ended the sweep.
    #[error("the sweep of job {job} was stopped")]
    SweepStopped {
        /// The job.
        job: JobName,
    },
    /// The order that the job runs has no plan.
    #[error("{0}")]
    Terms(String),
    /// Nothing can be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan cannot be run.
    #[error(transparent)]
    ClockTable(#[from] ClockTableError),
}

impl From<BenchError> for TuneError {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Refused(refusal) => Self::Refused(refusal),
            BenchError::Late => Self::Unexpected("none came in time".to_owned()),
        }
    }
}

impl TuneError {
    /// Whether a daemon is away, and may be back.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == RefusalCode::ShuttingDown)
    }

    /// That a job has stages without a rank here.
    pub(crate) fn elsewhere(job: &JobName, missing: &[Stage], stages: u32) -> Self {
        let missing: Vec<String> = missing.iter().map(Stage::to_string).collect();
        Self::StagesElsewhere { job: job.clone(), missing: missing.join(", "), stages }
    }

    fn code(&self) -> RefusalCode {
        match self {
            Self::Unexpected(_) | Self::ClockTable(_) => RefusalCode::Internal,
            Self::NoEnergy { .. } | Self::NoEnergyCounter { .. } => RefusalCode::GpuUnavailable,
            Self::SweepStopped { .. } => RefusalCode::UnknownJob,
            Self::SweepPaused { not_in_force: true, .. } => RefusalCode::NotInForce,
            _ => RefusalCode::Malformed,
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::NoWaits { .. } => "give it with --p2p-power WATTS",
            Self::UnknownMicrobatches { .. } => {
                "report a forward and a backward of each microbatch, or a forward_backward, in each step; \
                 `pfoctl tune --set microbatches=N` says how many there are"
            }
            Self::NoCommonLimit { .. } => "give --knob clock to search over clocks instead",
            Self::NoGpuHere { .. } => "run the command on one of the job's nodes",
            Self::NoEnergyCounter { .. } => {
                "make a plan from the profile of other GPUs of the same model, and run it with \
                 `pfoctl plan swap`"
            }
            Self::StagesElsewhere { .. } => {
                "if they are on other nodes, put all of them into a fleet (docs/fleet.md): then all of \
                 them are measured; or run `pfoctl profile start` on each, plan with the rows of all \
                 in one file, and run `pfoctl plan swap --this-node-only` on each with the same \
                 --at-step"
            }
            Self::OtherRanks { .. } => {
                "figures of different ranks cannot be compared; measure again"
            }
            Self::TooLong { .. } => "see in `pfoctl status` whether it trains",
            Self::SweepPaused { not_in_force: true, .. } => {
                "`pfoctl doctor` checks pfod's rights and the driver; `pfoctl profile resume` tries again"
            }
            Self::SweepPaused { .. } => "`pfoctl profile resume` continues it, `stop` ends it",
            Self::SweepStopped { .. } => "`pfoctl tune` again begins another one",
            Self::Refused(_)
            | Self::Unexpected(_)
            | Self::NoEnergy { .. }
            | Self::Terms(_)
            | Self::Plan(_)
            | Self::ClockTable(_) => "",
        }
    }
}

impl From<TuneError> for Refusal {
    fn from(error: TuneError) -> Self {
        match error {
            TuneError::Refused(refusal) => refusal,
            error => Self::new(error.code(), error.to_string(), error.remedy()),
        }
    }
}
