//! `pfoctl compare tune`: as `pfoctl tune`, with the plans of another system, and with each of the terms as
//! an option.

use clap::{Args, ValueEnum};
use pfo_experiment::{Knob, Raising, System, Terms, TuneOrder};
use pfo_planner::{PerStage, Watts};

use crate::arguments::{JobArguments, Slowdown, number};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::Output;
use crate::planning::measured::TreatmentArguments;
use crate::planning::pipeline::ScheduleArguments;
use crate::planning::policy_options::OnlineArguments;
use crate::profile::{ProfileArguments, SweepArguments};
use crate::tune::{ResultArguments, begin_and_watch};

/// Try the plans of another system on a running job, and prove them as `pfoctl tune` does
///
/// pfo-agent lets EnvPipe and Zeus search on the job, trial by trial. Then it alternates between what they
/// found and default clocks, as for plans of pfo. `pfoctl tune JOB --attach` and `--stop` work here, too.
#[derive(Args)]
pub(crate) struct CompareTune {
    #[command(flatten)]
    job: JobArguments,

    /// System whose plans to try
    #[arg(long, value_enum, default_value_t = Policy::Pfo)]
    policy: Policy,

    /// How EnvPipe raises clocks after it has measured the first ones
    #[arg(long, value_enum, default_value_t = Reconfigure::Balanced)]
    reconfigure: Reconfigure,

    /// What Zeus' policies search over
    #[arg(long, value_enum, default_value_t = Search::PowerLimit)]
    knob: Search,

    /// Distance between the power limits that Zeus' policies try, from the highest down, in watts
    #[arg(long, value_name = "WATTS", default_value = "25", value_parser = number::positive)]
    power_step_w: u32,

    /// Steps to measure in each trial of a search by EnvPipe or Zeus
    #[arg(long, value_name = "N", default_value = "2", value_parser = number::positive)]
    search_steps: u32,

    #[command(flatten)]
    measuring: MeasuringArguments,

    #[command(flatten)]
    treatment: TreatmentArguments,

    #[command(flatten)]
    schedule: ScheduleArguments,

    #[command(flatten)]
    result: ResultArguments,

    #[command(flatten)]
    profile: ProfileArguments,

    #[command(flatten)]
    sweep: SweepArguments,

    #[command(flatten)]
    online: OnlineArguments,
}

/// How thoroughly the job is measured, and what it is planned with.
#[derive(Args)]
struct MeasuringArguments {
    /// How much longer a step may take than at default clocks
    #[arg(long, value_name = "PERCENT", default_value = "0.5%")]
    max_slowdown: Slowdown,

    /// Microbatches of a step [default: the number of forwards that a rank runs in a step]
    #[arg(long, value_name = "M", value_parser = number::positive)]
    microbatches: Option<u32>,

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

    /// Number of rounds (default clocks, the plan twice, default clocks) before an uncertain verdict
    ///
    /// The comparison stops at the round that makes a verdict certain, but keeps no plan before half of
    /// these rounds. While the interval of the slowdown contains the limit, or that of the saving contains
    /// 0, pfo-agent runs up to three times as many rounds, if it expects them to make the verdict certain.
    /// Otherwise it keeps the plan, with exit code 6, if the slowdown is most likely within the limit and
    /// the saving is certain, and rejects it if not.
    #[arg(long, value_name = "N", default_value = "4", value_parser = number::whole(2..=1000))]
    rounds: u32,

    /// Steps to measure in each turn; more if they take less than 2 s together, because the driver refreshes
    /// energy counters seldom
    #[arg(long, value_name = "N", default_value = "2", value_parser = number::positive)]
    steps: u32,

    /// Steps to run before each measurement; more if they take less than 0.1 s together, and at least four
    /// of a plan that changes clocks: pfod requests clocks ahead once it knows how long instructions take
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::positive)]
    settling_steps: u32,

    /// Set no guard: nothing compares the plan with default clocks later on
    #[arg(long)]
    no_guard: bool,
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
enum Search {
    /// Power limits, as Zeus does; no profile is required, and the driver chooses the clocks
    PowerLimit,
    /// Clocks of the profile
    Clock,
}

/// EnvPipe's `reconfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reconfigure {
    /// One instruction at a time
    Greedy,
    /// All instructions of the lowest clock on the critical path at a time
    Balanced,
}

impl CompareTune {
    pub(super) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        begin_and_watch(daemons, &self.job, &self.order()?, (&self.result, output))
    }

    fn order(&self) -> Result<TuneOrder, Error> {
        let mut terms = Terms {
            policy: match self.policy {
                Policy::Pfo => System::Pfo,
                Policy::Envpipe => System::Envpipe,
                Policy::ZeusGlobal => System::ZeusGlobal,
                Policy::ZeusPerStage => System::ZeusPerStage,
            },
            reconfigure: match self.reconfigure {
                Reconfigure::Greedy => Raising::Greedy,
                Reconfigure::Balanced => Raising::Balanced,
            },
            knob: match self.knob {
                Search::PowerLimit => Knob::PowerLimit,
                Search::Clock => Knob::Clock,
            },
            power_step_w: self.power_step_w,
            search_steps: self.search_steps,
            ..Terms::default()
        };
        self.measuring.fill(&mut terms);
        self.treatment.fill(&mut terms);
        self.sweep.fill(&mut terms);
        self.online.fill(&mut terms);
        let order = self.schedule.fill(&mut terms)?;
        let profile = self.profile.fill(&mut terms)?;
        Ok(TuneOrder { terms, profile, order })
    }
}

impl MeasuringArguments {
    fn fill(&self, terms: &mut Terms) {
        terms.max_slowdown = self.max_slowdown.0;
        terms.microbatches = self.microbatches;
        let common = |powers: &PerStage<Watts>| powers.common().map(|power| vec![power.0]);
        let each = |powers: &PerStage<Watts>| {
            powers.differing().unwrap_or_default().iter().map(|power| power.0).collect()
        };
        let powers = self.p2p_power.as_ref();
        terms.p2p_power_w =
            powers.map(|powers| common(powers).unwrap_or_else(|| each(powers))).unwrap_or_default();
        terms.rounds = self.rounds;
        terms.steps = self.steps;
        terms.settling_steps = self.settling_steps;
        terms.guard = !self.no_guard;
    }
}
