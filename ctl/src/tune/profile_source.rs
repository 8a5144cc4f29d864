//! Where the profile of a job comes from: a file, the daemon's store or, if nothing is stored, a sweep
//! of the job, whose profile is stored for the next time.

use clap::Args;
use pfo_protocol::{
    JobName, ProfileKey, ProfileSelector, Request, Response, SweepOrder, SweepSettings,
};
use serde::Serialize;

use crate::error::Error;
use crate::job::JobArguments;
use crate::plan::file;
use crate::plan::slowdown::Slowdown;
use crate::profile::attend::{Profiled, attend};
use crate::profile::stored::described;
use crate::socket::Sockets;
use crate::trial::Interrupt;

/// Which profile to plan with.
#[derive(Args)]
#[command(next_help_heading = "Where the profile comes from")]
pub(super) struct ProfileArguments {
    /// Time and energy of each instruction, as `plan optimize` takes it [default: what is stored of
    /// the model on such GPUs in this partition; if nothing is, a sweep of the job measures it first]
    #[arg(long, value_name = "PROFILE.csv")]
    profile: Option<String>,

    /// What the job trains; profiles are stored under that [default: the job's name]
    #[arg(long, value_name = "NAME", conflicts_with = "profile")]
    model: Option<JobName>,

    /// Sweep the job even if a profile is stored
    #[arg(long, conflicts_with = "profile")]
    remeasure: bool,

    /// Steps to measure at each clock of a sweep
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sweep_steps: u32,

    /// How far apart the clocks of a sweep are at least
    #[arg(long, value_name = "MHZ", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sweep_stride: u32,

    /// End a sweep at the first clock that makes a step so much longer than default clocks do
    #[arg(long, value_name = "PERCENT")]
    sweep_max_slowdown: Option<Slowdown>,
}

/// A profile, and where it comes from.
pub(super) struct Sourced {
    pub(super) csv: Vec<u8>,
    pub(super) name: String,
    pub(super) origin: Origin,
}

/// Where a profile comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "profile_origin", rename_all = "snake_case")]
pub(super) enum Origin {
    /// A file that was given.
    File,
    /// The store, in which it was before.
    Stored,
    /// A sweep of the job, which found so many clocks measured by one that was interrupted.
    Measured {
        #[serde(rename = "profile_clocks_reused")]
        resumed_after: u32,
    },
}

impl ProfileArguments {
    /// The profile. A sweep that is interrupted goes on the next time.
    pub(super) fn get(
        &self,
        sockets: &Sockets,
        job: &JobArguments,
        interrupt: &Interrupt,
    ) -> Result<Sourced, Error> {
        if let Some(name) = &self.profile {
            let (csv, name) = (file::read(name)?, file::shown(name).to_owned());
            return Ok(Sourced { csv, name, origin: Origin::File });
        }
        let (key, origin) = match attend(sockets, &self.order(job), interrupt)? {
            Profiled::Before(key) => (key, Origin::Stored),
            Profiled::Now { key, resumed_after } => (key, Origin::Measured { resumed_after }),
        };
        let name = described(&key);
        let ProfileKey { uid, model, gpus, partition } = key;
        let (gpus, partition) = (Some(gpus), Some(partition));
        let selector = ProfileSelector { model, uid: Some(uid), gpus, partition };
        let mut connection = interrupt.connect(sockets)?;
        match connection.ask(Request::ProfileRead(selector))? {
            Response::Profile { csv, .. } => Ok(Sourced { csv, name, origin }),
            other => Err(connection.other_answer(&format!("{other:?}"))),
        }
    }

    fn order(&self, job: &JobArguments) -> SweepOrder {
        let settings = SweepSettings {
            steps: self.sweep_steps,
            settling_steps: 1,
            stride_mhz: self.sweep_stride,
            min_mhz: 0,
            max_slowdown: self.sweep_max_slowdown.map(|Slowdown(share)| share),
        };
        let (job, model) = (job.selector(), self.model.clone());
        SweepOrder { job, model, settings, reuse: !self.remeasure }
    }
}
