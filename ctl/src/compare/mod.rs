//! `pfoctl compare`: what researchers compare pfo with. Nothing here is needed to save energy.

mod tune;

use clap::Subcommand;

use self::tune::CompareTune;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::Output;
use crate::plan::sweep::PerseusSweep;

/// Compare with other systems: their plans on a profile, and on a running job
#[derive(Subcommand)]
pub(crate) enum Compare {
    Tune(Box<CompareTune>),
    Sweep(Box<PerseusSweep>),
}

impl Compare {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        match self {
            Self::Tune(tune) => tune.run(daemons, output),
            Self::Sweep(sweep) => sweep.run(daemons, output),
        }
    }
}
