//! Clocks that the GPUs hold, where power limits keep them below those that were asked for. To ask
//! for no more takes the same time: it is the first saving to look for.

use pfo_planner::{PerStage, Pipeline, Policy, Unheld, Watts};

use crate::contender::Contender;
use crate::error::TuneError;
use crate::judge::Compared;
use crate::report::UsefulClocks;

/// Every instruction at its highest useful clock; none if the GPUs hold every clock.
pub(crate) fn contender(
    pipeline: &Pipeline,
    power: &PerStage<Watts>,
) -> Result<Option<Contender>, TuneError> {
    if pipeline.profile().unheld().is_empty() {
        return Ok(None);
    }
    let outcome = Policy::AllMax.outcome(pipeline, power, &|_| {})?;
    let plan = |plan| Contender::plan("highest useful clocks".to_owned(), plan);
    outcome.plans.first().map(plan).transpose()
}

/// What they come to; none if the GPUs hold every clock of the profile.
pub(crate) fn of(pipeline: &Pipeline, compared: Compared) -> Option<UsefulClocks> {
    let unheld = || pipeline.profile().unheld().iter();
    let useful = |unheld: &Unheld| unheld.useful;
    Some(UsefulClocks {
        asked_mhz: unheld().map(|unheld| unheld.highest).max()?,
        lowest_mhz: unheld().map(useful).min()?,
        highest_mhz: unheld().map(useful).max()?,
        compared,
    })
}
