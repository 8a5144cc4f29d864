//! The order that a job runs by itself, which is planned for unless another one is given.

use pfo_planner::{Delays, Order, Pipeline, PlanError, Profile};
use pfo_protocol::{AgentRequest, AgentResponse, RefusalCode};

use crate::bench::Bench;
use crate::error::TuneError;
use crate::order;
use crate::subject::{Subject, unexpected};
use crate::trouble::Trouble;

/// The order of a job, and what it is called.
pub(crate) struct OwnOrder {
    order: Order,
    pub(crate) described: String,
}

impl<B: Bench> Subject<'_, B> {
    /// The order that the job runs; none if the agent cannot say, because the job has stages on other
    /// nodes, or ranks that differ.
    pub(crate) async fn own_order(
        &mut self,
        profile: &Profile,
    ) -> Result<Option<OwnOrder>, TuneError> {
        let mut trouble = Trouble::default();
        let why = loop {
            let error =
                match self.agent_within(AgentRequest::OrderRead(self.selector()), None).await {
                    Ok(AgentResponse::Order(ranks)) => match order::of_ranks(&ranks) {
                        Ok(order) => {
                            let described = order::described(&order, profile);
                            return Ok(Some(OwnOrder { order, described }));
                        }
                        Err(why) => {
                            break format!("the order of job {} is not known: {why}", self.job());
                        }
                    },
                    Ok(other) => return Err(unexpected(&other)),
                    Err(error) => TuneError::from(error),
                };
            let is_refused = matches!(
                &error, TuneError::Refused(refusal) if refusal.code != RefusalCode::ShuttingDown
            );
            // After a restart, its ranks come back one by one.
            if is_refused && !trouble.has_begun() && !self.is_resumed() {
                break error.to_string();
            }
            match self.wait_out(&mut trouble, error).await {
                Ok(()) => {}
                Err(error) if is_refused => break error.to_string(),
                Err(error) => return Err(error),
            }
        };
        self.remark(format!("{why}; planning for 1f1b"));
        Ok(None)
    }
}

impl OwnOrder {
    pub(crate) fn num_microbatches(&self) -> u32 {
        self.order.num_microbatches()
    }

    pub(crate) fn pipeline(
        &self,
        profile: &Profile,
        delays: Delays,
    ) -> Result<Pipeline, PlanError> {
        order::pipeline(&self.order, profile, delays)
    }
}
