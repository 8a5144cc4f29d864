//! Has the agent begin a tune.

use pfo_experiment::TuneOrder;
use pfo_protocol::{AgentRequest, AgentResponse, TuneStatus};

use super::TuneError;
use crate::arguments::JobArguments;
use crate::daemons::Daemons;
use crate::error::Error;

/// Has the agent begin a tune, which continues by itself.
pub(crate) fn begin(
    daemons: &Daemons,
    job: &JobArguments,
    order: &TuneOrder,
) -> Result<TuneStatus, Error> {
    let TuneOrder { terms, profile, order } = order.clone();
    let terms = terms.to_json().map_err(|why| TuneError::Terms { why })?;
    let job = job.selector();
    let order = pfo_protocol::TuneOrder { job, terms, profile, order };
    let mut agent = daemons.agent()?;
    match agent.ask(AgentRequest::TuneStart(order))? {
        AgentResponse::Tune(status) => Ok(*status),
        other => Err(agent.unexpected(&other).into()),
    }
}
