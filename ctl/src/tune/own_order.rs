//! The order that a job runs by itself, which is planned for unless another one is given.

use pfo_planner::{Delays, Order, Pipeline, Profile};

use super::Tune;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::failure::Failure;
use crate::planning::job_order;
use crate::progress::Progress;
use crate::trial::Interrupt;

/// The order of a job, and what it is called.
pub(super) struct OwnOrder {
    order: Order,
    pub(super) described: String,
}

impl Tune {
    /// The order that the job runs; none if another one is given, or if pfo-agent cannot say, because it
    /// does not answer or the job has stages on other nodes.
    pub(super) fn own_order(
        &self,
        daemons: &Daemons,
        interrupt: &Interrupt,
        profile: &Profile,
    ) -> Result<Option<OwnOrder>, Error> {
        if !self.schedule.is_open() || daemons.agent().is_err() {
            return Ok(None);
        }
        let progress = Progress::new("waiting for a step of the job");
        let mut agent = interrupt.connect(daemons)?;
        match interrupt.or(self.job.name(), job_order::ask(&mut agent, &self.job)) {
            Ok(order) => {
                let described = job_order::described(&order, profile);
                Ok(Some(OwnOrder { order, described }))
            }
            Err(error @ (Error::Connection(_) | Error::File(_))) => {
                progress.tell(&format!("pfoctl: {error}; planning for 1f1b"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl OwnOrder {
    pub(super) fn num_microbatches(&self) -> u32 {
        self.order.num_microbatches()
    }

    pub(super) fn pipeline(&self, profile: &Profile, delays: Delays) -> Result<Pipeline, Failure> {
        job_order::pipeline(&self.order, profile, delays).map_err(Failure::from)
    }
}
