//! The order in which a running job runs its instructions, as the agent sees it.

use pfo_planner::{Delays, Order, Pipeline, PlanError, Profile, Ran, Settings, Stage};
use pfo_protocol::{AgentRequest, AgentResponse, RankOrder};

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

/// The same over an open connection, without a word to who waits.
pub(crate) fn ask(agent: &mut Connection<Agent>, job: &JobArguments) -> Result<Order, Error> {
    agent.send(AgentRequest::OrderRead(job.selector()))?;
    receive(agent, job)
}

fn receive(agent: &mut Connection<Agent>, job: &JobArguments) -> Result<Order, Error> {
    match agent.receive(Patience::Unlimited)? {
        AgentResponse::Order(ranks) => Ok(of_ranks(job, &ranks)?),
        other => Err(agent.unexpected(&other).into()),
    }
}

/// The pipeline of a profile whose stages run this order; of a schedule with a name, that.
pub(crate) fn pipeline(
    order: &Order,
    profile: &Profile,
    delays: Delays,
) -> Result<Pipeline, PlanError> {
    match order.named(profile).filter(|_| order.fixed().is_empty()) {
        Some((schedule, chunks)) => {
            let settings = Settings { chunks, delays, ..Settings::default() };
            Pipeline::with_settings(profile, schedule, order.num_microbatches(), &settings)
        }
        None => order.pipeline(profile, delays),
    }
}

/// The order of the stages, each as its first rank runs it. Their times are of one node.
fn of_ranks(job: &JobArguments, ranks: &[RankOrder]) -> Result<Order, Failure> {
    let unknown = |why: String| Failure::UnknownOrder { job: job.name().clone(), why };
    let last = ranks.iter().map(|rank| rank.stage).max();
    let stages = (0..=last.map_or(0, |last| last.0)).map(Stage);
    let first_of = |stage: Stage| {
        let rank = ranks.iter().find(|rank| rank.stage == stage);
        rank.ok_or_else(|| unknown(format!("stage {stage} has no rank on this node")))
    };
    let mut orders: Vec<Vec<Ran>> = Vec::new();
    for stage in stages {
        let first = first_of(stage)?;
        let units = |rank: &RankOrder| rank.ran.iter().map(|ran| ran.unit).collect::<Vec<_>>();
        let is_other = |rank: &&RankOrder| rank.stage == stage && units(rank) != units(first);
        if let Some(other) = ranks.iter().find(is_other) {
            let (one, other) = (first.rank, other.rank);
            return Err(unknown(format!("ranks {one} and {other} of stage {stage} differ")));
        }
        let ran = |ran: &pfo_protocol::RanUnit| Ran {
            unit: ran.unit,
            began_ns: ran.began_ns,
            ended_ns: ran.ended_ns,
        };
        orders.push(first.ran.iter().map(ran).collect());
    }
    Order::recorded(&orders).map_err(|error| unknown(error.to_string()))
}

/// An order in a few words, such as `1f1b, with optimizer_step`.
pub(crate) fn described(order: &Order, profile: &Profile) -> String {
    let name = match order.named(profile) {
        Some((schedule, chunks @ 2..)) => format!("{schedule} of {chunks} chunks"),
        Some((schedule, _)) => schedule.to_string(),
        None => "an order without a name".to_owned(),
    };
    let fixed: Vec<_> = order.fixed().iter().map(ToString::to_string).collect();
    match &fixed[..] {
        [] => name,
        fixed => format!("{name}, with {}", fixed.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use pfo_planner::{Instruction, Unit};
    use pfo_protocol::{RanUnit, Rank};

    use super::*;

    fn rank(rank: u32, stage: u16, kinds: &[Instruction]) -> RankOrder {
        let ran = |(at, kind): (u64, &Instruction)| RanUnit {
            unit: Unit::new(*kind, 0),
            began_ns: at,
            ended_ns: at + 1,
        };
        let ran = (0..).zip(kinds).map(ran).collect();
        RankOrder { rank: Rank(rank), stage: Stage(stage), ran }
    }

    #[test]
    fn an_order_needs_every_stage_and_ranks_of_a_stage_that_agree() {
        use Instruction::{Backward, Forward, OptimizerStep};

        let job = JobArguments::of("j".parse().unwrap(), None);
        let whole = [Forward, Backward];
        let of = |ranks: &[RankOrder]| {
            of_ranks(&job, ranks).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(of(&[rank(0, 0, &whole), rank(2, 1, &whole), rank(1, 0, &whole)]), Ok(()));
        let missing = of(&[rank(2, 1, &whole)]).unwrap_err();
        let more = [Forward, Backward, OptimizerStep];
        let differ = of(&[rank(0, 0, &whole), rank(1, 0, &more)]).unwrap_err();
        insta::assert_snapshot!([missing, differ, of(&[]).unwrap_err()].join("\n"));
    }
}
