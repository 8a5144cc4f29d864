//! Where the profile of a job comes from: a file, the agent's store or, if none is stored, a sweep
//! of the job, whose profile is stored for the next time.

use clap::Args;
use pfo_protocol::{
    AgentRequest, AgentResponse, JobName, Mhz, ProfileKey, ProfileSelector, SweepOrder,
    SweepSettings,
};
use serde::Serialize;

use crate::arguments::Slowdown;
use crate::arguments::{JobArguments, number};
use crate::daemons::{Agent, Connection, Daemons};
use crate::error::Error;
use crate::planning::file;
use crate::profile::attend::{Profiled, attend};
use crate::profile::stored::described;
use crate::trial::Interrupt;

/// Which profile to plan with.
#[derive(Args)]
#[command(next_help_heading = "Where the profile comes from")]
pub(crate) struct ProfileArguments {
    /// Time and energy of each instruction, as `plan optimize` takes it [default: the stored
    /// profile of the model on these GPUs in this partition; if there is none, a sweep measures it
    /// first, and slows the job down meanwhile]
    #[arg(long, value_name = "PROFILE.csv")]
    profile: Option<String>,

    /// Model that the job trains, by which profiles are stored [default: the name of the job]
    #[arg(long, value_name = "NAME", conflicts_with = "profile")]
    model: Option<JobName>,

    /// Sweep the job even if a profile is stored
    #[arg(long, conflicts_with = "profile")]
    remeasure: bool,

    /// Steps to measure at each clock of a sweep
    #[arg(long, value_name = "N", default_value = "10", value_parser = number::steps)]
    sweep_steps: u32,

    /// Least distance between two clocks of a sweep, but for the one just above what power limits leave
    #[arg(long, value_name = "MHZ", default_value = "30", value_parser = number::mhz)]
    sweep_stride: Mhz,

    /// End a sweep after the first clock at which a step takes this much longer than at default
    /// clocks
    #[arg(long, value_name = "PERCENT")]
    sweep_max_slowdown: Option<Slowdown>,
}

/// A profile, and where it comes from.
pub(crate) struct Sourced {
    pub(crate) csv: Vec<u8>,
    pub(super) name: String,
    pub(super) origin: Origin,
}

/// Where a profile comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "profile_origin", rename_all = "snake_case")]
pub(crate) enum Origin {
    /// A file that was given.
    File,
    /// The store.
    Stored,
    /// A sweep of the job, after an interrupted one had measured this many clocks.
    Measured {
        #[serde(rename = "profile_clocks_reused")]
        resumed_after: u32,
    },
}

impl ProfileArguments {
    /// The profile. A sweep that is interrupted continues the next time.
    pub(crate) fn get(
        &self,
        daemons: &Daemons,
        job: &JobArguments,
        interrupt: &Interrupt,
    ) -> Result<Sourced, Error> {
        if let Some(name) = &self.profile {
            let (csv, name) = (file::read(name)?, file::shown(name).to_owned());
            return Ok(Sourced { csv, name, origin: Origin::File });
        }
        let (key, origin) = match attend(daemons, &self.order(job), interrupt)? {
            Profiled::Before(key) => (key, Origin::Stored),
            Profiled::Now { key, resumed_after } => (key, Origin::Measured { resumed_after }),
        };
        let name = described(&key);
        let ProfileKey { uid, model, gpus, partition } = key;
        let (gpus, partition) = (Some(gpus), Some(partition));
        let selector = ProfileSelector { model, uid: Some(uid), gpus, partition };
        let mut agent: Connection<Agent> = interrupt.connect(daemons)?;
        match agent.ask(AgentRequest::ProfileRead(selector))? {
            AgentResponse::Profile { csv, .. } => Ok(Sourced { csv, name, origin }),
            other => Err(agent.unexpected(&other).into()),
        }
    }

    fn order(&self, job: &JobArguments) -> SweepOrder {
        let settings = SweepSettings {
            steps: self.sweep_steps,
            settling_steps: 1,
            stride_mhz: self.sweep_stride,
            min_mhz: Mhz(0),
            max_slowdown: self.sweep_max_slowdown.map(|Slowdown(share)| share),
        };
        let (job, model) = (job.selector(), self.model.clone());
        SweepOrder { job, model, settings, reuse: !self.remeasure }
    }
}
