//! What can go wrong, as `main` sees it: one enum over the small errors that each part declares beside
//! its code, with their sentences, remedies and exit codes.

use std::io;

use pfo_planner::PlanError;

use crate::arguments::{GpuArgumentError, NoSuchJob};
use crate::clocks::NotRestored;
use crate::daemons::ConnectionError;
use crate::doctor::Unwell;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::generate::GenerateError;
use crate::output::OutputError;
use crate::p2p::P2pError;
use crate::plan::swap::NotAllChanged;
use crate::policy::NoLease;
use crate::profile::ProfileError;
use crate::reload::ConfigRefused;
use crate::signals::SignalError;
use crate::trial::TrialError;
use crate::tune::TuneError;

/// What an error is to a person and to a script, beside its sentence.
pub(crate) trait Explained {
    /// What the process exits with.
    fn exit(&self) -> Exit;

    /// What to do about it, where something can be said: one line, and perhaps others with details.
    fn remedy(&self) -> Option<String>;
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) enum Error {
    Connection(#[from] ConnectionError),
    File(#[from] Failure),
    Gpu(#[from] GpuArgumentError),
    Job(#[from] NoSuchJob),
    Swap(#[from] NotAllChanged),
    Trial(#[from] TrialError),
    Profile(#[from] ProfileError),
    P2p(#[from] P2pError),
    Tune(#[from] TuneError),
    Reset(#[from] NotRestored),
    Policy(#[from] NoLease),
    Reload(#[from] ConfigRefused),
    Doctor(#[from] Unwell),
    Signals(#[from] SignalError),
    Generate(#[from] GenerateError),
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
            Self::Swap(error) => error,
            Self::Trial(error) => error,
            Self::Profile(error) => error,
            Self::P2p(error) => error,
            Self::Tune(error) => error,
            Self::Reset(error) => error,
            Self::Policy(error) => error,
            Self::Reload(error) => error,
            Self::Doctor(error) => error,
            Self::Signals(error) => error,
            Self::Generate(error) => error,
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
