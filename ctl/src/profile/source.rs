//! Where the profile of a job comes from: a file, the agent's store or, if none is stored, a sweep
//! of the job, whose profile is stored for the next time.

use clap::Args;
use pfo_experiment::Terms;
use pfo_protocol::{
    AgentRequest, AgentResponse, JobName, Mhz, ProfileKey, ProfileSelector, SweepOrder,
    SweepSettings,
};

use super::attend::attend;
use crate::arguments::{JobArguments, Slowdown, number};
use crate::daemons::{Agent, Connection, Daemons};
use crate::error::Error;
use crate::planning::file;
use crate::planning::measured::Measured;
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
}

/// How a job is swept for its profile.
#[derive(Args)]
#[command(next_help_heading = "Where the profile comes from")]
pub(crate) struct SweepArguments {
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

impl ProfileArguments {
    /// Puts what they say into the terms of a tune; the CSV of a file, which is looked at first.
    pub(crate) fn fill(&self, terms: &mut Terms) -> Result<Option<Vec<u8>>, Error> {
        terms.model.clone_from(&self.model);
        terms.remeasure = self.remeasure;
        let Some(name) = &self.profile else { return Ok(None) };
        let (csv, shown) = (file::read(name)?, file::shown(name));
        Measured::of(&csv, shown, terms.combine, terms.noise)?;
        shown.clone_into(&mut terms.profile_name);
        Ok(Some(csv))
    }

    /// The profile. A sweep that is interrupted continues the next time.
    pub(crate) fn get(
        &self,
        daemons: &Daemons,
        (job, sweep): (&JobArguments, &SweepArguments),
        interrupt: &Interrupt,
    ) -> Result<Vec<u8>, Error> {
        if let Some(name) = &self.profile {
            return Ok(file::read(name)?);
        }
        let key = attend(daemons, &self.order(job, sweep), interrupt)?;
        let ProfileKey { uid, model, gpus, partition } = key;
        let (gpus, partition) = (Some(gpus), Some(partition));
        let selector = ProfileSelector { model, uid: Some(uid), gpus, partition };
        let mut agent: Connection<Agent> = interrupt.connect(daemons)?;
        match agent.ask(AgentRequest::ProfileRead(selector))? {
            AgentResponse::Profile { csv, .. } => Ok(csv),
            other => Err(agent.unexpected(&other).into()),
        }
    }

    fn order(&self, job: &JobArguments, sweep: &SweepArguments) -> SweepOrder {
        let settings = SweepSettings {
            steps: sweep.sweep_steps,
            settling_steps: 1,
            stride_mhz: sweep.sweep_stride,
            min_mhz: Mhz(0),
            max_slowdown: sweep.sweep_max_slowdown.map(|Slowdown(share)| share),
        };
        let (job, model) = (job.selector(), self.model.clone());
        SweepOrder { job, model, settings, reuse: !self.remeasure }
    }
}

impl SweepArguments {
    /// Puts what they say into the terms of a tune.
    pub(crate) fn fill(&self, terms: &mut Terms) {
        terms.sweep_steps = self.sweep_steps;
        terms.sweep_stride = self.sweep_stride;
        terms.sweep_max_slowdown = self.sweep_max_slowdown.map(|Slowdown(share)| share);
    }
}
