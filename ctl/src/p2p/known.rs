//! Which of the known P2P-blocking powers plans are made with.

use pfo_experiment::{KnownPower, power_of};

use super::all;
use crate::daemons::{Agent, Connection};
use crate::error::Error;

/// The power of a model, or of the only model of which one is known; none if it is not clear which.
pub(crate) fn of(
    agent: &mut Connection<Agent>,
    model: Option<&str>,
) -> Result<Option<KnownPower>, Error> {
    Ok(power_of(&all(agent)?, model))
}
