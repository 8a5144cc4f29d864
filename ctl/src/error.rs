//! What can go wrong, as `main` sees it: one enum over the small errors that each part declares
//! beside its code, with their sentences, remedies and exit codes.

use std::io;

use pfo_planner::PlanError;

use crate::arguments::{GpuArgumentError, NoSuchJob};
use crate::budget::{BelowFloor, SigningError};
use crate::daemons::ConnectionError;
use crate::exit::Exit;
use crate::explained::Explained;
use crate::failure::Failure;
use crate::generate::GenerateError;
use crate::observe::error::ObserveError;
use crate::outcome::BadOutcome;
use crate::output::OutputError;
use crate::own_job::OwnJobError;
use crate::p2p::P2pError;
use crate::profile::ProfileError;
use crate::signals::SignalError;
use crate::since::PeriodError;
use crate::top::TopError;
use crate::trial::TrialError;
use crate::tune::TuneError;

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) enum Error {
    Connection(#[from] ConnectionError),
    File(#[from] Failure),
    Gpu(#[from] GpuArgumentError),
    Job(#[from] NoSuchJob),
    Trial(#[from] TrialError),
    Profile(#[from] ProfileError),
    Budget(#[from] BelowFloor),
    Signing(#[from] SigningError),
    P2p(#[from] P2pError),
    Observe(#[from] ObserveError),
    OwnJob(#[from] OwnJobError),
    Top(#[from] TopError),
    Tune(#[from] TuneError),
    Signals(#[from] SignalError),
    Period(#[from] PeriodError),
    Generate(#[from] GenerateError),
    Outcome(#[from] BadOutcome),
    Output(#[from] OutputError),
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        Failure::from(error).into()
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        OutputError::Write(error).into()
    }
}

impl Error {
    fn explained(&self) -> &dyn Explained {
        match self {
            Self::Connection(error) => error,
            Self::File(error) => error,
            Self::Gpu(error) => error,
            Self::Job(error) => error,
            Self::Trial(error) => error,
            Self::Profile(error) => error,
            Self::Budget(error) => error,
            Self::Signing(error) => error,
            Self::P2p(error) => error,
            Self::Observe(error) => error,
            Self::OwnJob(error) => error,
            Self::Top(error) => error,
            Self::Tune(error) => error,
            Self::Signals(error) => error,
            Self::Period(error) => error,
            Self::Generate(error) => error,
            Self::Outcome(error) => error,
            Self::Output(error) => error,
        }
    }
}

impl Explained for Error {
    fn exit(&self) -> Exit {
        self.explained().exit()
    }

    fn remedy(&self) -> Option<String> {
        self.explained().remedy()
    }
}
