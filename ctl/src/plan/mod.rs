//! `pfoctl plan`: from a profile to a plan, and a running job's change to it.

mod bound;
mod compare;
mod evaluate;
mod export;
pub(crate) mod first;
pub(crate) mod guard;
mod import;
pub(crate) mod load;
mod optimize;
mod order;
mod pick;
pub(crate) mod plot;
mod sample;
mod show;
mod smooth;
pub(crate) mod swap;
pub(crate) mod sweep;

use clap::Subcommand;

use self::bound::Bound;
use self::compare::Compare;
use self::evaluate::Evaluate;
use self::export::Export;
use self::import::Import;
use self::optimize::Optimize;
use self::order::Order;
use self::pick::Pick;
use self::plot::Plot;
use self::sample::Sample;
use self::show::Show;
use self::smooth::Smooth;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::Output;
use crate::planning::unfinished;

/// The commands that make plans and look at them. Only `optimize` asks a daemon, for a power that
/// is not given.
#[derive(Subcommand)]
pub(crate) enum MakePlan {
    Optimize(Optimize),
    Order(Order),
    Smooth(Smooth),
    Show(Show),
    Bound(Bound),
    Export(Export),
    Pick(Pick),
    Sample(Sample),
    Import(Import),
    Compare(Compare),
    Plot(Plot),
    Evaluate(Evaluate),
}

impl MakePlan {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        unfinished::leave_nothing_behind()?;
        match self {
            Self::Optimize(optimize) => optimize.run(daemons, output),
            Self::Order(order) => order.run(output),
            Self::Smooth(smooth) => smooth.run(output),
            Self::Show(show) => show.run(output),
            Self::Bound(bound) => bound.run(output),
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
