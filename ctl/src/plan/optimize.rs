//! `pfoctl plan optimize`: makes the frontier of a profile.

use clap::Args;
use pfo_experiment::KnownPower;
use pfo_planner::{
    ClockPer, Due, Frontier, Options, PerStage, Pipeline, PowerByClock, Profile, Spread, Watts,
    WrittenDeadline,
};
use pfo_protocol::{JobName, Uid};

use crate::arguments::{JobArguments, number};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::failure::Failure;
use crate::output::Output;
use crate::p2p::known;
use crate::planning::file;
use crate::planning::format::Format;
use crate::planning::frontier_file::summary;
use crate::planning::job_order;
use crate::planning::measured::TreatmentArguments;
use crate::planning::pipeline::PipelineArguments;
use crate::planning::rest::RestArguments;
use crate::planning::written;
use crate::progress::Progress;
use crate::text::harmless;
use crate::user;

/// Make the frontier of a measured profile: its plans from the fastest to the one of least energy
#[derive(Args)]
pub(crate) struct Optimize {
    /// Time and energy of each instruction: CSV with the columns stage, instruction, frequency
    /// (MHz), time (s), energy (J); - reads standard input. A line may be the mean of several
    /// measurements: count is their number, `time_sd` and `energy_sd` are their standard
    /// deviations. Where the column chunk has several numbers, interleaved stages run each model
    /// chunk as it was measured. Lines that differ in other columns only, such as window, are
    /// repeats
    #[arg(value_name = "PROFILE.csv")]
    profile: String,

    #[command(flatten)]
    treatment: TreatmentArguments,

    #[command(flatten)]
    pipeline: PipelineArguments,

    /// Plan for the order and the microbatches of this running job: those that its ranks run in their next
    /// step. All of its stages must have a rank on this node. Nothing about the job changes
    #[arg(
        long,
        value_name = "JOB",
        conflicts_with_all = ["schedule", "order", "fixed", "chunks", "memory_limit", "microbatches"]
    )]
    order_of: Option<JobName>,

    /// The owner of that job, by name or number [default: yourself; for an administrator the owner of the
    /// only job of that name]
    #[arg(long, value_name = "USER", value_parser = user::parse, requires = "order_of")]
    user: Option<Uid>,

    /// P2P-blocking power: what a GPU draws while it only waits for its neighbour stage; where stages
    /// run on different models, one for each stage [default: that of the --gpu model in `pfoctl p2p
    /// show`, or of the only model there]
    #[arg(
        long,
        value_name = "WATTS,…",
        allow_negative_numbers = true,
        value_parser = number::watts_of_stages
    )]
    p2p_power: Option<PerStage<Watts>>,

    /// P2P-blocking power by clock, in MHz and W: waits that are long enough get the clock at which a
    /// waiting GPU draws least, and plans are made for the power at that clock. Write semicolons between
    /// stages to give each stage its own powers [default: the powers at several clocks in `pfoctl p2p show`,
    /// unless --p2p-power is given]
    #[arg(long, value_name = "MHZ:WATTS,…", conflicts_with = "p2p_power")]
    wait_power: Option<PerStage<PowerByClock>>,

    /// Power of host, fans and cooling for each GPU while it trains: time then costs more, and the plan of
    /// least energy is faster. Energies remain those of the GPUs
    #[arg(long, value_name = "WATTS", allow_negative_numbers = true, value_parser = number::watts)]
    site_power: Option<Watts>,

    /// Largest number of plans to make
    #[arg(long, value_name = "N", default_value_t = Options::default().plans)]
    plans: usize,

    /// What has a clock of its own: each instruction, each kind of instruction of a stage, or each
    /// stage. Plans with fewer clocks save less, but keep their predictions if instructions are shorter
    /// than the switching latency
    #[arg(long, value_name = "WHAT", default_value_t = ClockPer::Instruction)]
    clock_per: ClockPer,

    /// GPU model of the profile, to be written into plans
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,

    /// Make and write only the plan for this iteration time, in a small part of the time: a time (3.1s,
    /// 310ms), a factor of the fastest (1.02x), fastest or min-energy
    #[arg(long, value_name = "D", conflicts_with = "plans")]
    deadline: Option<WrittenDeadline>,

    /// The frontier to write, for `plan show`, `plan export` and the like; with --deadline the plan; - is
    /// standard output
    #[arg(short, long, value_name = "FRONTIER")]
    output: String,
}

impl Optimize {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let measured = self.treatment.read(&self.profile)?;
        let pipeline = self.pipeline(&measured.profile, daemons, output)?;
        let (p2p_power, origin) = match (&self.p2p_power, &self.wait_power) {
            (Some(power), _) => (power.clone().into(), None),
            (None, Some(power)) => (power.clone(), None),
            (None, None) => {
                let known = known_power(daemons, self.gpu.as_deref())?;
                let flat = || Watts(known.power_w).into();
                (known.by_clock.map_or_else(flat, PerStage::from), Some(known.origin))
            }
        };
        measured.profile.check_waiting(&p2p_power)?;
        if let Some(deadline) = &self.deadline {
            let what = (&pipeline, &p2p_power, origin);
            return one_plan(what, deadline, &self, output);
        }
        let progress = Progress::new("planning");
        let options = Options { plans: self.plans, spread: Spread::Useful };
        let show = |done| progress.show(done);
        let mut frontier =
            Frontier::for_waiting(self.clock_per, &pipeline, &p2p_power, options, &show)?;
        frontier.gpu = self.gpu;
        if let Some(power) = self.site_power {
            frontier = frontier.with_site_power(power)?;
        }
        drop(progress);
        if self.output == "-" {
            return output.bytes(&frontier.to_bytes()?);
        }
        file::write(&self.output, &frontier.to_bytes()?)?;
        if let Some(origin) = origin {
            output.text(&format!("P2P-blocking power: {}\n", harmless(&origin)))?;
        }
        let (made, asked) = (frontier.plans().len(), self.plans);
        let fewer = match made < asked && self.clock_per == ClockPer::Instruction {
            true => format!(
                "; of {asked} deadlines, {} have no plan of their own that saves energy",
                asked - made
            ),
            false => String::new(),
        };
        output.text(&format!("{}\n", harmless(&(summary(&self.output, &frontier) + &fewer))))
    }
}

impl Optimize {
    fn pipeline(
        &self,
        profile: &Profile,
        daemons: &Daemons,
        output: &mut Output,
    ) -> Result<Pipeline, Error> {
        let Some(job) = &self.order_of else { return Ok(self.pipeline.of(profile)?) };
        let order = job_order::read(daemons, &JobArguments::of(job.clone(), self.user))?;
        let pipeline = job_order::pipeline(&order, profile, self.pipeline.delays());
        let pipeline = pipeline.map_err(Failure::from)?;
        let (what, microbatches) =
            (job_order::described(&order, profile), order.num_microbatches());
        let line = format!("job {job} runs {what}; {microbatches} microbatches");
        output.text(&format!("{}\n", harmless(&line)))?;
        Ok(pipeline)
    }
}

/// Writes the plan for one deadline.
fn one_plan(
    (pipeline, power, origin): (&Pipeline, &PerStage<PowerByClock>, Option<String>),
    deadline: &WrittenDeadline,
    own: &Optimize,
    output: &mut Output,
) -> Result<(), Error> {
    let progress = Progress::new("planning");
    let show = |done| progress.show(done);
    let site_power = own.site_power.unwrap_or(Watts(0.0));
    let what = (site_power, deadline);
    let mut frontier = Frontier::about(own.clock_per, pipeline, power.clone(), what, &show)?;
    frontier.gpu.clone_from(&own.gpu);
    let due = Due::Waiting(frontier.seconds(frontier.deadline(deadline)?));
    let plan = frontier.plan_for(due)?;
    drop(progress);
    if let Some(origin) = origin {
        output.text(&format!("P2P-blocking power: {}\n", harmless(&origin)))?;
    }
    written::write(&own.output, &plan, &frontier, (Format::Pfo, &RestArguments::default()), output)
}

/// The power that the agent has stored, if it is clear for which model.
fn known_power(daemons: &Daemons, model: Option<&str>) -> Result<KnownPower, Failure> {
    let unknown = |why| Failure::UnknownPower { why };
    let known = daemons.agent().map_err(Error::from);
    match known.and_then(|mut agent| known::of(&mut agent, model)) {
        Ok(Some(known)) => Ok(known),
        Ok(None) => Err(unknown(match model {
            Some(model) => format!("pfo-agent has none of a single model named {model}"),
            None => "pfo-agent has none, or those of several models".to_owned(),
        })),
        Err(error) => Err(unknown(error.to_string())),
    }
}
