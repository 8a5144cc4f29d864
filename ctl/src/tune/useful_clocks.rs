//! Clocks that the GPUs hold, where power limits keep them below those that were asked for. To ask
//! for no more takes the same time: it is the first saving to look for.

use pfo_planner::{Mhz, PerStage, Pipeline, Policy, Unheld, Watts};
use serde::Serialize;

use super::contender::Contender;
use super::verification::Compared;
use crate::failure::Failure;

/// What a step takes with every instruction at the highest clock that is of use to it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct UsefulClocks {
    /// The highest clock that was asked for.
    pub(super) asked_mhz: Mhz,
    /// The lowest and the highest clock that is the highest useful one of an instruction.
    pub(super) lowest_mhz: Mhz,
    pub(super) highest_mhz: Mhz,
    #[serde(flatten)]
    pub(super) compared: Compared,
}

/// Every instruction at its highest useful clock; none if the GPUs hold every clock.
pub(super) fn contender(
    pipeline: &Pipeline,
    power: &PerStage<Watts>,
) -> Result<Option<Contender>, Failure> {
    if pipeline.profile().unheld().is_empty() {
        return Ok(None);
    }
    let outcome = Policy::AllMax.outcome(pipeline, power, &|_| {})?;
    let plan = |plan| Contender::plan("highest useful clocks".to_owned(), plan);
    outcome.plans.first().map(plan).transpose()
}

impl UsefulClocks {
    /// None if the GPUs hold every clock of the profile.
    pub(super) fn of(pipeline: &Pipeline, compared: Compared) -> Option<Self> {
        let unheld = || pipeline.profile().unheld().iter();
        let useful = |unheld: &Unheld| unheld.useful;
        Some(Self {
            asked_mhz: unheld().map(|unheld| unheld.highest).max()?,
            lowest_mhz: unheld().map(useful).min()?,
            highest_mhz: unheld().map(useful).max()?,
            compared,
        })
    }
}
