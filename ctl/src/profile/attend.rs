//! A sweep that continues only while this process waits for it: however the process ends, the agent
//! pauses the sweep, and the job returns to default clocks.

use std::time::Duration;

use pfo_protocol::{
    AgentRequest, AgentResponse, JobName, JobSelector, ProfileKey, SweepEnd, SweepOrder,
    SweepState, SweepStatus,
};

use super::ProfileError;
use super::status::ask;
use super::sweep_bar::SweepBar;
use super::wait::paused;
use crate::daemons::Daemons;
use crate::daemons::{Agent, Connection, Patience};
use crate::error::Error;
use crate::trial::{Interrupt, Trouble};

/// How often to update the progress.
const POLL: Duration = Duration::from_millis(500);

/// Has the agent find a profile, sweep the job for it, or continue an unfinished sweep. Waits
/// through a restart of either daemon. Returns what the profile is stored as.
///
/// # Errors
/// If the job cannot be swept, another client pauses or stops the sweep, or the interrupt comes.
pub(crate) fn attend(
    daemons: &Daemons,
    order: &SweepOrder,
    interrupt: &Interrupt,
) -> Result<ProfileKey, Error> {
    let JobSelector { job, .. } = &order.job;
    let mut bar = SweepBar::new();
    let mut trouble = Trouble::default();
    loop {
        let answer = wait(daemons, order, interrupt, &mut bar);
        let sweep = match interrupt.or(job, answer) {
            Ok(AgentResponse::Reused(stored)) => return Ok(stored.key),
            Ok(AgentResponse::Sweep(sweep)) => *sweep,
            Ok(other) => {
                let agent: Connection<Agent> = interrupt.connect(daemons)?;
                return Err(agent.unexpected(&other).into());
            }
            Err(error) => {
                trouble.wait_out(error, bar.bar())?;
                continue;
            }
        };
        return match sweep.state {
            SweepState::Ended(SweepEnd::Stopped) => {
                Err(ProfileError::NoSuchSweep { job: job.clone() }.into())
            }
            SweepState::Paused { .. } => Err(paused(sweep)),
            SweepState::Ended(_) | SweepState::Running | SweepState::Waiting { .. } => {
                Ok(sweep.profile)
            }
        };
    }
}

/// Waits for the answer, and shows meanwhile how far the sweep is.
fn wait(
    daemons: &Daemons,
    order: &SweepOrder,
    interrupt: &Interrupt,
    bar: &mut SweepBar,
) -> Result<AgentResponse, Error> {
    let mut agent: Connection<Agent> = interrupt.connect(daemons)?;
    agent.send(AgentRequest::SweepAttend(order.clone()))?;
    while !agent.is_answered(POLL) {
        // An agent that does not answer this does not answer the other connection either.
        let known = unfinished(daemons, &order.job.job).unwrap_or_default();
        if let [sweep] = &known[..] {
            bar.announce(&sweep.job);
            bar.show(sweep);
        }
    }
    Ok(agent.receive(Patience::Unlimited)?)
}

/// The sweeps of jobs of this name that are not over.
pub(crate) fn unfinished(daemons: &Daemons, job: &JobName) -> Result<Vec<SweepStatus>, Error> {
    let mut sweeps = ask(daemons)?;
    sweeps.retain(|sweep| sweep.job == *job && !matches!(sweep.state, SweepState::Ended(_)));
    Ok(sweeps)
}
