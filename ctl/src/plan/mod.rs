//! `pfoctl plan optimize`, `show`, `export` and the like: from a profile to a plan. No daemon is
//! asked and nothing here needs a privilege.

mod compare;
pub(crate) mod comparison;
mod directory;
mod evaluate;
mod export;
mod failure;
pub(crate) mod file;
mod format;
mod import;
pub(crate) mod load;
pub(crate) mod measured;
mod optimize;
mod pick;
pub(crate) mod pipeline;
mod plot;
mod replayed;
mod sample;
mod show;
pub(crate) mod slowdown;
mod smooth;
pub(crate) mod swap;
pub(crate) mod sweep;
pub(crate) mod tuning;
pub(crate) mod unfinished;

use clap::Subcommand;

use crate::error::Error;
use crate::output::Output;
use crate::socket::Sockets;
use compare::Compare;
use evaluate::Evaluate;
use export::Export;
pub(crate) use failure::Failure;
use import::Import;
use optimize::Optimize;
use pick::Pick;
use plot::Plot;
use sample::Sample;
use show::Show;
use smooth::Smooth;

/// The commands that make plans and look at them.
#[derive(Subcommand)]
pub(crate) enum MakePlan {
    Optimize(Optimize),
    Smooth(Smooth),
    Show(Show),
    Export(Export),
    Pick(Pick),
    Sample(Sample),
    Import(Import),
    Compare(Compare),
    Plot(Plot),
    Evaluate(Evaluate),
}

impl MakePlan {
    /// Does what the arguments ask for.
    pub(crate) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        unfinished::leave_nothing_behind()?;
        match self {
            Self::Optimize(optimize) => optimize.run(sockets, output),
            Self::Smooth(smooth) => smooth.run(output),
            Self::Show(show) => show.run(output),
            Self::Export(export) => export.run(output),
            Self::Pick(pick) => pick.run(output),
            Self::Sample(sample) => sample.run(output),
            Self::Import(import) => import.run(output),
            Self::Compare(compare) => compare.run(output),
            Self::Plot(plot) => plot.run(output),
            Self::Evaluate(evaluate) => evaluate.run(output),
        }
    }
}
