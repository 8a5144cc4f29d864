//! `pfoctl plan load --for`, `plan list` and `plan drop`: plans that are kept for jobs, which begin with
//! them at their first step.

use clap::Args;
use pfo_protocol::{AgentRequest, AgentResponse, FirstPlan, FirstPlanState};

use crate::arguments::JobArguments;
use crate::daemons::{Agent, Connection, Daemons};
use crate::error::Error;
use crate::output::{Look, Output};
use crate::planning::plan_file::LabelledPlan;
use crate::since::date;
use crate::status::table::{Cell, Table, Tone};
use crate::text::harmless;
use crate::user;

/// Show the plans that jobs begin with: your own or, as an administrator, all
///
/// `pfoctl plan load --for` sets such a plan.
#[derive(Args)]
pub(crate) struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Drop the plan that a job begins with
///
/// A running job keeps the plan that it runs.
#[derive(Args)]
pub(crate) struct Drop {
    #[command(flatten)]
    job: JobArguments,

    /// Print the dropped plan as JSON
    #[arg(long)]
    json: bool,
}

impl List {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut agent = daemons.agent()?;
        let plans = match agent.ask(AgentRequest::FirstPlans)? {
            AgentResponse::FirstPlans(plans) => plans,
            other => return Err(agent.unexpected(&other).into()),
        };
        if self.json {
            return output.json(&plans);
        }
        let look = output.look();
        output.text(&render(&plans, look))
    }
}

impl Drop {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut agent = daemons.agent()?;
        let dropped = ask(&mut agent, AgentRequest::FirstPlanDrop(self.job.selector()))?;
        if self.json {
            return output.json(&dropped);
        }
        let line = format!("job {}: plan {} is dropped", dropped.job, dropped.label);
        output.text(&format!("{}\n", harmless(&line)))
    }
}

/// Has the agent keep a plan for a job.
pub(super) fn keep(
    job: &JobArguments,
    LabelledPlan { label, table }: LabelledPlan,
    daemons: &Daemons,
) -> Result<FirstPlan, Error> {
    let request = AgentRequest::FirstPlanLoad { job: job.selector(), label, table };
    ask(&mut daemons.agent()?, request)
}

fn ask(agent: &mut Connection<Agent>, request: AgentRequest) -> Result<FirstPlan, Error> {
    match agent.ask(request)? {
        AgentResponse::FirstPlan(plan) => Ok(plan),
        other => Err(agent.unexpected(&other).into()),
    }
}

/// A plan that was just loaded, in a sentence.
pub(super) fn sentence(plan: &FirstPlan) -> String {
    let FirstPlan { job, label, .. } = plan;
    let when = match &plan.state {
        FirstPlanState::NextRun | FirstPlanState::Begun => {
            "is kept for its next run; the job is running, and `pfoctl plan swap` changes what it runs now"
        }
        FirstPlanState::Unready => {
            "is kept; pfod does not have it yet, and `pfoctl plan list` says when it does"
        }
        _ => "is kept; the job begins with it",
    };
    format!("job {job}: plan {label} {when}")
}

/// What has become of a plan, in a few words.
pub(crate) fn state(plan: &FirstPlan) -> String {
    match &plan.state {
        FirstPlanState::Ready => "the job begins with it".into(),
        FirstPlanState::Unready => "pfod does not have it yet".into(),
        FirstPlanState::Begun => "the job began with it".into(),
        FirstPlanState::NextRun => "for the next run".into(),
        FirstPlanState::Refused(why) => format!("refused: {why}"),
    }
}

fn render(plans: &[FirstPlan], look: Look) -> String {
    if plans.is_empty() {
        return "No plan is kept for a job.\n".to_owned();
    }
    let mut table = Table::new(look)
        .left("Job")
        .left("User")
        .left("Plan")
        .right("Stages")
        .right("Microbatches")
        .left("Loaded")
        .left("State");
    for plan in plans {
        let tone = match plan.state {
            FirstPlanState::Refused(_) => Tone::Bad,
            _ => Tone::Plain,
        };
        table.row([
            Cell::text(plan.job.as_str()),
            Cell::text(user::name_of(plan.uid)),
            Cell::text(&plan.label),
            Cell::number(plan.stages),
            Cell::number(plan.num_microbatches),
            Cell::text(date(plan.loaded_unix_s)),
            Cell::text(state(plan)).tone(tone),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Uid;

    use super::*;

    #[test]
    fn a_plan_that_was_refused_says_why() {
        let plan = FirstPlan {
            job: "j".parse().unwrap(),
            uid: Uid(4_000_000),
            label: "p.json".into(),
            stages: 8,
            num_microbatches: 16,
            loaded_unix_s: 1_800_000_000,
            state: FirstPlanState::Refused("the plan has 8 stages, the job 4".into()),
        };
        insta::assert_snapshot!(render(&[plan], Look::default()));
    }
}
