//! `pfoctl plan swap` and `plan rollback`: change what a job runs, at one step on all of its ranks.

use clap::Args;
use pfo_protocol::{JobName, JobStatus, Request, Response, SwapTarget, Swapped};

use super::guard;
use crate::arguments::{JobArguments, Slowdown};
use crate::daemons::{Agent, Connection, Daemon, Daemons, Patience, Pfod};
use crate::error::Error;
use crate::fleet;
use crate::in_force;
use crate::kept_below::kept_below;
use crate::outcome::BadOutcome;
use crate::output::Output;
use crate::planning::plan_file::{LabelArguments, LabelledPlan};
use crate::status::plan_text::described;
use crate::status::quantity::span;
use crate::text::harmless;
use crate::waiting::Waiting;

/// A step that is further ahead is remarked on.
const FAR_STEPS: u64 = 10_000;

/// `pfod` takes no later step for one: none takes less than a microsecond.
const LAST_STEP: u64 = 1 << 50;

/// Swap the plan of a running job, at the same step on all of its ranks
///
/// A job with ranks on several nodes of a fleet changes on all of them: their agents agree on a step, some
/// seconds ahead, or no node changes. Such a job requires a plan file. With --at-step, all nodes change at
/// that step, or pfoctl says why none does.
#[derive(Args)]
pub(crate) struct Swap {
    #[command(flatten)]
    job: JobArguments,

    /// The plan; - reads standard input [default: the plan that is loaded]
    #[arg(value_name = "PLAN.json", conflicts_with = "default_clocks")]
    plan: Option<String>,

    #[command(flatten)]
    label: LabelArguments,

    /// Swap to no plan: default clocks
    #[arg(long)]
    default_clocks: bool,

    /// Step at which to swap, refused if a rank has begun it [default: the first that none has begun]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=LAST_STEP))]
    at_step: Option<u64>,

    /// How much longer a step may take than at default clocks: pfo-agent replaces or gives up a plan that
    /// makes steps longer, as with `pfoctl plan guard`
    #[arg(long, value_name = "PERCENT", conflicts_with = "default_clocks")]
    guard: Option<Slowdown>,

    /// Change the ranks on this node alone, even if the job has others elsewhere; these keep what they run
    #[arg(long, conflicts_with = "guard")]
    this_node_only: bool,

    #[command(flatten)]
    answer: AnswerArguments,
}

/// Swap back to what the job ran before its current plan
#[derive(Args)]
pub(crate) struct Rollback {
    #[command(flatten)]
    job: JobArguments,

    /// Change the ranks on this node alone, even if the job has others elsewhere
    #[arg(long)]
    this_node_only: bool,

    #[command(flatten)]
    answer: AnswerArguments,
}

/// When to answer to a swap, and how.
#[derive(Args)]
pub(crate) struct AnswerArguments {
    /// Return only when every rank on this node has changed or, for a job over a fleet, every node
    #[arg(long)]
    wait: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Which ranks of a job change.
#[derive(Clone, Copy)]
enum Who {
    /// All of them, or none.
    WholeJob,
    /// The ranks on this node only.
    ThisNode,
}

impl Who {
    fn of(this_node_only: bool) -> Self {
        if this_node_only { Self::ThisNode } else { Self::WholeJob }
    }

    /// Who changes all nodes of a job, if it is on several.
    fn agent(self, daemons: &Daemons, job: &JobArguments) -> Option<Connection<Agent>> {
        match self {
            Self::WholeJob => fleet::of_whole_job(daemons, job),
            Self::ThisNode => None,
        }
    }
}

impl Swap {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let plan = self.plan.as_ref().map(|name| self.label.read(name)).transpose()?;
        if let Some(agent) = self.who_changes().agent(daemons, &self.job) {
            let terms = fleet::Terms { at_step: self.at_step, guard: self.guard };
            let target = (self.target(plan), terms);
            return fleet::swap((daemons, agent), &self.job, target, &self.answer, output);
        }
        // A plan that is not guarded, although that was asked for, must not run.
        let guard = self.guard.is_some().then(|| guard::set(daemons, &self.job, self.guard));
        guard.transpose()?;
        let mut pfod = daemons.pfod()?;
        let target = self.target(plan);
        self.answer.swap(
            &mut pfod,
            &self.job,
            (self.who_changes(), target, self.at_step),
            output,
        )?;
        match self.at_step.filter(|_| !self.answer.json) {
            Some(step) => self.say_if_far(step, &mut pfod, output),
            None if self.default_clocks && !self.answer.json => self.say_kept(&mut pfod, output),
            None => Ok(()),
        }
    }

    fn who_changes(&self) -> Who {
        Who::of(self.this_node_only)
    }

    fn target(&self, plan: Option<LabelledPlan>) -> SwapTarget {
        match plan {
            Some(LabelledPlan { label, table }) => SwapTarget::Table { label, table },
            None if self.default_clocks => SwapTarget::DefaultClocks,
            None => SwapTarget::Loaded,
        }
    }

    /// Default clocks may not be all that holds a job back.
    fn say_kept(&self, pfod: &mut Connection<Pfod>, output: &mut Output) -> Result<(), Error> {
        let Ok(status) = pfod.status() else { return Ok(()) };
        let kept = self.job.find(&status.jobs).and_then(|job| kept_below(&status, job));
        kept.map_or(Ok(()), |kept| output.text(&format!("It is {kept}\n")))
    }

    /// A step that is far ahead may be a slip of the hand.
    fn say_if_far(
        &self,
        step: u64,
        pfod: &mut Connection<Pfod>,
        output: &mut Output,
    ) -> Result<(), Error> {
        // The swap is decided, whether there is a status or not.
        let jobs = pfod.status().map_or_else(|_| Vec::new(), |status| status.jobs);
        let far = self.job.find(&jobs).and_then(|job| far_ahead(step, job));
        far.map_or(Ok(()), |line| output.text(&line))
    }
}

impl Rollback {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let who = Who::of(self.this_node_only);
        if let Some(agent) = who.agent(daemons, &self.job) {
            let previous = (SwapTarget::Previous, fleet::Terms::default());
            return fleet::swap((daemons, agent), &self.job, previous, &self.answer, output);
        }
        let mut pfod = daemons.pfod()?;
        self.answer.swap(&mut pfod, &self.job, (who, SwapTarget::Previous, None), output)
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
        (who, target, at_step): (Who, SwapTarget, Option<u64>),
        output: &mut Output,
    ) -> Result<(), Error> {
        let (selector, wait) = (job.selector(), self.wait);
        let request = match who {
            Who::WholeJob => {
                Request::PlanSwap { job: selector, target, at_step, after: None, wait }
            }
            Who::ThisNode => Request::PlanSwapHere { job: selector, target, at_step, wait },
        };
        match self.wait_for(pfod, request, job.name())? {
            Response::Swapped(swapped) => self.print((pfod, job), &swapped, output),
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

    /// Says what was decided, or with `--wait` what was done.
    ///
    /// # Errors
    /// If not every rank has changed, or the driver of one did not do it.
    pub(crate) fn print(
        &self,
        (pfod, job): (&mut Connection<Pfod>, &JobArguments),
        swapped: &Swapped,
        output: &mut Output,
    ) -> Result<(), Error> {
        let is_done = self.wait && swapped.changed == swapped.ranks;
        let missing = if is_done { in_force::look(pfod, job)? } else { Vec::new() };
        if self.json {
            output.json(swapped)?;
        } else {
            output.text(&sentence(job.name(), swapped, missing.len(), self.wait))?;
        }
        let &Swapped { changed, ranks, step, .. } = swapped;
        if self.wait && (changed < ranks || ranks == 0) {
            return Err(BadOutcome::NotAllChanged { changed, ranks, step }.into());
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(BadOutcome::NotInForce(missing).into()),
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

/// How far a step is from the one that the job is in, if that is far.
fn far_ahead(step: u64, job: &JobStatus) -> Option<String> {
    let newest = job.ranks.iter().filter_map(|rank| rank.step).max()?;
    let ahead = step.checked_sub(newest).filter(|ahead| *ahead > FAR_STEPS)?;
    let step_s = job.windows.last().map(|window| window.iteration_time_s);
    let in_time = step_s.map_or_else(String::new, |step_s| {
        format!(", about {} at the present pace", span(ahead as f64 * step_s))
    });
    Some(format!("that is {ahead} steps ahead{in_time}; another swap replaces this one\n"))
}

/// What was decided or done. On `missing` of the ranks it is not in force.
fn sentence(job: &JobName, swapped: &Swapped, missing: usize, waited: bool) -> String {
    let plan = swapped.plan.as_ref().map_or_else(|| "default clocks".to_owned(), described);
    let Swapped { step, ranks, changed, .. } = swapped;
    let when = match (ranks, waited) {
        (0, _) => format!("from step {step} on; none of its ranks is on this node"),
        (1, false) => format!("from step {step} on, on its only rank on this node"),
        (_, false) => format!("from step {step} on, on all {ranks} ranks on this node"),
        (_, true) if *changed == 0 => {
            format!("from step {step} on, which none of its {ranks} ranks on this node has begun")
        }
        (_, true) if missing > 0 => format!(
            "taken up at step {step} by {changed} of {ranks} ranks on this node, and not in force on \
             {missing} of them"
        ),
        (_, true) => format!("since step {step}, on {changed} of {ranks} ranks on this node"),
    };
    format!("{}\n", harmless(&format!("job {job}: {plan} {when}")))
}

#[cfg(test)]
mod tests {
    use pfo_protocol::RankStatus;

    use super::*;
    use crate::status::measured::tests as measured;

    fn swapped(ranks: u32, changed: u32) -> Swapped {
        Swapped { plan: None, step: 12, ranks, changed }
    }

    #[test]
    fn a_decided_swap_reads_differently_from_a_done_one() {
        let job = "j".parse().unwrap();
        assert_eq!(
            sentence(&job, &swapped(4, 0), 0, false),
            "job j: default clocks from step 12 on, on all 4 ranks on this node\n"
        );
        assert_eq!(
            sentence(&job, &swapped(4, 4), 0, true),
            "job j: default clocks since step 12, on 4 of 4 ranks on this node\n"
        );
        assert_eq!(
            sentence(&job, &swapped(4, 4), 1, true),
            "job j: default clocks taken up at step 12 by 4 of 4 ranks on this node, and not in force on 1 \
             of them\n"
        );
    }

    #[test]
    fn a_step_that_is_far_ahead_is_remarked_on_with_its_time() {
        let status: pfo_protocol::Status =
            serde_json::from_str(include_str!("../../tests/golden/status.json")).unwrap();
        let ranks = vec![RankStatus { step: Some(7), ..status.jobs[0].ranks[0].clone() }];
        let job = JobStatus { ranks, ..measured::job(Vec::new()) };
        assert_eq!(far_ahead(7 + FAR_STEPS, &job), None);
        assert_eq!(far_ahead(3, &job), None);
        let line = far_ahead(100_000_000, &job).unwrap();
        assert!(line.starts_with("that is 99999993 steps ahead; "), "{line}");
        let windows = vec![measured::window(None, 10, 0.5, 100.0)];
        let line = far_ahead(u64::MAX, &JobStatus { windows, ..job }).unwrap();
        assert!(line.contains("steps ahead, about "), "{line}");
    }
}
