//! The order in which a running job runs its instructions, as the agent sees it.

use pfo_experiment::order::of_ranks;
pub(crate) use pfo_experiment::order::{described, pipeline};
use pfo_planner::Order;
use pfo_protocol::{AgentRequest, AgentResponse};

use crate::arguments::JobArguments;
use crate::daemons::{Agent, Connection, Daemons, Patience};
use crate::error::Error;
use crate::failure::Failure;
use crate::waiting::Waiting;

/// The order of a job's next step. Nothing about the job changes.
pub(crate) fn read(daemons: &Daemons, job: &JobArguments) -> Result<Order, Error> {
    let waiting = Waiting::prepare(&format!("waiting for a step of job {}", job.name()))?;
    let mut agent: Connection<Agent> = daemons.agent()?;
    agent.send(AgentRequest::OrderRead(job.selector()))?;
    waiting.begin(agent.stream(), "nothing about the job has changed".to_owned());
    let order = receive(&mut agent, job);
    waiting.end();
    order
}

fn receive(agent: &mut Connection<Agent>, job: &JobArguments) -> Result<Order, Error> {
    match agent.receive(Patience::Unlimited)? {
        AgentResponse::Order(ranks) => {
            let unknown = |why| Failure::UnknownOrder { job: job.name().clone(), why };
            Ok(of_ranks(&ranks).map_err(unknown)?)
        }
        other => Err(agent.unexpected(&other).into()),
    }
}
