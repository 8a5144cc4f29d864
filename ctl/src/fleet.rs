//! `pfoctl fleet`: the nodes whose agents share a store; and swaps of jobs that have ranks on several
//! of them, which the agents agree on.

use clap::{Args, Subcommand};
use pfo_protocol::{
    AgentRequest, AgentResponse, FleetFinding, FleetStatus, FleetSwapped, JobName, SwapTarget,
};

use crate::arguments::{JobArguments, Slowdown};
use crate::daemons::{Agent, Connection, Daemons};
use crate::error::Error;
use crate::in_force;
use crate::outcome::BadOutcome;
use crate::output::{Look, Output};
use crate::plan::swap::{AnswerArguments, ask_patiently};
use crate::status::table::{Cell, Table};
use crate::text::harmless;

/// Show the nodes of the fleet, and check what this one needs to be in it
#[derive(Subcommand)]
pub(crate) enum Fleet {
    Status(Status),
    Check(Check),
}

/// List the nodes whose pfo-agent reaches the store that they share
///
/// `pfoctl status` shows the nodes of each job.
#[derive(Args)]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Look for what is wrong with `[fleet]` in agent.toml, its certificates, and the store
///
/// pfo-agent connects to each member of the store separately, then reads and writes there as it does for
/// jobs. For administrators. Exits with 1 if something is wrong.
#[derive(Args)]
pub(crate) struct Check {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Fleet {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        match self {
            Self::Status(status) => status.run(daemons, output),
            Self::Check(check) => check.run(daemons, output),
        }
    }
}

impl Status {
    fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut agent = daemons.agent()?;
        let fleet = match agent.ask(AgentRequest::FleetStatus)? {
            AgentResponse::Fleet(fleet) => fleet,
            other => return Err(agent.unexpected(&other).into()),
        };
        if self.json {
            return output.json(&fleet);
        }
        let look = output.look();
        output.text(&render(&fleet, look))
    }
}

fn render(fleet: &FleetStatus, look: Look) -> String {
    let mut table = Table::new(look).left("Node").left("pfo-agent").left("");
    for node in &fleet.nodes {
        let own = if node.node == fleet.node { "this node" } else { "" };
        table.row([Cell::text(&node.node), Cell::text(&node.version), Cell::text(own)]);
    }
    let head = format!("Node {} of the fleet at {}", fleet.node, fleet.endpoints.join(", "));
    format!("{}\n{}", harmless(&head), table.render())
}

impl Check {
    fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut agent = daemons.agent()?;
        let findings = match agent.ask(AgentRequest::FleetCheck)? {
            AgentResponse::FleetChecked(findings) => findings,
            other => return Err(agent.unexpected(&other).into()),
        };
        if self.json {
            output.json(&findings)?;
        } else {
            output.text(&findings.iter().map(line).collect::<String>())?;
        }
        match findings.iter().filter(|finding| finding.wrong.is_some()).count() {
            0 => Ok(()),
            count => Err(BadOutcome::Unwell { count }.into()),
        }
    }
}

fn line(finding: &FleetFinding) -> String {
    let FleetFinding { what, wrong } = finding;
    let found = wrong.as_deref().map_or_else(|| "ok".to_owned(), |wrong| format!("wrong: {wrong}"));
    format!("{}\n", harmless(&format!("{what}: {found}")))
}

/// The agent of this node, if it knows that a job has ranks on other nodes. Without an agent, or
/// without a fleet, `pfod` refuses to change such a job.
pub(crate) fn of_whole_job(daemons: &Daemons, job: &JobArguments) -> Option<Connection<Agent>> {
    let mut agent = daemons.agent().ok()?;
    let status = agent.status().ok()?;
    let of_fleet = status.jobs.iter().filter(|watched| watched.fleet.is_some());
    let of_fleet: Vec<_> = of_fleet.map(|watched| (&watched.job, watched.uid)).collect();
    job.is_among(&of_fleet).then_some(agent)
}

/// Whether the agents of several nodes measure a job together.
pub(crate) fn is_measured_whole(daemons: &Daemons, job: &JobArguments) -> bool {
    of_whole_job(daemons, job).is_some()
}

/// On which terms a job is swapped.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms {
    /// The step; none for one that the nodes agree on.
    pub(crate) at_step: Option<u64>,
    /// The slowdown that is allowed from then on.
    pub(crate) guard: Option<Slowdown>,
}

/// Has the agents of a job's nodes agree on what all of it runs.
pub(crate) fn swap(
    (daemons, mut agent): (&Daemons, Connection<Agent>),
    job: &JobArguments,
    (target, terms): (SwapTarget, Terms),
    answer: &AnswerArguments,
    output: &mut Output,
) -> Result<(), Error> {
    let Terms { at_step, guard } = terms;
    let max_slowdown = guard.map(|Slowdown(share)| share);
    let (selector, wait) = (job.selector(), answer.wait());
    let request = AgentRequest::FleetSwap { job: selector, target, at_step, max_slowdown, wait };
    let response = ask(&mut agent, job, request)?;
    print((daemons, &agent), job, response, answer, output)
}

/// Asks for something that the nodes of a job have to agree on, and waits for it.
pub(crate) fn ask(
    agent: &mut Connection<Agent>,
    job: &JobArguments,
    request: AgentRequest,
) -> Result<AgentResponse, Error> {
    let waiting = format!("waiting for the nodes of job {} to agree", job.name());
    ask_patiently(agent, request, job.name(), &waiting)
}

/// Prints what was decided or done, by all nodes or, of a job that is on this one alone, by this one.
///
/// # Errors
/// If a node was late, or a driver on this one did not do it.
pub(crate) fn print(
    (daemons, agent): (&Daemons, &Connection<Agent>),
    job: &JobArguments,
    response: AgentResponse,
    answer: &AnswerArguments,
    output: &mut Output,
) -> Result<(), Error> {
    let swapped = match response {
        AgentResponse::FleetSwapped(swapped) => swapped,
        AgentResponse::Swapped(swapped) => {
            return answer.print((&mut daemons.pfod()?, job), &swapped, output);
        }
        other => return Err(agent.unexpected(&other).into()),
    };
    if answer.json() {
        output.json(&swapped)?;
    } else {
        output.text(&sentences(job.name(), &swapped, answer.wait()))?;
    }
    let FleetSwapped { step, nodes, late, .. } = swapped;
    if !late.is_empty() {
        return Err(BadOutcome::LateNodes { late: late.len() as u32, nodes, step }.into());
    }
    // A lock that the driver accepts and ignores is seen by who looks at the clocks.
    match answer.wait().then(|| in_force::look(&mut daemons.pfod()?, job)).transpose()? {
        Some(missing) if !missing.is_empty() => Err(BadOutcome::NotInForce(missing).into()),
        _ => Ok(()),
    }
}

/// Has the agents of a job's nodes agree on what all of it ran before.
pub(crate) fn roll_back(mut agent: Connection<Agent>, job: &JobArguments) -> Result<(), Error> {
    let (target, at_step, max_slowdown) = (SwapTarget::Previous, None, None);
    let selector = job.selector();
    let request =
        AgentRequest::FleetSwap { job: selector, target, at_step, max_slowdown, wait: false };
    match ask(&mut agent, job, request)? {
        AgentResponse::FleetSwapped(_) | AgentResponse::Swapped(_) => Ok(()),
        other => Err(agent.unexpected(&other).into()),
    }
}

/// What was decided or done.
fn sentences(job: &JobName, swapped: &FleetSwapped, waited: bool) -> String {
    let FleetSwapped { number, plan, step, nodes, changed, late } = swapped;
    let plan =
        plan.as_ref().map_or_else(|| "default clocks".to_owned(), |plan| format!("plan {plan}"));
    let when = match waited {
        false => format!("from step {step} on, on all {nodes} nodes"),
        true => format!("since step {step}, on {changed} of {nodes} nodes"),
    };
    let mut text = format!("job {job}: {plan} {when} (swap {number})\n");
    text.extend(late.iter().map(|late| format!("late: {late}\n")));
    text.lines().map(|line| harmless(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_of_a_whole_job_names_the_nodes_that_were_late() {
        let job = "j".parse().unwrap();
        let swapped = FleetSwapped {
            number: 4,
            plan: Some("p.json".into()),
            step: 801,
            nodes: 2,
            changed: 1,
            late: vec!["node b: it learned of the swap when step 804 had begun".into()],
        };
        assert_eq!(
            sentences(&job, &swapped, true),
            "job j: plan p.json since step 801, on 1 of 2 nodes (swap 4)\n\
             late: node b: it learned of the swap when step 804 had begun\n"
        );
        let decided = FleetSwapped { plan: None, late: Vec::new(), ..swapped };
        assert_eq!(
            sentences(&job, &decided, false),
            "job j: default clocks from step 801 on, on all 2 nodes (swap 4)\n"
        );
    }

    #[test]
    fn a_finding_is_one_line() {
        let wrong = Some("the store does not answer:\ntransport error".to_owned());
        let finding = FleetFinding { what: "https://e:2379".into(), wrong };
        assert_eq!(line(&finding).lines().count(), 1);
        assert_eq!(line(&FleetFinding { wrong: None, ..finding }), "https://e:2379: ok\n");
    }
}
