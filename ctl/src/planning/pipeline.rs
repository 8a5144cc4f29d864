//! The arguments that describe the pipeline to plan for, beside its profile.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use pfo_experiment::Terms;
use pfo_planner::{
    Delays, Instruction, LatencyByClock, Order, Pipeline, PlanError, Profile, Schedule, Settings,
};

use super::file;
use crate::failure::Failure;

/// A schedule, and the number of microbatches, which no profile contains.
#[derive(Args)]
pub(crate) struct PipelineArguments {
    /// Microbatches of a step; --order has their number
    #[arg(long, value_name = "M")]
    microbatches: Option<u32>,

    #[command(flatten)]
    schedule: ScheduleArguments,
}

/// The schedules that have a name of their own.
pub(crate) fn schedule() -> impl TypedValueParser<Value = Schedule> {
    let named = Schedule::ALL.into_iter().filter(|schedule| *schedule != Schedule::Custom);
    PossibleValuesParser::new(named.map(Schedule::name)).try_map(|name| name.parse())
}

/// A schedule and what it depends on.
#[derive(Args)]
pub(crate) struct ScheduleArguments {
    /// Order in which stages run their instructions [default: 1f1b; `tune` takes the order that the job
    /// runs]
    #[arg(long, value_name = "NAME", value_parser = schedule())]
    schedule: Option<Schedule>,

    /// File with the order instead, as PyTorch (the CSV of a schedule), Megatron-Core (the list of
    /// chunks of each stage) or DeepSpeed (the steps of each stage) write it, or {"format":
    /// "pfo-order/1", "stages": [[{"instruction": "forward", "microbatch": 0}, …], …]}; - reads standard
    /// input. `pfoctl plan order` writes the order of a schedule as such a file. A forward waits for the
    /// forward of the stage before, a backward for the backward of the stage after, unless the file has
    /// dependencies of its own: "dependencies": [{"of":
    /// {"stage": 1, "instruction": "forward", "microbatch": 0}, "after": [{"stage": 0, …}, …]}, …].
    /// Plans contain these dependencies; other tools ignore them
    #[arg(long, value_name = "ORDER.json", conflicts_with_all = ["schedule", "fixed"])]
    order: Option<String>,

    /// Model chunks of each stage, for interleaved-1f1b, interleaved-zero-bubble and looped-bfs
    /// [default: 2]
    #[arg(long, value_name = "V")]
    chunks: Option<u16>,

    /// Microbatches that go through a chunk before the next one begins, for interleaved-1f1b:
    /// Megatron's `microbatch_group_size_per_vp_stage` [default: the number of stages; where the
    /// microbatches are no multiple of it, as many as PyTorch takes]
    #[arg(long, value_name = "N")]
    microbatch_group: Option<u32>,

    /// Run one more forward ahead, for interleaved-1f1b: Megatron does with
    /// `overlap_moe_expert_parallel_comm`
    #[arg(long)]
    extra_warm_up: bool,

    /// How many more activations than in 1F1B a stage can keep, for envpipe: one number, or one for
    /// each stage [default: no limit]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    memory_limit: Vec<u32>,

    /// Time of the transfer of an activation or a gradient between two stages, in milliseconds
    /// [default: the time in an order file, or 0; `tune` measures it on the job]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    transfer_ms: Option<f64>,

    /// Time from the call that sets a clock until it is in force, in milliseconds: until then, an
    /// instruction runs at the clock of the one before it. `pfoctl status --json` has this time as
    /// `settle_ms`. pfod requests the clocks of instructions that are more than twice as long ahead, so that
    /// none is late: leave this out for them [default: 0; `tune` takes the time of the job's GPUs]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    switch_latency_ms: Option<f64>,

    /// For how long the call that sets a clock blocks, in milliseconds: requests for other clocks wait
    /// meanwhile, and when the call returns, pfod sets only the newest. It may be longer than the time until
    /// the clock is in force. Each change of clocks costs a part of the energy of a waiting GPU in this
    /// time, so plans contain no change that saves less [default: 0; `tune` takes the measured time]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    set_call_ms: Option<f64>,

    /// For how long a change of clocks delays the transfer after the instruction before it, and the next
    /// instruction of its stage, in milliseconds: with some drivers, transfers wait while a clock is set
    /// [default: 0; `tune` learns it from plans that take longer than predicted]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    held_up_ms: Option<f64>,

    /// Further instructions of the ranks whose time does not depend on the clock: load, collective,
    /// `optimizer_step`; a stage runs those that the profile has for it
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    fixed: Vec<Instruction>,
}

impl PipelineArguments {
    /// The pipeline of a profile.
    pub(crate) fn of(&self, profile: &Profile) -> Result<Pipeline, Failure> {
        if self.microbatches.is_none() && !self.schedule.has_order() {
            return Err(Failure::NoMicrobatches);
        }
        self.schedule.of(profile, self.microbatches, self.delays())
    }

    /// The delays that are given.
    pub(crate) fn delays(&self) -> Delays {
        self.schedule.delays(Delays::default())
    }

    /// The order as a file holds it.
    pub(crate) fn order_of(&self, profile: &Profile) -> Result<Order, Failure> {
        self.schedule.check_no_delay_of_clocks()?;
        let pipeline = self.of(profile)?;
        let transfer_s = pipeline.delays().transfer_time_s;
        let order = pipeline.order().clone();
        Ok(if transfer_s > 0.0 { order.with_transfer_time(transfer_s) } else { order })
    }
}

impl ScheduleArguments {
    /// Whether a file gives the order, and with it the number of microbatches.
    pub(crate) fn has_order(&self) -> bool {
        self.order.is_some()
    }

    /// Puts what they say into the terms of a tune; the file of the order.
    pub(crate) fn fill(&self, terms: &mut Terms) -> Result<Option<Vec<u8>>, Failure> {
        let seconds = |given: Option<f64>| given.map(|ms| ms / 1e3);
        terms.schedule = self.schedule;
        terms.chunks = self.chunks.unwrap_or(Settings::default().chunks);
        terms.microbatch_group = self.microbatch_group;
        terms.extra_warm_up = self.extra_warm_up;
        terms.memory_limits.clone_from(&self.memory_limit);
        terms.fixed.clone_from(&self.fixed);
        terms.transfer_s = seconds(self.transfer_ms);
        terms.switch_latency_s = seconds(self.switch_latency_ms);
        terms.set_call_s = seconds(self.set_call_ms);
        terms.held_up_s = seconds(self.held_up_ms);
        self.order.as_deref().map(file::read).transpose()
    }

    /// The delays that are given, and those that are known where none are.
    pub(crate) fn delays(&self, known: Delays) -> Delays {
        let seconds = |given: Option<f64>, known| given.map_or(known, |ms| ms / 1e3);
        Delays {
            transfer_time_s: seconds(self.transfer_ms, known.transfer_time_s),
            switch_latency_s: seconds(self.switch_latency_ms, known.switch_latency_s),
            latency_by_clock: match self.switch_latency_ms {
                Some(_) => LatencyByClock::default(),
                None => known.latency_by_clock,
            },
            set_call_s: seconds(self.set_call_ms, known.set_call_s),
            held_up_s: seconds(self.held_up_ms, known.held_up_s),
        }
    }

    /// What an order file cannot hold.
    ///
    /// # Errors
    /// If one of these delays is given.
    pub(crate) fn check_no_delay_of_clocks(&self) -> Result<(), Failure> {
        let given = [
            ("--switch-latency-ms", self.switch_latency_ms),
            ("--set-call-ms", self.set_call_ms),
            ("--held-up-ms", self.held_up_ms),
        ];
        match given.into_iter().find(|(_, ms)| ms.is_some()) {
            Some((option, _)) => Err(Failure::NotInAnOrder { option }),
            None => Ok(()),
        }
    }

    /// Refuses an option that the schedule does not depend on.
    fn check_used(&self) -> Result<(), Failure> {
        let default = self.schedule.unwrap_or(Schedule::OneForwardOneBackward);
        let schedule = if self.has_order() { Schedule::Custom } else { default };
        let options = [
            ("--chunks", self.chunks.is_some(), Settings::OF_CHUNKS),
            ("--microbatch-group", self.microbatch_group.is_some(), Settings::OF_MICROBATCH_GROUP),
            ("--extra-warm-up", self.extra_warm_up, Settings::OF_MICROBATCH_GROUP),
            ("--memory-limit", !self.memory_limit.is_empty(), Settings::OF_MEMORY_LIMITS),
        ];
        let unused = options.into_iter().find(|(_, given, of)| *given && !of.contains(&schedule));
        match unused {
            Some((option, _, of)) => Err(Failure::UnusedOption { option, schedule, of }),
            None => Ok(()),
        }
    }

    /// The pipeline of a profile, for this many microbatches or as many as the order has.
    pub(crate) fn of(
        &self,
        profile: &Profile,
        microbatches: Option<u32>,
        delays: Delays,
    ) -> Result<Pipeline, Failure> {
        self.check_used()?;
        if let Some(name) = &self.order {
            let bad = Failure::bad_file(name);
            let mut order = Order::from_file(&file::read(name)?).map_err(&bad)?;
            if self.transfer_ms.is_some() {
                order = order.with_transfer_time(delays.transfer_time_s);
            }
            let has = order.num_microbatches();
            if let Some(given) = microbatches.filter(|&given| given != has) {
                return Err(Failure::OtherMicrobatches {
                    name: file::shown(name).to_owned(),
                    given,
                    has,
                });
            }
            return order.pipeline(profile, delays).map_err(|error| match error {
                // What the profile lacks is no fault of the order.
                PlanError::UnmeasuredInstruction { .. } => error.into(),
                error => bad(error),
            });
        }
        let settings = Settings {
            memory_limits: self.memory_limit.clone(),
            chunks: self.chunks.unwrap_or(Settings::default().chunks),
            microbatch_group: self.microbatch_group,
            extra_warm_up: self.extra_warm_up,
            delays,
            fixed: self.fixed.clone(),
        };
        // Known to every caller without an order.
        let microbatches = microbatches.unwrap_or(0);
        let schedule = self.schedule.unwrap_or(Schedule::OneForwardOneBackward);
        Pipeline::with_settings(profile, schedule, microbatches, &settings).map_err(Failure::from)
    }
}
