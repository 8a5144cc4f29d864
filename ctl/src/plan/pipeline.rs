//! The arguments that say which pipeline to plan for, beside its profile.

use clap::Args;
use pfo_planner::{Delays, Instruction, Order, Pipeline, Profile, Schedule, Settings};

use super::{Failure, file};

/// A schedule, and microbatches that only who asks can know.
#[derive(Args)]
pub(super) struct PipelineArguments {
    /// Microbatches of a step
    #[arg(long, value_name = "M", required_unless_present = "order")]
    microbatches: Option<u32>,

    #[command(flatten)]
    schedule: ScheduleArguments,
}

/// A schedule and what it depends on.
#[derive(Args)]
pub(crate) struct ScheduleArguments {
    /// The order in which stages run their instructions: 1f1b, gpipe, early-recomputation-1f1b,
    /// envpipe, zb-h1 or interleaved-1f1b
    #[arg(long, value_name = "NAME", default_value_t = Schedule::OneForwardOneBackward)]
    schedule: Schedule,

    /// A file with the order instead: {"format": "pfo-order/1", "stages": [[{"instruction":
    /// "forward", "microbatch": 0}, …], …]}; - reads standard input. A forward waits for that of the
    /// stage before, a backward for that of the stage after, unless the file says otherwise:
    /// "dependencies": [{"of": {"stage": 1, "instruction": "forward", "microbatch": 0}, "after":
    /// [{"stage": 0, …}, …]}, …]; plans carry that along, but tools that replay by the rule alone
    /// do not know it
    #[arg(long, value_name = "ORDER.json", conflicts_with_all = ["schedule", "fixed"])]
    order: Option<String>,

    /// Model chunks of each stage, for interleaved-1f1b
    #[arg(long, value_name = "V", default_value_t = Settings::default().chunks)]
    chunks: u16,

    /// How many more activations than in 1F1B a stage can keep, for envpipe: one number, or one
    /// for each stage [default: no limit]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    memory_limit: Vec<u32>,

    /// What an activation or a gradient takes from one stage to another, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0, allow_negative_numbers = true)]
    transfer_ms: f64,

    /// What a change of clock takes from the end of the instruction before until it is in force, in
    /// milliseconds: an instruction then begins at the clock of the one before it. It is not measured:
    /// add `settle_ms` of the daemon's configuration, 15 unless changed, to what `pfoctl status` shows
    /// that a set call takes on the job's GPUs
    #[arg(long, value_name = "MS", default_value_t = 0.0, allow_negative_numbers = true)]
    switch_latency_ms: f64,

    /// Instructions that ranks announce too and whose time does not depend on the clock: load,
    /// collective, `optimizer_step`; stages run those that the profile has of them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    fixed: Vec<Instruction>,
}

impl PipelineArguments {
    /// The pipeline of a profile.
    pub(super) fn of(&self, profile: &Profile) -> Result<Pipeline, Failure> {
        self.schedule.of(profile, self.microbatches)
    }
}

impl ScheduleArguments {
    /// Whether a file says the order, and with it how many microbatches a step has.
    pub(crate) fn has_order(&self) -> bool {
        self.order.is_some()
    }

    /// The pipeline of a profile, for so many microbatches or as many as an order has.
    pub(crate) fn of(
        &self,
        profile: &Profile,
        microbatches: Option<u32>,
    ) -> Result<Pipeline, Failure> {
        let delays = Delays {
            transfer_time_s: self.transfer_ms / 1e3,
            switch_latency_s: self.switch_latency_ms / 1e3,
        };
        if let Some(name) = &self.order {
            let bad = |source| Failure::BadFile { name: file::shown(name).to_owned(), source };
            let order = Order::from_json(&file::read(name)?).map_err(bad)?;
            let has = order.num_microbatches();
            if let Some(given) = microbatches.filter(|&given| given != has) {
                return Err(Failure::OtherMicrobatches {
                    name: file::shown(name).to_owned(),
                    given,
                    has,
                });
            }
            return order.pipeline(profile, delays).map_err(bad);
        }
        let settings = Settings {
            memory_limits: self.memory_limit.clone(),
            chunks: self.chunks,
            delays,
            fixed: self.fixed.clone(),
        };
        // Known to every caller without an order.
        let microbatches = microbatches.unwrap_or(0);
        Pipeline::with_settings(profile, self.schedule, microbatches, &settings)
            .map_err(Failure::BadRequest)
    }
}
