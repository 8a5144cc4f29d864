//! `pfoctl plan swap` and `plan rollback`: change what a job runs, at one step on all of its ranks.

use clap::Args;
use pfo_protocol::{JobName, Request, Response, SwapTarget, Swapped};

use super::guard;
use super::load::load;
use crate::arguments::{JobArguments, Slowdown};
use crate::daemons::{Agent, Connection, Daemon, Daemons, Patience, Pfod};
use crate::error::Error;
use crate::fleet;
use crate::outcome::BadOutcome;
use crate::output::Output;
use crate::planning::plan_file::{LabelArguments, LabelledPlan};
use crate::status::plan_text::described;
use crate::text::harmless;
use crate::waiting::Waiting;

/// Swap the plan of a running job, at the same step on all of its ranks
///
/// A job that has ranks on several nodes of a fleet changes on all of them: their agents agree on a step,
/// some seconds ahead, or none changes. Such a job takes a plan file. With --at-step all of it changes at
/// that step, or the reason is given.
#[derive(Args)]
pub(crate) struct Swap {
    #[command(flatten)]
    job: JobArguments,

    /// Load this plan first; - reads standard input [default: the plan that is loaded]
    #[arg(value_name = "PLAN.json", conflicts_with = "default_clocks")]
    plan: Option<String>,

    #[command(flatten)]
    label: LabelArguments,

    /// Swap to no plan: default clocks
    #[arg(long)]
    default_clocks: bool,

    /// Step at which to swap, refused if a rank has begun it [default: the first that none has begun]
    #[arg(long, value_name = "N")]
    at_step: Option<u64>,

    /// How much longer a step may take than at default clocks: pfo-agent gives up a plan that makes
    /// it longer, as with `pfoctl plan guard`
    #[arg(long, value_name = "PERCENT", conflicts_with = "default_clocks")]
    guard: Option<Slowdown>,

    #[command(flatten)]
    answer: AnswerArguments,
}

/// Swap back to what the job ran before its current plan
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
    /// Return only when every rank on this node has changed; of a job over a fleet, every node
    #[arg(long)]
    wait: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Swap {
    /// Loads the plan, if there is one, and swaps.
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let plan = self.plan.as_ref().map(|name| self.label.read(name)).transpose()?;
        if let Some(agent) = fleet::of_whole_job(daemons, &self.job) {
            return self.swap_whole_job(agent, plan, output);
        }
        let mut pfod = daemons.pfod()?;
        if let Some(plan) = plan {
            load(plan, &self.job, &mut pfod)?;
        }
        let target = match self.default_clocks {
            true => SwapTarget::DefaultClocks,
            false => SwapTarget::Loaded,
        };
        // A plan that is not guarded, although that was asked for, must not run.
        let guard = self.guard.is_some().then(|| guard::set(daemons, &self.job, self.guard));
        guard.transpose()?;
        self.answer.swap(&mut pfod, &self.job, target, self.at_step, output)
    }

    fn swap_whole_job(
        &self,
        agent: Connection<Agent>,
        plan: Option<LabelledPlan>,
        output: &mut Output,
    ) -> Result<(), Error> {
        let target = match plan {
            Some(LabelledPlan { label, table }) => SwapTarget::Table { label, table },
            None if self.default_clocks => SwapTarget::DefaultClocks,
            None => SwapTarget::Loaded,
        };
        let terms = fleet::Terms { at_step: self.at_step, guard: self.guard };
        fleet::swap(agent, &self.job, (target, terms), &self.answer, output)
    }
}

impl Rollback {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        if let Some(agent) = fleet::of_whole_job(daemons, &self.job) {
            let previous = (SwapTarget::Previous, fleet::Terms::default());
            return fleet::swap(agent, &self.job, previous, &self.answer, output);
        }
        let mut pfod = daemons.pfod()?;
        self.answer.swap(&mut pfod, &self.job, SwapTarget::Previous, None, output)
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

    fn swap(
        &self,
        pfod: &mut Connection<Pfod>,
        job: &JobArguments,
        target: SwapTarget,
        at_step: Option<u64>,
        output: &mut Output,
    ) -> Result<(), Error> {
        let request = Request::PlanSwap {
            job: job.selector(),
            target,
            at_step,
            after: None,
            wait: self.wait,
        };
        match self.wait_for(pfod, request, job.name())? {
            Response::Swapped(swapped) => self.print(job, &swapped, output),
            other => Err(pfod.unexpected(&other).into()),
        }
    }

    /// Sends a request for a swap and, with `--wait`, waits until the slowest rank begins its step.
    pub(crate) fn wait_for<D: Daemon>(
        &self,
        connection: &mut Connection<D>,
        request: D::Request,
        job: &JobName,
    ) -> Result<D::Response, Error> {
        if !self.wait {
            return Ok(connection.ask(request)?);
        }
        let what = format!("waiting for every rank of job {job} to change");
        ask_patiently(connection, request, job, &what)
    }

    pub(crate) fn print(
        &self,
        job: &JobArguments,
        swapped: &Swapped,
        output: &mut Output,
    ) -> Result<(), Error> {
        if self.json {
            output.json(swapped)?;
        } else {
            output.text(&sentence(job.name(), swapped, self.wait))?;
        }
        let &Swapped { changed, ranks, step, .. } = swapped;
        match self.wait && changed < ranks {
            true => Err(BadOutcome::NotAllChanged { changed, ranks, step }.into()),
            false => Ok(()),
        }
    }
}

/// Sends a request for a swap, and waits for its answer however long that takes.
pub(crate) fn ask_patiently<D: Daemon>(
    connection: &mut Connection<D>,
    request: D::Request,
    job: &JobName,
    what: &str,
) -> Result<D::Response, Error> {
    let waiting = Waiting::prepare(what)?;
    connection.send(request)?;
    waiting.begin(
        connection.stream(),
        format!("the swap continues; `pfoctl status {job}` shows when it is done"),
    );
    let response = connection.receive(Patience::Unlimited);
    waiting.end();
    Ok(response?)
}

/// What was decided or done.
fn sentence(job: &JobName, swapped: &Swapped, waited: bool) -> String {
    let plan = swapped.plan.as_ref().map_or_else(|| "default clocks".to_owned(), described);
    let Swapped { step, ranks, changed, .. } = swapped;
    let when = match (ranks, waited) {
        (0, _) => format!("from step {step} on; none of its ranks is on this node"),
        (1, false) => format!("from step {step} on, on its only rank on this node"),
        (_, false) => format!("from step {step} on, on all {ranks} ranks on this node"),
        (_, true) => format!("since step {step}, on {changed} of {ranks} ranks on this node"),
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
    fn a_decided_swap_reads_differently_from_a_done_one() {
        let job = "j".parse().unwrap();
        assert_eq!(
            sentence(&job, &swapped(4, 0), false),
            "job j: default clocks from step 12 on, on all 4 ranks on this node\n"
        );
        assert_eq!(
            sentence(&job, &swapped(4, 4), true),
            "job j: default clocks since step 12, on 4 of 4 ranks on this node\n"
        );
    }
}
