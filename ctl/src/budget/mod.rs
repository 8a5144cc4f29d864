//! `pfoctl budget`: what jobs may draw together, and what each gives up for it.

mod floor;
mod scope;
mod signing;
mod view;

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args, Subcommand};
use pfo_protocol::{
    AgentRequest, AgentResponse, BudgetChange, BudgetLevel, BudgetOrder, BudgetReport, BudgetScope,
    BudgetTerms, BudgetedJob, JobStatus, PartitionName, Uid,
};

pub(crate) use self::floor::BelowFloor;
use self::scope::Scope;
pub(crate) use self::signing::SigningError;
use self::signing::{KeyArguments, SignKey};
use crate::arguments::{GpuArguments, JobArguments, NoSuchJob, Slowdown};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::in_force;
use crate::outcome::BadOutcome;
use crate::output::Output;
use crate::user;

/// Keep the jobs of this node or of a fleet below a power, at the least loss of progress
///
/// Every two seconds (`every_s` in agent.toml) pfo-agent compares the power with the budget, and decides
/// which plan each job runs. A job without a frontier (`pfoctl plan load`) runs one clock for everything.
/// If plans and clocks are not enough, pfo-agent sets power limits.
#[derive(Subcommand)]
pub(crate) enum Budget {
    Set(Set),
    Terms(Terms),
    Status(Status),
    Explain(Explain),
    Clear(Clear),
    Partition(Partition),
    SignKey(SignKey),
}

/// Set the power that jobs may draw together
///
/// The power of all GPUs of the node counts or, with `--for fleet`, of all nodes; in the budget of a job,
/// a user or a partition only that of its jobs' GPUs. `site_w_per_gpu` of agent.toml counts for each of
/// these GPUs. A job belongs to the budget of the narrowest scope: its own, that of its user, of its
/// partition, of the node, or of the fleet. For a job over several nodes, budgets of the fleet come first.
/// The budget survives restarts of pfo-agent and boots of the node. For administrators.
#[derive(Args)]
#[command(group(ArgGroup::new("level").required(true).args(["power", "from"])))]
pub(crate) struct Set {
    /// The power, such as 900W, 40kW or 2.4MW
    #[arg(value_parser = pfo_budget::watts)]
    power: Option<f64>,

    /// A file on this node whose lines give a moment and the power from then on, such as 06:00,40kW: a time
    /// of every day in UTC, or seconds since 1970. pfo-agent reads the file every time it looks at the power
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    from: Option<String>,

    #[command(flatten)]
    scope: ScopeArguments,

    /// How fast the budget may rise, in watts a second
    #[arg(long, value_name = "POWER", value_parser = ramp)]
    up: Option<f64>,

    /// How fast the budget may fall, in watts a second. A drop that the file announces begins early enough to
    /// be complete in time
    #[arg(long, value_name = "POWER", value_parser = ramp)]
    down: Option<f64>,

    /// Set the budget even if no limit brings the GPUs down to it
    #[arg(long)]
    force: bool,

    /// An emergency: neither ramps nor floors count, and power limits hold jobs until they have changed
    #[arg(long, conflicts_with_all = ["up", "down"])]
    emergency: bool,

    #[command(flatten)]
    key: KeyArguments,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A ramp in watts a second, along which power moves.
fn ramp(text: &str) -> Result<f64, String> {
    let watts = pfo_budget::watts(text)?;
    let none = "power would never change; give more than 0 W, such as 500W, or leave it out";
    if watts > 0.0 { Ok(watts) } else { Err(none.to_owned()) }
}

fn weight(text: &str) -> Result<f64, String> {
    let weight = text.parse().ok().filter(|weight| BudgetTerms::WEIGHTS.contains(weight));
    weight.ok_or_else(|| {
        let (least, most) = (BudgetTerms::WEIGHTS.start(), BudgetTerms::WEIGHTS.end());
        format!("give a number from {least} to {most}, such as 8")
    })
}

/// Set how much jobs count, and how slow they may become
///
/// Each command replaces both terms of its scope: an option that is left out removes its term. A job has
/// the weight of the narrowest scope with a weight, and likewise its floor. For administrators, and for
/// the owners of jobs as far as `[budget]` in agent.toml lets them.
#[derive(Args)]
pub(crate) struct Terms {
    #[command(flatten)]
    scope: ScopeArguments,

    /// How much the progress of each job counts [default: the number of its GPUs]
    #[arg(long, value_name = "NUMBER", value_parser = weight)]
    weight: Option<f64>,

    /// How much longer than by itself a step may take at most [default: no floor]
    #[arg(long, value_name = "PERCENT")]
    floor: Option<Slowdown>,

    #[command(flatten)]
    key: KeyArguments,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show budgets, the power against each, and what jobs give up
///
/// You see your own jobs; administrators see all jobs and budgets.
#[derive(Args)]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Say what a job gives up for a budget, and why
#[derive(Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    job: JobArguments,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// End a budget: its jobs return to what they run by themselves
///
/// For administrators.
#[derive(Args)]
pub(crate) struct Clear {
    #[command(flatten)]
    scope: ScopeArguments,

    #[command(flatten)]
    key: KeyArguments,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Put the job on some GPUs into a partition of the scheduler, or end that
///
/// The prolog of the scheduler runs this on each node with the job's GPUs, and the epilog runs it with
/// --end. A job is in a partition if all of its GPUs on the node are, for the owner of the job. pfo-agent
/// remembers partitions over its own restarts, but not over a boot of the node. For administrators.
#[derive(Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["gpu", "device"]))]
pub(crate) struct Partition {
    /// The partition
    #[arg(required_unless_present = "end")]
    name: Option<PartitionName>,

    /// End the partition of these GPUs for this user; one for another user stays
    #[arg(long, conflicts_with = "name")]
    end: bool,

    /// The owner of the job, by name or number
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    uid: Uid,

    #[command(flatten)]
    gpus: GpuArguments,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ScopeArguments {
    /// Which jobs: `node`, `partition:NAME`, `user:NAME` or `job:NAME` on this node; `fleet`,
    /// `fleet/partition:NAME`, `fleet/user:NAME` or `fleet/job:NAME` on all nodes of the fleet
    #[arg(long = "for", value_name = "SELECTOR", default_value = "node")]
    scope: Scope,

    /// The owner of that job, by name or number
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    user: Option<Uid>,
}

impl ScopeArguments {
    fn scope(&self) -> BudgetScope {
        self.scope.clone().of(self.user)
    }
}

impl Budget {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let (report, json) = match self {
            Self::Set(set) => return set.run(daemons, output),
            Self::Terms(terms) => {
                (terms.key.ask(daemons, BudgetChange::Terms(terms.terms()))?, terms.json)
            }
            Self::Clear(clear) => {
                let change = BudgetChange::Clear(clear.scope.scope());
                (clear.key.ask(daemons, change)?, clear.json)
            }
            Self::Status(status) => (ask(daemons, AgentRequest::Budget)?, status.json),
            Self::Partition(partition) => {
                (ask(daemons, partition.request(daemons)?)?, partition.json)
            }
            Self::Explain(explain) => return explain.run(daemons, output),
            Self::SignKey(make) => return make.run(output),
        };
        if json {
            return output.json(&report);
        }
        let look = output.look();
        output.text(&view::report(&report, look))
    }
}

fn ask(daemons: &Daemons, request: AgentRequest) -> Result<BudgetReport, Error> {
    let mut agent = daemons.agent()?;
    match agent.ask(request)? {
        AgentResponse::Budget(report) => Ok(*report),
        other => Err(agent.unexpected(&other).into()),
    }
}

/// For how long jobs are looked at that a budget changes, and how often: pfo-agent decides every two
/// seconds, and the jobs change at their next step.
const LOOKED_AT_FOR: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Looks at the jobs of a new budget until it is kept, or some time has passed.
///
/// # Errors
/// If what it has a job run is not in force.
fn look(daemons: &Daemons, scope: &BudgetScope) -> Result<BudgetReport, Error> {
    let began = Instant::now();
    loop {
        let report = ask(daemons, AgentRequest::Budget)?;
        let status = daemons.pfod()?.status()?;
        let is_budgeted = |job: &&JobStatus| {
            let mut jobs = report.jobs.iter();
            jobs.any(|other| (&other.job, other.uid, &other.scope) == (&job.job, job.uid, scope))
        };
        let budgeted = status.jobs.iter().filter(is_budgeted);
        let missing: Vec<_> = budgeted.flat_map(|job| in_force::known(job, &status.gpus)).collect();
        if !missing.is_empty() {
            return Err(BadOutcome::NotInForce(missing).into());
        }
        let budget = report.budgets.iter().find(|budget| budget.order.scope == *scope);
        let kept = budget.is_none_or(|budget| {
            budget
                .drawn_w
                .zip(budget.budget_w)
                .is_some_and(|(drawn_w, budget_w)| drawn_w <= budget_w)
        });
        let runs = status.jobs.iter().any(|job| !job.ranks.is_empty());
        if !runs || kept || began.elapsed() > LOOKED_AT_FOR {
            return Ok(report);
        }
        sleep(LOOK_EVERY);
    }
}

impl Set {
    fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let order = self.order();
        let scope = order.scope.clone();
        let below = match (order.level.clone(), order.emergency) {
            (BudgetLevel::Watts(budget_w), false) => {
                floor::check((&scope, budget_w), self.force, &mut daemons.pfod()?)?
            }
            _ => None,
        };
        let report = self.key.ask(daemons, BudgetChange::Set(order))?;
        if self.json {
            output.json(&report)?;
        } else {
            let look = output.look();
            output.text(&view::report(&report, look))?;
            below.map_or(Ok(()), |below| output.text(&format!("{below}\n")))?;
        }
        let looked_at = look(daemons, &scope)?;
        let budget = looked_at.budgets.iter().find(|budget| budget.order.scope == scope);
        let missing = |budget| view::missing(budget, &looked_at.jobs);
        let missing = budget.filter(|_| !self.json).and_then(missing);
        missing.map_or(Ok(()), |missing| output.text(&format!("{missing}\n")))
    }

    fn order(&self) -> BudgetOrder {
        let level = match self.power {
            Some(watts) => BudgetLevel::Watts(watts),
            None => BudgetLevel::File(self.from.clone().unwrap_or_default()),
        };
        let Self { up, down, emergency, .. } = *self;
        let scope = self.scope.scope();
        BudgetOrder { scope, level, up_w_per_s: up, down_w_per_s: down, emergency }
    }
}

fn absolute(path: &str) -> Result<String, String> {
    let absolute = std::path::absolute(path).map_err(|error| error.to_string())?;
    absolute.into_os_string().into_string().map_err(|_| "it is no text".to_owned())
}

impl Partition {
    fn request(&self, daemons: &Daemons) -> Result<AgentRequest, Error> {
        let mut pfod = daemons.pfod()?;
        let gpus = self.gpus.all().map(|gpu| gpu.uuid(&mut pfod)).collect::<Result<_, _>>()?;
        Ok(AgentRequest::BudgetPartition { uid: self.uid, gpus, partition: self.name.clone() })
    }
}

impl Terms {
    fn terms(&self) -> BudgetTerms {
        let slowest = self.floor.map(|Slowdown(share)| 1.0 + share);
        BudgetTerms { scope: self.scope.scope(), weight: self.weight, slowest }
    }
}

impl Explain {
    fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let report = ask(daemons, AgentRequest::Budget)?;
        let Some(job) = self.find(&report)? else {
            return Err(self.without_budget(daemons)?.into());
        };
        if self.json {
            return output.json(job);
        }
        output.text(&view::explained(job, &report))
    }

    /// The job, if a budget covers it.
    fn find<'a>(&self, report: &'a BudgetReport) -> Result<Option<&'a BudgetedJob>, NoSuchJob> {
        let selector = self.job.selector();
        let named: Vec<_> = report.jobs.iter().filter(|job| job.job == selector.job).collect();
        let uid = selector.uid.unwrap_or_else(user::own);
        match (named.iter().find(|job| job.uid == uid), &named[..]) {
            (Some(job), _) => Ok(Some(job)),
            (None, [one, other, ..]) if selector.uid.is_none() => {
                Err(NoSuchJob::Several { job: selector.job, one: one.uid, other: other.uid })
            }
            (None, [only]) if selector.uid.is_none() => Ok(Some(only)),
            _ => Ok(None),
        }
    }

    fn without_budget(&self, daemons: &Daemons) -> Result<NoSuchJob, Error> {
        let jobs = daemons.pfod()?.status()?.jobs;
        let name = || self.job.name().clone();
        let there = self.job.only(&jobs)?;
        Ok(there.map_or_else(|| self.job.missing(), |_| NoSuchJob::WithoutBudget(name())))
    }
}
