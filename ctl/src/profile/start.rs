//! `pfoctl profile start`: begins a sweep, or finds that its profile is there already.

use clap::Args;
use pfo_protocol::{JobName, Request, Response, SweepOrder, SweepSettings};

use super::stored::described;
use super::{print, wait};
use crate::connection::Connection;
use crate::error::Error;
use crate::job::JobArguments;
use crate::output::Output;
use crate::plan::slowdown::Slowdown;
use crate::socket::Sockets;

/// Measure time and energy of each instruction of a running job at one clock after the other
///
/// From the highest clock down, all stages together, until the energy of every instruction has risen
/// five times in a row or there is no lower clock. The daemon does so by itself and stores the profile
/// by GPU model, model and partition. At its end, and whenever it is paused or stopped, the job runs at
/// default clocks; after a restart of the daemon or of the job's ranks it goes on. Of a job with ranks on
/// other nodes, those on this one are measured.
///
/// The energy of an instruction that is shorter than the energy counter's refresh comes from many
/// readings. On simulated GPUs, whose counters are refreshed every 20 ms, rows of half a millisecond or more
/// are within 0.5 % of the true time and 2 % of the true energy.
#[derive(Args)]
pub(crate) struct Start {
    #[command(flatten)]
    job: JobArguments,

    /// What the job trains; profiles of the same are replaced [default: the job's name]
    #[arg(long, value_name = "NAME")]
    model: Option<JobName>,

    /// Steps to measure at each clock; of instructions that are short for the energy counter, the daemon
    /// measures more, for up to 20 seconds
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,

    /// Steps to run before these
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    settling_steps: u32,

    /// How far apart the clocks are at least [default: every clock that all GPUs have]
    #[arg(long, value_name = "MHZ", default_value_t = 1, hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    stride: u32,

    /// Try no lower clock [default: the lowest that is allowed]
    #[arg(long, value_name = "MHZ", default_value_t = 0, hide_default_value = true)]
    min_mhz: u32,

    /// End at the first clock that makes a step so much longer than default clocks do
    #[arg(long, value_name = "PERCENT")]
    max_slowdown: Option<Slowdown>,

    /// Measure nothing if a profile of the same model, GPUs and partition is stored
    #[arg(long)]
    reuse: bool,

    /// Wait for its end. Ctrl-C ends the wait, not the sweep
    #[arg(long)]
    wait: bool,

    /// Print JSON: the sweep, or with --reuse the stored profile
    #[arg(long)]
    json: bool,
}

impl Start {
    pub(super) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let mut connection = Connection::open(sockets)?;
        let settings = SweepSettings {
            steps: self.steps,
            settling_steps: self.settling_steps,
            stride_mhz: self.stride,
            min_mhz: self.min_mhz,
            max_slowdown: self.max_slowdown.map(|Slowdown(share)| share),
        };
        let (job, model, reuse) = (self.job.selector(), self.model, self.reuse);
        let order = SweepOrder { job, model, settings, reuse };
        match connection.ask(Request::SweepStart(order))? {
            Response::Reused(profile) if self.json => output.json(&profile),
            Response::Reused(profile) => output
                .text(&format!("Nothing to measure: {} is stored.\n", described(&profile.key))),
            Response::Sweep(sweep) if self.wait => {
                print(&wait::until_over(sockets, *sweep)?, self.json, output)
            }
            Response::Sweep(sweep) => print(&sweep, self.json, output),
            other => Err(connection.other_answer(&format!("{other:?}"))),
        }
    }
}
