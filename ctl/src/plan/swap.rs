//! `pfoctl plan swap` and `plan rollback`: change what a job runs, at one step on all of its ranks.

use clap::Args;
use pfo_protocol::{JobName, Request, Response, SwapTarget, Swapped};

use super::load::PlanArguments;
use crate::connection::{Connection, Patience};
use crate::error::Error;
use crate::job::JobArguments;
use crate::output::Output;
use crate::socket::Sockets;
use crate::status::plan_text::described;
use crate::text::harmless;
use crate::waiting::Waiting;

/// Change what a running job runs, at the same step on all of its ranks
#[derive(Args)]
pub(crate) struct Swap {
    #[command(flatten)]
    job: JobArguments,

    /// Load this plan first; - reads standard input [default: the plan that is loaded]
    #[arg(value_name = "PLAN.json", conflicts_with = "default_clocks")]
    plan: Option<String>,

    #[command(flatten)]
    arguments: PlanArguments,

    /// Swap to no plan: default clocks
    #[arg(long)]
    default_clocks: bool,

    /// Not before this step; it is the first then that no rank has begun
    #[arg(long, value_name = "N")]
    at_step: Option<u64>,

    #[command(flatten)]
    answer: AnswerArguments,
}

/// Go back to what the job ran before its current plan
#[derive(Args)]
pub(crate) struct Rollback {
    #[command(flatten)]
    job: JobArguments,

    #[command(flatten)]
    answer: AnswerArguments,
}

/// When to answer to a swap, and how.
#[derive(Args)]
pub(crate) struct AnswerArguments {
    /// Return only when every rank on this node has changed
    #[arg(long)]
    wait: bool,

    /// Print JSON: what is told otherwise, field by field
    #[arg(long)]
    json: bool,
}

impl Swap {
    /// Loads the plan, if there is one, and swaps.
    pub(crate) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let plan = match &self.plan {
            Some(name) => Some(self.arguments.read(name)?),
            None => None,
        };
        let mut connection = Connection::open(sockets)?;
        if let Some(plan) = plan {
            plan.load(&mut connection, self.job.selector())?;
        }
        let target =
            if self.default_clocks { SwapTarget::DefaultClocks } else { SwapTarget::Loaded };
        let (job, not_before, wait) = (self.job.selector(), self.at_step, self.answer.wait);
        let request = Request::PlanSwap { job, target, not_before, wait };
        self.answer.ask(&mut connection, &self.job, request, output)
    }
}

impl Rollback {
    /// Swaps back.
    pub(crate) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let mut connection = Connection::open(sockets)?;
        let (job, target, wait) = (self.job.selector(), SwapTarget::Previous, self.answer.wait);
        let request = Request::PlanSwap { job, target, not_before: None, wait };
        self.answer.ask(&mut connection, &self.job, request, output)
    }
}

impl AnswerArguments {
    /// Whether to wait until every rank has changed.
    pub(crate) fn wait(&self) -> bool {
        self.wait
    }

    /// Whether to answer as JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Asks for a swap and tells what came of it.
    pub(crate) fn ask(
        &self,
        connection: &mut Connection,
        job: &JobArguments,
        request: Request,
        output: &mut Output,
    ) -> Result<(), Error> {
        let answer = if self.wait {
            wait_for(connection, request, job.name())?
        } else {
            connection.ask(request)?
        };
        match answer {
            Response::Swapped(swapped) => self.print(job, &swapped, output),
            other => Err(connection.other_answer(&format!("{other:?}"))),
        }
    }

    fn print(
        &self,
        job: &JobArguments,
        swapped: &Swapped,
        output: &mut Output,
    ) -> Result<(), Error> {
        if self.json {
            output.json(swapped)?;
        } else {
            output.text(&told(job.name(), swapped, self.wait))?;
        }
        if self.wait && swapped.changed < swapped.ranks {
            return Err(Error::NotAllChanged {
                changed: swapped.changed,
                ranks: swapped.ranks,
                step: swapped.step,
            });
        }
        Ok(())
    }
}

/// Sends a swap and waits as long as the slowest rank takes to begin its step.
fn wait_for(
    connection: &mut Connection,
    request: Request,
    job: &JobName,
) -> Result<Response, Error> {
    let waiting = Waiting::prepare(&format!("waiting for every rank of job {job} to change"))?;
    connection.send(request)?;
    waiting.begin(
        connection.stream(),
        format!("the swap goes on; `pfoctl status --job {job}` shows when it is done"),
    );
    let answer = connection.receive(Patience::Unlimited);
    waiting.end();
    answer
}

/// What was decided or done, in a sentence.
fn told(job: &JobName, swapped: &Swapped, waited: bool) -> String {
    let plan = swapped.plan.as_ref().map_or_else(|| "default clocks".to_owned(), described);
    let Swapped { step, ranks, changed, .. } = swapped;
    let when = match (ranks, waited) {
        (0, _) => format!("from step {step} on; none of its ranks is on this node"),
        (1, false) => format!("from step {step} on, on its one rank here"),
        (_, false) => format!("from step {step} on, on all {ranks} ranks here"),
        (_, true) => format!("since step {step}, on {changed} of {ranks} ranks here"),
    };
    format!("{}\n", harmless(&format!("job {job}: {plan} {when}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swapped(ranks: u32, changed: u32) -> Swapped {
        Swapped { plan: None, step: 12, ranks, changed }
    }

    #[test]
    fn a_decided_swap_is_told_from_a_done_one() {
        let job = "j".parse().unwrap();
        assert_eq!(
            told(&job, &swapped(4, 0), false),
            "job j: default clocks from step 12 on, on all 4 ranks here\n"
        );
        assert_eq!(
            told(&job, &swapped(4, 4), true),
            "job j: default clocks since step 12, on 4 of 4 ranks here\n"
        );
    }
}
