//! `pfoctl tune`: finds the plan for a running job, shows on the job that it keeps its promise, and
//! leaves the job running it.

mod candidates;
mod contender;
mod instruction_times;
mod limit_search;
mod microbatches;
mod p2p_power;
mod profile_source;
mod report;
mod search;
mod tuning;
mod verification;

use clap::{Args, ValueEnum};
use pfo_planner::{Frontier, Options, Pipeline, Reconfigure, Spread, Watts, Zeus, ZeusSearch};
use pfo_protocol::TrialLength;

use self::candidates::Candidates;
use self::contender::Contender;
use self::limit_search::{FoundLimits, LimitSearch};
use self::profile_source::{ProfileArguments, Sourced};
use self::report::{PlannedPower, PlannedWith, PowerOrigin, Report};
use self::search::{Found, Search};
use self::tuning::{Proof, Tuning};
use self::verification::Verdict;
use crate::error::Error;
use crate::job::JobArguments;
use crate::output::Output;
use crate::p2p::known::{self, Known};
use crate::plan::comparison::Cost;
use crate::plan::measured::{Measured, TreatmentArguments};
use crate::plan::pipeline::ScheduleArguments;
use crate::plan::slowdown::Slowdown;
use crate::plan::tuning::OnlineArguments;
use crate::socket::Sockets;
use crate::trial::{Held, Interrupt, require_every_stage};

/// Plans that are tried, each next one faster, before the job is left at default clocks.
const MOST_CANDIDATES: usize = 5;

/// Find the plan that saves most on a running job, and prove it on the job
///
/// The plan and default clocks take turns on the job. A plan that makes it slower than is allowed
/// gives way to a faster one; if none saves energy the job is left at default clocks, as it is when
/// this is interrupted, however that is. Run again, it goes on with what was measured of the profile.
/// A daemon that restarts meanwhile is waited for. Every stage has to have a rank on this node.
#[derive(Args)]
pub(crate) struct Tune {
    #[command(flatten)]
    job: JobArguments,

    /// How much longer a step may take than at default clocks
    #[arg(long, value_name = "PERCENT", default_value = "0.5%")]
    max_slowdown: Slowdown,

    #[command(flatten)]
    treatment: TreatmentArguments,

    /// Microbatches of a step [default: as many forwards as a rank runs in one]
    #[arg(long, value_name = "M")]
    microbatches: Option<u32>,

    #[command(flatten)]
    schedule: ScheduleArguments,

    /// What a GPU draws while it only waits for its neighbour stage, in watts [default: what is
    /// known of the GPU's model, `pfoctl p2p show`, or else what the job's waits draw]
    #[arg(long, value_name = "WATTS", allow_negative_numbers = true)]
    p2p_power: Option<f64>,

    /// Whose plans to try
    #[arg(long, value_enum, default_value_t = Policy::Pfo)]
    policy: Policy,

    /// How EnvPipe goes on from its first clocks, by what is measured
    #[arg(long, value_enum, default_value_t = Raising::Balanced)]
    reconfigure: Raising,

    /// What Zeus' policies look for
    #[arg(long, value_enum, default_value_t = Knob::PowerLimit)]
    knob: Knob,

    /// How far apart the power limits are that Zeus' policies try, from the highest on, in watts
    #[arg(long, value_name = "WATTS", default_value_t = 25,
          value_parser = clap::value_parser!(u32).range(1..))]
    power_step_w: u32,

    /// Rounds of a turn of the plan and one of default clocks
    ///
    /// An odd number is made even. While the interval of the slowdown holds the limit or that of the saving
    /// holds 0, up to three times as many are run. After that, the plan is kept if its slowdown is most
    /// likely within the limit and its saving certain, and gives way otherwise.
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

    #[command(flatten)]
    profile: ProfileArguments,

    #[command(flatten)]
    online: OnlineArguments,
}

/// Whose plans are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// The frontier's plan of least energy within the slowdown
    Pfo,
    /// EnvPipe, reconfiguring while the job runs
    Envpipe,
    /// Zeus' cost over one power limit for all stages, each tried on the job, among those that are fast
    /// enough
    ZeusGlobal,
    /// Zeus' cost over one power limit for each stage, balanced by what forwards are measured to take;
    /// likewise
    ZeusPerStage,
}

/// What Zeus looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Knob {
    /// Power limits, as Zeus does. They take no profile; the clocks are the driver's
    PowerLimit,
    /// Clocks, out of the profile, in the place of power limits
    Clock,
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
        let interrupt = Interrupt::prepare()?;
        require_every_stage(sockets, &self.job)?;
        let report = match (self.policy, self.knob) {
            (Policy::ZeusGlobal, Knob::PowerLimit) => {
                self.limit_power(sockets, interrupt, ZeusSearch::Global)?
            }
            (Policy::ZeusPerStage, Knob::PowerLimit) => {
                self.limit_power(sockets, interrupt, ZeusSearch::PerStage)?
            }
            _ => self.plan(sockets, interrupt)?,
        };
        if self.json {
            output.json(&report)?;
        } else {
            let look = output.look();
            output.text(&report.render(look))?;
        }
        match report.kept {
            Some(_) => Ok(()),
            None => Err(Error::NothingKept { job: report.job }),
        }
    }

    /// Tunes with plans over a profile.
    fn plan(&self, sockets: &Sockets, interrupt: Interrupt) -> Result<Report, Error> {
        let Sourced { csv, name, origin } = self.profile.get(sockets, &self.job, &interrupt)?;
        let Measured { profile, .. } = self.treatment.of(&csv, &name)?;
        let mut tuning = self.begin(sockets, interrupt)?;
        let microbatches = self.microbatches.or_else(|| microbatches::of_trial(&tuning.baseline));
        if microbatches.is_none() && !self.schedule.has_order() {
            return Err(Error::UnknownMicrobatches { job: self.job.name().clone() });
        }
        let pipeline = self.schedule.of(&profile, microbatches)?;
        let p2p_power = self.p2p_power(&mut tuning)?;
        let power = Watts(p2p_power.watts);
        tuning.report.planned_with =
            Some(PlannedWith { profile: name, profile_origin: origin, p2p_power });
        match self.policy {
            Policy::Pfo => self.try_frontier(&mut tuning, &pipeline, power)?,
            _ => self.try_found(&mut tuning, &pipeline, power)?,
        }
        tuning.end()
    }

    /// Tunes with power limits.
    fn limit_power(
        &self,
        sockets: &Sockets,
        interrupt: Interrupt,
        search: ZeusSearch,
    ) -> Result<Report, Error> {
        let mut tuning = self.begin(sockets, interrupt)?;
        let zeus = self.zeus(&tuning);
        let limit_search = LimitSearch {
            held: &mut tuning.held,
            baseline: &tuning.baseline,
            step_w: self.power_step_w,
            length: self.search_length(),
        };
        let FoundLimits { limits_w, searched } = limit_search.zeus(zeus, search)?;
        tuning.report.search_trials = searched.len() as u32;
        tuning.report.searched = searched;
        let contender = Contender::power_limits(&tuning.report.policy, limits_w);
        tuning.try_out(&contender)?;
        tuning.end()
    }

    fn begin<'a>(
        &'a self,
        sockets: &'a Sockets,
        interrupt: Interrupt,
    ) -> Result<Tuning<'a>, Error> {
        let held = Held::new(sockets, &self.job, interrupt, "measuring default clocks")?;
        let policy = self.policy.to_possible_value();
        let policy = policy.map_or_else(String::new, |policy| policy.get_name().to_owned());
        let (max_slowdown, rounds, turn) = (self.max_slowdown.0, self.rounds, self.turn());
        Tuning::begin(held, policy, Proof { max_slowdown, rounds, turn })
    }

    fn p2p_power(&self, tuning: &mut Tuning) -> Result<PlannedPower, Error> {
        if let Some(watts) = self.p2p_power {
            return Ok(PlannedPower { watts, origin: PowerOrigin::Given });
        }
        let model = tuning.baseline.ranks.first().map(|rank| rank.gpu_model.as_str());
        let known = tuning.held.patiently(|connection| known::of(connection, model))?;
        if let Some(Known { power_w: watts, origin }) = known {
            return Ok(PlannedPower { watts, origin: PowerOrigin::Stored(origin) });
        }
        let waits = p2p_power::of_waits(&tuning.baseline);
        let waits = waits.map(|Watts(watts)| PlannedPower { watts, origin: PowerOrigin::Waits });
        waits.ok_or_else(|| Error::NoWaits { job: self.job.name().clone() })
    }

    /// The plans of our frontier, as long as they prove too slow.
    fn try_frontier(
        &self,
        tuning: &mut Tuning,
        pipeline: &Pipeline,
        power: Watts,
    ) -> Result<(), Error> {
        let progress = tuning.held.progress();
        progress.now("planning".to_owned());
        let options = Options { spread: Spread::Useful, ..Options::default() };
        let frontier = Frontier::optimize(pipeline, power, options, &|done| progress.show(done))?;
        let default_s = tuning.default_s();
        let slowdown = candidates::aim(self.max_slowdown.0);
        let all_max = Cost::at_highest_clocks(pipeline.profile(), &frontier.plan(0)?, power)?;
        let mut candidates =
            Candidates::new(&frontier, all_max.iteration_time_s, default_s, slowdown);
        let mut over_s = 0.0;
        for number in 1..=MOST_CANDIDATES {
            let Some(plan) = candidates.next(over_s)? else { break };
            match tuning.try_out(&Contender::plan(format!("pfo {number}"), &plan)?)? {
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
        tuning: &mut Tuning,
        pipeline: &Pipeline,
        p2p_power: Watts,
    ) -> Result<(), Error> {
        let zeus = self.zeus(tuning);
        let (held, length) = (&mut tuning.held, self.search_length());
        let search = Search { held, pipeline, p2p_power, length };
        let Found { plan, trials } = match self.policy {
            Policy::ZeusGlobal => search.zeus(zeus, ZeusSearch::Global),
            Policy::ZeusPerStage => search.zeus(zeus, ZeusSearch::PerStage),
            Policy::Envpipe | Policy::Pfo => {
                let mut envpipe = self.online.envpipe();
                envpipe.reconfigure = match self.reconfigure {
                    Raising::Greedy => Reconfigure::Greedy,
                    Raising::Balanced => Reconfigure::Balanced,
                };
                search.envpipe(envpipe)
            }
        }?;
        tuning.report.search_trials = trials;
        let contender = Contender::plan(tuning.report.policy.clone(), &plan)?;
        tuning.try_out(&contender)?;
        Ok(())
    }

    /// Zeus, which chooses among what is as fast as is asked for.
    fn zeus(&self, tuning: &Tuning) -> Zeus {
        let slowest_s = (1.0 + candidates::aim(self.max_slowdown.0)) * tuning.default_s();
        Zeus { slowest_s: Some(slowest_s), ..self.online.zeus() }
    }

    fn search_length(&self) -> TrialLength {
        TrialLength { steps: self.search_steps, ..self.turn() }
    }

    fn turn(&self) -> TrialLength {
        TrialLength { settling_steps: self.settling_steps, steps: self.steps }
    }
}
