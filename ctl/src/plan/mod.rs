//! `pfoctl plan optimize`, `show`, `export` and `evaluate`: from a profile to a plan. No daemon is
//! asked and nothing here needs a privilege.

mod comparison;
mod evaluate;
mod export;
mod failure;
mod file;
pub(crate) mod load;
mod optimize;
mod progress;
mod show;
pub(crate) mod swap;

use clap::Subcommand;

use crate::error::Error;
use crate::output::Output;
use evaluate::Evaluate;
use export::Export;
pub(crate) use failure::Failure;
use optimize::Optimize;
use show::Show;

/// The commands that make plans and look at them.
#[derive(Subcommand)]
pub(crate) enum MakePlan {
    Optimize(Optimize),
    Show(Show),
    Export(Export),
    Evaluate(Evaluate),
}

impl MakePlan {
    /// Does what the arguments ask for.
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        match self {
            Self::Optimize(optimize) => optimize.run(output),
            Self::Show(show) => show.run(output),
            Self::Export(export) => export.run(output),
            Self::Evaluate(evaluate) => evaluate.run(output),
        }
    }
}
