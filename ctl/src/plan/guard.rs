//! `pfoctl plan guard`: keep the slowdown that was allowed for as long as the job runs plans.

use clap::Args;
use pfo_protocol::{AgentRequest, AgentResponse, GuardStatus, JobName};

use crate::arguments::{JobArguments, Slowdown};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::fleet;
use crate::output::Output;
use crate::status::quantity::percent;
use crate::text::harmless;

/// Keep the steps of a job from taking longer under its plans than allowed
///
/// pfo-agent compares the plan with default clocks now and then; a comparison takes 19 steps or more. If
/// the newest three comparisons, or eight where steps scatter, prove that steps take longer than allowed,
/// and a frontier is loaded for the job, pfo-agent makes a faster plan from what is measured now. The job
/// returns to default clocks if there is no such plan, or if this plan proves too slow as well. The guard
/// survives restarts of the job, and ends when the job has had no rank on this node for 15 minutes. A job
/// with ranks on several nodes of a fleet is compared on all of them; its guard lasts as long as the job.
#[derive(Args)]
pub(crate) struct Guard {
    #[command(flatten)]
    job: JobArguments,

    /// How much longer a step may take than at default clocks
    #[arg(value_name = "PERCENT", required_unless_present = "off")]
    max_slowdown: Option<Slowdown>,

    /// End the guard
    #[arg(long, conflicts_with = "max_slowdown")]
    off: bool,

    /// Print the guard as JSON
    #[arg(long)]
    json: bool,
}

impl Guard {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let guard = set(daemons, &self.job, self.max_slowdown)?;
        if self.json {
            return output.json(&guard);
        }
        output.text(&sentence(self.job.name(), guard.as_ref()))
    }
}

/// Sets or ends the guard of a job.
pub(crate) fn set(
    daemons: &Daemons,
    job: &JobArguments,
    max_slowdown: Option<Slowdown>,
) -> Result<Option<GuardStatus>, Error> {
    let max_slowdown = max_slowdown.map(|Slowdown(share)| share);
    let request = AgentRequest::Guard { job: job.selector(), max_slowdown };
    let whole = fleet::of_whole_job(daemons, job);
    let is_whole = whole.is_some();
    let mut agent = whole.map_or_else(|| daemons.agent(), Ok)?;
    let answer = match is_whole {
        true => fleet::ask(&mut agent, job, request)?,
        false => agent.ask(request)?,
    };
    match answer {
        AgentResponse::Guarded(guard) => Ok(guard),
        other => Err(agent.unexpected(&other).into()),
    }
}

/// What becomes of the job's plans.
pub(crate) fn sentence(job: &JobName, guard: Option<&GuardStatus>) -> String {
    let line = match guard {
        Some(guard) => format!(
            "job {job}: pfo-agent corrects or gives up a plan that makes steps more than {} longer",
            percent(guard.max_slowdown)
        ),
        None => format!("job {job}: no guard compares its plans with default clocks"),
    };
    format!("{}\n", harmless(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_reported_with_what_it_allows() {
        let job = "j".parse().unwrap();
        let guard = GuardStatus { max_slowdown: 0.005, ..GuardStatus::default() };
        assert_eq!(
            sentence(&job, Some(&guard)),
            "job j: pfo-agent corrects or gives up a plan that makes steps more than 0.5 % longer\n"
        );
        assert_eq!(
            sentence(&job, None),
            "job j: no guard compares its plans with default clocks\n"
        );
    }
}
