//! `pfoctl tune`: finds the plan for a running job, shows on the job that it keeps its promise, and
//! leaves the job running it.

mod candidates;
mod instruction_times;
mod p2p_power;
mod report;
mod search;
mod verification;

use clap::{Args, ValueEnum};
use pfo_planner::{
    Combine, Frontier, Options, Pipeline, Plan, Reconfigure, Spread, Watts, ZeusSearch,
};
use pfo_protocol::{JobName, TrialLength, TrialResult, TrialRun};

use self::candidates::Candidates;
use self::report::{P2pPower, Report, Tried};
use self::search::{Found, Search};
use self::verification::{Compared, Side, Verdict, Verification};
use crate::error::Error;
use crate::job::JobArguments;
use crate::output::Output;
use crate::plan::comparison::Cost;
use crate::plan::measured::{Measured, NoiseArgument};
use crate::plan::pipeline::PipelineArguments;
use crate::plan::slowdown::Slowdown;
use crate::plan::tuning::OnlineArguments;
use crate::socket::Sockets;
use crate::trial::{Held, Window};

/// Plans that are tried, each next one faster, before the job is left at default clocks.
const MOST_CANDIDATES: usize = 5;

/// Find the plan that saves most on a running job, and prove it on the job
///
/// The plan and default clocks take turns on the job. A plan that makes it slower than is allowed
/// gives way to a faster one; if none saves energy the job is left at default clocks, as it is when
/// this is interrupted, however that is. A daemon that restarts meanwhile is waited for.
#[derive(Args)]
pub(crate) struct Tune {
    #[command(flatten)]
    job: JobArguments,

    /// How much longer a step may take than at default clocks
    #[arg(long, value_name = "PERCENT", default_value = "0.5%")]
    max_slowdown: Slowdown,

    /// Time and energy of each instruction, as `plan optimize` takes it
    #[arg(long, value_name = "PROFILE.csv")]
    profile: String,

    /// How rows of several ranks of a stage are combined, as for `plan optimize`
    #[arg(long, value_name = "HOW", default_value_t = Combine::Mean)]
    combine: Combine,

    #[command(flatten)]
    noise: NoiseArgument,

    #[command(flatten)]
    pipeline: PipelineArguments,

    /// What a GPU draws while it only waits for its neighbour stage, in watts [default: what the
    /// job's waits draw]
    #[arg(long, value_name = "WATTS", allow_negative_numbers = true)]
    p2p_power: Option<f64>,

    /// Whose plans to try
    #[arg(long, value_enum, default_value_t = Policy::Pfo)]
    policy: Policy,

    /// How EnvPipe goes on from its first clocks, by what is measured
    #[arg(long, value_enum, default_value_t = Raising::Balanced)]
    reconfigure: Raising,

    #[command(flatten)]
    online: OnlineArguments,

    /// Turns of the plan and of default clocks at least; three times as many while it is undecided
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,

    /// Steps to measure in each turn
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,

    /// Steps to measure in each trial of a search of EnvPipe or Zeus
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..))]
    search_steps: u32,

    /// Steps to run before any are measured
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    settling_steps: u32,

    /// Print JSON: every plan that was tried, with its saving and slowdown, and the one that is kept
    #[arg(long)]
    json: bool,
}

/// Whose plans are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// The frontier's plan of least energy within the slowdown
    Pfo,
    /// EnvPipe, reconfiguring while the job runs
    Envpipe,
    /// Zeus' cost over one clock for all stages, each tried on the job; clocks take the place of its
    /// power limits
    ZeusGlobal,
    /// Zeus' cost over one clock for each stage, balanced by what forwards are measured to take;
    /// likewise
    ZeusPerStage,
}

/// EnvPipe's `reconfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Raising {
    /// One instruction at a time
    Greedy,
    /// All of the lowest clock on the critical path at a time
    Balanced,
}

impl Tune {
    /// Tunes, and tells what came of it.
    pub(crate) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let Measured { profile, .. } =
            Measured::read(&self.profile, self.combine, self.noise.noise)?;
        let pipeline = self.pipeline.of(&profile)?;
        let mut held = Held::new(sockets, &self.job, "measuring default clocks")?;
        let baseline = held.trial(&TrialRun::DefaultClocks, self.turn())?;
        let default_clocks = Window::of(held.job(), &baseline)?;
        let mut report = Report {
            job: held.job().clone(),
            policy: self
                .policy
                .to_possible_value()
                .map_or_else(String::new, |policy| policy.get_name().to_owned()),
            max_slowdown: self.max_slowdown.0,
            profile: self.profile.clone(),
            p2p_power: self.p2p_power(held.job(), &baseline)?,
            default_clocks: (&default_clocks).into(),
            search_trials: 0,
            tried: Vec::new(),
            kept: None,
            method: Report::METHOD,
        };
        match self.policy {
            Policy::Pfo => self.try_frontier(&mut held, &pipeline, &default_clocks, &mut report)?,
            _ => self.try_found(&mut held, &pipeline, &mut report)?,
        }
        if report.kept.is_none() {
            held.let_go()?;
        }
        let job = held.job();
        drop(held);
        if self.json {
            output.json(&report)?;
        } else {
            let look = output.look();
            output.text(&report.render(look))?;
        }
        match report.kept {
            Some(_) => Ok(()),
            None => Err(Error::NothingKept { job: job.clone() }),
        }
    }

    fn p2p_power(&self, job: &JobName, baseline: &TrialResult) -> Result<P2pPower, Error> {
        let power = P2pPower::of(self.p2p_power, p2p_power::of_waits(baseline));
        power.ok_or_else(|| Error::NoWaits { job: job.clone() })
    }

    /// The plans of our frontier, as long as they prove too slow.
    fn try_frontier(
        &self,
        held: &mut Held,
        pipeline: &Pipeline,
        default_clocks: &Window,
        report: &mut Report,
    ) -> Result<(), Error> {
        let power = Watts(report.p2p_power.watts);
        held.progress().now("planning".to_owned());
        let options = Options { spread: Spread::Useful, ..Options::default() };
        let progress = held.progress();
        let frontier = Frontier::optimize(pipeline, power, options, &|done| progress.show(done))?;
        let default_s = default_clocks.time_s();
        let slowdown = candidates::aim(self.max_slowdown.0);
        let all_max = Cost::at_highest_clocks(pipeline.profile(), &frontier.plan(0)?, power)?;
        let mut candidates =
            Candidates::new(&frontier, all_max.iteration_time_s, default_s, slowdown);
        let mut over_s = 0.0;
        for number in 1..=MOST_CANDIDATES {
            let Some(plan) = candidates.next(over_s)? else { break };
            match self.try_plan(held, &format!("pfo {number}"), &plan, report)? {
                (Verdict::TooSlow, compared) => {
                    over_s = (compared.slowdown.estimate - slowdown) * default_s;
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// The plan that another policy finds on the job.
    fn try_found(
        &self,
        held: &mut Held,
        pipeline: &Pipeline,
        report: &mut Report,
    ) -> Result<(), Error> {
        let search = Search {
            held,
            pipeline,
            p2p_power: Watts(report.p2p_power.watts),
            length: TrialLength { steps: self.search_steps, ..self.turn() },
        };
        let Found { plan, trials } = match self.policy {
            Policy::ZeusGlobal => search.zeus(self.online.zeus(), ZeusSearch::Global),
            Policy::ZeusPerStage => search.zeus(self.online.zeus(), ZeusSearch::PerStage),
            Policy::Envpipe | Policy::Pfo => {
                let mut envpipe = self.online.envpipe();
                envpipe.reconfigure = match self.reconfigure {
                    Raising::Greedy => Reconfigure::Greedy,
                    Raising::Balanced => Reconfigure::Balanced,
                };
                search.envpipe(envpipe)
            }
        }?;
        report.search_trials = trials;
        self.try_plan(held, &report.policy.clone(), &plan, report)?;
        Ok(())
    }

    /// Runs a plan and default clocks in turns, and keeps the plan if it is worth it.
    fn try_plan(
        &self,
        held: &mut Held,
        label: &str,
        plan: &Plan,
        report: &mut Report,
    ) -> Result<(Verdict, Compared), Error> {
        let json = plan.to_json()?;
        let run = TrialRun::Plan { label: label.to_owned(), plan: json.into_bytes() };
        let mut verification = Verification::new(self.max_slowdown.0, self.rounds);
        let (verdict, compared) = loop {
            if let Some(decided) = verification.verdict().zip(verification.compared()) {
                break decided;
            }
            self.show_progress(held, label, &verification);
            let trial = match verification.next() {
                Side::DefaultClocks => held.trial(&TrialRun::DefaultClocks, self.turn())?,
                Side::Plan => held.trial(&run, self.turn())?,
            };
            verification.observe(&Window::of(held.job(), &trial)?);
        };
        report.tried.push(Tried::new(label, plan, verdict, compared));
        if verdict == Verdict::Kept {
            report.kept = held.keep(&run)?;
        }
        Ok((verdict, compared))
    }

    fn show_progress(&self, held: &Held, label: &str, verification: &Verification) {
        let (turns, done) = verification.progress();
        let left = (turns - done) as u64 * u64::from(self.settling_steps + self.steps);
        let takes = held.takes(left).unwrap_or_default();
        held.progress()
            .now(format!("proving plan {label}, turn {} of {turns}, {takes} left", done + 1));
        held.progress().show(done as f64 / turns as f64);
    }

    fn turn(&self) -> TrialLength {
        TrialLength { settling_steps: self.settling_steps, steps: self.steps }
    }
}
