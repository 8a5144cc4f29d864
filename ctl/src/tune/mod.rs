//! `pfoctl tune`: finds the plan for a running job, proves on the job that it keeps its promise,
//! and leaves the job running it.

mod candidates;
mod changes;
mod contender;
mod error;
mod held_up;
mod instruction_times;
mod limit_search;
mod microbatches;
mod own_order;
mod p2p_power;
mod planned_power;
mod profile_source;
mod report;
mod search;
mod switching;
mod transfers;
mod tuned_job;
mod turn;
mod useful_clocks;
mod verification;
mod with_plans;
mod with_power_limits;

use clap::{Args, ValueEnum};
use pfo_planner::{PerStage, Watts, Zeus, ZeusSearch};
use pfo_protocol::{TrialLength, TrialResult};

pub(crate) use self::error::TuneError;
pub(crate) use self::profile_source::ProfileArguments;
use self::report::Report;
use self::tuned_job::{Proof, TunedJob};
use crate::arguments::{JobArguments, Slowdown, number};
use crate::daemons::{Agent, Daemons};
use crate::error::Error;
use crate::failure::Failure;
use crate::fleet::is_measured_whole;
use crate::output::Output;
use crate::planning::file;
use crate::planning::measured::TreatmentArguments;
use crate::planning::pipeline::ScheduleArguments;
use crate::planning::policy_options::OnlineArguments;
use crate::progress::Progress;
use crate::report as page;
use crate::trial::{
    Held, Interrupt, Measuring, Window, patiently, require_energy_counters, require_every_stage,
};

/// Find the plan that saves most energy on a running job, and prove it on the job
///
/// The plan and default clocks take turns on the job. A plan that makes the job slower than allowed
/// is replaced by a faster one. Where a plan saves less than predicted, because changes of clocks cost
/// more than is known, plans that change clocks less often are tried, too, and the one that saves most
/// is kept. If no plan saves energy, the job stays at default clocks. After an interruption the job
/// returns to default clocks, and the next run reuses what was measured of the profile. A restart of a
/// daemon is waited for. Every stage must have a rank on this node, or the job be one of a fleet, all of
/// whose nodes are measured; every GPU must have an energy counter.
///
/// The plan is for the order in which the job runs its instructions, which pfo-agent reads from one of
/// its steps, unless --schedule or --order gives another.
///
/// Where power limits keep the GPUs below the clocks that the profile asked for, no plan asks for
/// more than they hold. The report says what that alone saves.
///
/// Transfers between stages are planned with what they take on the job, if its ranks are on one node:
/// the clocks of several nodes do not compare.
///
/// Without pfo-agent, --profile, --microbatches and --p2p-power must be given, and transfers take no
/// time unless --transfer-ms says it.
#[derive(Args)]
pub(crate) struct Tune {
    #[command(flatten)]
    job: JobArguments,

    /// How much longer a step may take than at default clocks
    #[arg(long, value_name = "PERCENT", default_value = "0.5%")]
    max_slowdown: Slowdown,

    #[command(flatten)]
    treatment: TreatmentArguments,

    /// Microbatches of a step [default: the number of forwards that a rank runs in a step]
    #[arg(long, value_name = "M", value_parser = number::positive)]
    microbatches: Option<u32>,

    #[command(flatten)]
    schedule: ScheduleArguments,

    /// P2P-blocking power: what a GPU draws while it only waits for its neighbour stage; where stages
    /// run on different models, one for each stage [default: that of each stage's GPU model in `pfoctl
    /// p2p show` or, if there is none, that of the job's waits]
    #[arg(
        long,
        value_name = "WATTS,…",
        allow_negative_numbers = true,
        value_parser = number::watts_of_stages
    )]
    p2p_power: Option<PerStage<Watts>>,

    /// System whose plans to try
    #[arg(long, value_enum, default_value_t = Policy::Pfo)]
    policy: Policy,

    /// How EnvPipe raises clocks after it has measured the first ones
    #[arg(long, value_enum, default_value_t = Raising::Balanced)]
    reconfigure: Raising,

    /// What Zeus' policies search over
    #[arg(long, value_enum, default_value_t = Knob::PowerLimit)]
    knob: Knob,

    /// Distance between the power limits that Zeus' policies try, from the highest down, in watts
    #[arg(long, value_name = "WATTS", default_value = "25", value_parser = number::positive)]
    power_step_w: u32,

    /// Number of A/B rounds (plan, then default clocks)
    ///
    /// An odd number is rounded up. While the interval of the slowdown contains the limit or that
    /// of the saving contains 0, up to three times as many rounds are run. After that, the plan is
    /// kept if its slowdown is most likely within the limit and its saving is certain, with exit code
    /// 6, and rejected otherwise.
    #[arg(long, value_name = "N", default_value = "4", value_parser = number::whole(2..=1000))]
    rounds: u32,

    /// Steps to measure in each turn; more of them if they take less than 2 s together, because
    /// energy counters are refreshed seldom
    #[arg(long, value_name = "N", default_value = "5", value_parser = number::positive)]
    steps: u32,

    /// Steps to measure in each trial of a search of EnvPipe or Zeus
    #[arg(long, value_name = "N", default_value = "2", value_parser = number::positive)]
    search_steps: u32,

    /// Steps to run before each measurement; at least four where the plan changes clocks, which pfod asks
    /// for ahead once it knows how long instructions take
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::positive)]
    settling_steps: u32,

    /// Leave no guard: nothing compares the plan with default clocks later on
    ///
    /// Otherwise pfo-agent does, and corrects the plan, or brings the job back to default clocks, if
    /// it no longer keeps the allowed slowdown, as with `pfoctl plan guard`. The frontier that the
    /// plan is from is loaded for that.
    #[arg(long)]
    no_guard: bool,

    /// Write the plan that was kept to this file
    #[arg(long, short, value_name = "PLAN.json")]
    output: Option<String>,

    /// Write a page about the job to this file, as `pfoctl report` does, with what was measured here
    #[arg(long, value_name = "REPORT.html")]
    report: Option<String>,

    /// Print JSON: every plan that was tried, with its saving and slowdown, and the one that was
    /// kept
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    profile: ProfileArguments,

    #[command(flatten)]
    online: OnlineArguments,
}

/// The system whose plans are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// The plan of least energy of the frontier within the allowed slowdown
    Pfo,
    /// EnvPipe, which reconfigures while the job runs
    Envpipe,
    /// Zeus' cost over one power limit for all stages; each limit is tried on the job, and slow
    /// ones are not chosen
    ZeusGlobal,
    /// Zeus' cost over one power limit for each stage, balanced by the measured times of forwards
    ZeusPerStage,
}

/// What Zeus searches over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Knob {
    /// Power limits, as Zeus does; no profile is required, and the driver chooses the clocks
    PowerLimit,
    /// Clocks of the profile
    Clock,
}

/// EnvPipe's `reconfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Raising {
    /// One instruction at a time
    Greedy,
    /// All instructions of the lowest clock on the critical path at a time
    Balanced,
}

impl Tune {
    /// Tunes, and prints the report.
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let interrupt = Interrupt::prepare()?;
        // Only the agent measures.
        drop(daemons.agent()?);
        let whole = is_measured_whole(daemons, &self.job);
        if !whole {
            require_every_stage(daemons, &self.job)?;
        }
        require_energy_counters(daemons, &self.job)?;
        let mut report = match (self.policy, self.knob) {
            (Policy::ZeusGlobal, Knob::PowerLimit) => {
                self.limit_power(daemons, &interrupt, ZeusSearch::Global)?
            }
            (Policy::ZeusPerStage, Knob::PowerLimit) => {
                self.limit_power(daemons, &interrupt, ZeusSearch::PerStage)?
            }
            _ => self.plan::<Agent>(daemons, &interrupt, whole)?,
        };
        report.guard(daemons, &self.job, (!self.no_guard).then_some(self.max_slowdown));
        if self.json {
            output.json(&report)?;
        } else {
            let look = output.look();
            output.text(&report.render(look))?;
        }
        if let (Some(name), Some(plan)) = (&self.output, &report.kept_plan) {
            let json = plan.to_json().map_err(Failure::from)?;
            file::write(name, json.as_bytes())?;
        }
        if let Some(name) = &self.report {
            page::write(daemons, &self.job, report.beside()?, name)?;
        }
        match report.kept {
            Some(_) if report.is_certain() => Ok(()),
            Some(_) => Err(TuneError::Uncertain { job: report.job }.into()),
            None => Err(TuneError::NothingKept { job: report.job }.into()),
        }
    }

    /// Holds the job for the proof. A trial at default clocks that was run before need not be
    /// repeated.
    fn hold<'a, D: Measuring>(
        &'a self,
        daemons: &'a Daemons,
        interrupt: &Interrupt,
        baseline: Option<TrialResult>,
    ) -> Result<TunedJob<'a, D>, Error> {
        let what = "measuring default clocks";
        // It answered when this began. If it restarts just now, that passes.
        let mut held = patiently(&Progress::new(what), || {
            Held::new(daemons, &self.job, interrupt.clone(), what)
        })?;
        let baseline = match baseline {
            Some(baseline) => baseline,
            None => D::windows(&self.baseline(&mut held)?).clone(),
        };
        let policy = self.policy.to_possible_value();
        let policy = policy.map_or_else(String::new, |policy| policy.get_name().to_owned());
        let window = Window::of(self.job.name(), &baseline)?;
        let (max_slowdown, rounds) = (self.max_slowdown.0, self.rounds);
        let turn = self.turn(window.time_s());
        let report = Report::new(self.job.name().clone(), policy, max_slowdown, &window);
        Ok(TunedJob::new(held, report, Proof { max_slowdown, rounds, turn }))
    }

    /// Zeus, which chooses among what is within the allowed slowdown of a step at default clocks.
    fn zeus(&self, default_s: f64) -> Zeus {
        let slowest_s = (1.0 + candidates::aim(self.max_slowdown.0)) * default_s;
        Zeus { slowest_s: Some(slowest_s), ..self.online.zeus() }
    }

    fn search_length(&self) -> TrialLength {
        TrialLength { settling_steps: self.settling_steps, steps: self.search_steps }
    }
}
