//! `pfoctl profile start`: begins a sweep, or finds that its profile is stored already.

use clap::Args;
use pfo_protocol::{AgentRequest, AgentResponse, JobName, Mhz, SweepOrder, SweepSettings};

use super::status::print;
use super::stored::described;
use super::wait;
use crate::arguments::JobArguments;
use crate::arguments::{Slowdown, number};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::Output;

/// Measure time and energy of each instruction of a running job at one clock after the other
///
/// A sweep runs all stages at one clock after the other, from the highest down. It stops once the energy of
/// every instruction has risen five times in a row, or at the lowest clock. pfo-agent runs the sweep, and
/// stores the profile by GPU model, model and partition. At the end of the sweep, and while it is paused,
/// the job runs at default clocks. The sweep continues after a restart of a daemon or of the job's ranks.
/// In a fleet, a sweep covers all nodes of the job, and the profile is stored on this node; elsewhere each
/// node sweeps its own ranks.
///
/// If a power limit keeps a GPU below the requested clock, the rows of that clock have the clock that the
/// driver reported, and the share of the time for which the limit kept it down. Instructions during which
/// heat, a slowdown of the hardware or a power brake kept the clock down are left out.
///
/// The energy of an instruction that is shorter than the energy counter's refresh comes from many
/// readings. On simulated GPUs, whose counters are refreshed every 20 ms, rows of half a
/// millisecond or more are within 0.5 % of the true time and 2 % of the true energy.
#[derive(Args)]
pub(crate) struct Start {
    #[command(flatten)]
    job: JobArguments,

    /// Model that the job trains; a stored profile of the same model, GPUs and partition is
    /// replaced [default: the name of the job]
    #[arg(long, value_name = "NAME")]
    model: Option<JobName>,

    /// Steps to measure at each clock; more, for up to 20 seconds, if instructions are too short for the
    /// energy counter
    #[arg(long, value_name = "N", default_value = "10", value_parser = number::steps)]
    steps: u32,

    /// Steps to run at each clock before they are measured
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::steps)]
    settling_steps: u32,

    /// Least distance between two clocks, but for the one just above what power limits leave [default:
    /// every clock that all GPUs have]
    #[arg(long, value_name = "MHZ", value_parser = number::mhz)]
    stride: Option<Mhz>,

    /// Lowest clock to measure [default: the lowest that is allowed]
    #[arg(long, value_name = "MHZ", value_parser = number::mhz)]
    min_mhz: Option<Mhz>,

    /// Stop after the first clock at which a step takes this much longer than at default clocks
    #[arg(long, value_name = "PERCENT")]
    max_slowdown: Option<Slowdown>,

    /// Measure nothing if a profile of the same model, GPUs and partition is stored
    #[arg(long)]
    reuse: bool,

    /// Wait for the end of the sweep; Ctrl-C ends the wait, not the sweep
    #[arg(long)]
    wait: bool,

    /// Print the sweep, or with --reuse the stored profile, as JSON
    #[arg(long)]
    json: bool,
}

impl Start {
    pub(super) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut agent = daemons.agent()?;
        let settings = SweepSettings {
            steps: self.steps,
            settling_steps: self.settling_steps,
            stride_mhz: self.stride.unwrap_or(Mhz(1)),
            min_mhz: self.min_mhz.unwrap_or_default(),
            max_slowdown: self.max_slowdown.map(|Slowdown(share)| share),
        };
        let (job, model, reuse) = (self.job.selector(), self.model, self.reuse);
        let order = SweepOrder { job, model, settings, reuse };
        match agent.ask(AgentRequest::SweepStart(order))? {
            AgentResponse::Reused(profile) if self.json => output.json(&profile),
            AgentResponse::Reused(profile) => output
                .text(&format!("Nothing to measure: {} is stored.\n", described(&profile.key))),
            AgentResponse::Sweep(sweep) if self.wait => {
                print(&wait::until_over(daemons, *sweep)?, self.json, output)
            }
            AgentResponse::Sweep(sweep) => {
                print(&wait::until_begun(daemons, *sweep)?, self.json, output)
            }
            other => Err(agent.unexpected(&other).into()),
        }
    }
}
