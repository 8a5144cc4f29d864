//! Where the profile of a job comes from: a file, the daemon's store or, if nothing is stored, a sweep
//! of the job, whose profile is stored for the next time.

use clap::Args;
use pfo_protocol::{
    JobName, ProfileKey, ProfileSelector, RefusalCode, Request, Response, SweepControl, SweepEnd,
    SweepSettings, SweepState, SweepStatus,
};
use serde::Serialize;

use crate::connection::Connection;
use crate::error::Error;
use crate::job::JobArguments;
use crate::plan::file;
use crate::plan::slowdown::Slowdown;
use crate::profile::stored::described;
use crate::profile::wait::until_over;
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
#[serde(rename_all = "snake_case")]
pub(super) enum Origin {
    /// A file that was given.
    File,
    /// The store, in which it was before.
    Stored,
    /// A sweep of the job.
    Measured,
}

impl ProfileArguments {
    /// The profile. An interrupt during a sweep pauses that, so that the next time goes on with it.
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
        let (key, origin) = match self.begin(sockets, job)? {
            Response::Reused(stored) => (stored.key, Origin::Stored),
            Response::Sweep(sweep) => {
                let sweep = until_over(sockets, *sweep, || !interrupt.has_come())?;
                (stored_as(sockets, job, sweep)?, Origin::Measured)
            }
            other => return Err(Connection::open(sockets)?.other_answer(&format!("{other:?}"))),
        };
        let name = described(&key);
        let ProfileKey { uid, model, gpus, partition } = key;
        let (gpus, partition) = (Some(gpus), Some(partition));
        let selector = ProfileSelector { model, uid: Some(uid), gpus, partition };
        let mut connection = Connection::open(sockets)?;
        match connection.ask(Request::ProfileRead(selector))? {
            Response::Profile { csv, .. } => Ok(Sourced { csv, name, origin }),
            other => Err(connection.other_answer(&format!("{other:?}"))),
        }
    }

    /// Finds a stored profile, or sets off a sweep or one that was interrupted.
    fn begin(&self, sockets: &Sockets, job: &JobArguments) -> Result<Response, Error> {
        let mut connection = Connection::open(sockets)?;
        let settings = SweepSettings {
            steps: self.sweep_steps,
            settling_steps: 1,
            stride_mhz: self.sweep_stride,
            min_mhz: 0,
            max_slowdown: self.sweep_max_slowdown.map(|Slowdown(share)| share),
        };
        let start = Request::SweepStart {
            job: job.selector(),
            model: self.model.clone(),
            settings,
            reuse: !self.remeasure,
        };
        let error = match connection.ask(start) {
            Err(Error::Refused(refusal)) if refusal.code == RefusalCode::LimitReached => refusal,
            answer => return answer,
        };
        // It may be that the job is being swept, or was when somebody interrupted that.
        let resume = control(job, SweepControl::Resume);
        connection.ask(resume).map_err(|_| Error::Refused(error))
    }
}

/// What the profile of a sweep is stored as. One that is not over is paused.
fn stored_as(
    sockets: &Sockets,
    job: &JobArguments,
    sweep: SweepStatus,
) -> Result<ProfileKey, Error> {
    match sweep.state {
        SweepState::Ended(SweepEnd::Stopped) => {
            Err(Error::NoSuchSweep { job: sweep.job.to_string() })
        }
        SweepState::Ended(_) => Ok(sweep.profile),
        _ => match Connection::open(sockets)?.ask(control(job, SweepControl::Pause)) {
            // If refused, it is over by now.
            Ok(_) | Err(Error::Refused(_)) => Err(Error::Interrupted { job: sweep.job }),
            Err(error) => Err(error),
        },
    }
}

fn control(job: &JobArguments, control: SweepControl) -> Request {
    Request::SweepControl { job: job.selector(), control }
}
