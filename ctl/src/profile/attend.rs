//! A sweep that goes on only as long as this process waits for it: however it ends, the daemon pauses the
//! sweep, and the job is at default clocks.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pfo_protocol::{
    JobName, JobSelector, ProfileKey, Request, Response, SweepEnd, SweepOrder, SweepState,
    SweepStatus,
};

use super::status::ask;
use super::sweep_bar::SweepBar;
use super::wait::paused;
use crate::connection::Patience;
use crate::error::Error;
use crate::socket::Sockets;
use crate::trial::{Interrupt, Trouble};

/// How often to look how far it is.
const POLL: Duration = Duration::from_millis(500);

/// A profile that the daemon has stored.
pub(crate) enum Profiled {
    /// It was there before.
    Before(ProfileKey),
    /// A sweep has measured it just now.
    Now {
        /// What it is stored as.
        key: ProfileKey,
        /// At how many clocks an earlier, interrupted sweep had measured it already.
        resumed_after: u32,
    },
}

/// Has the daemon find a profile, sweep the job for it, or go on with a sweep that is not over. A daemon
/// that restarts meanwhile is waited for.
///
/// # Errors
/// If the job cannot be swept, somebody else pauses or stops the sweep, or the interrupt comes.
pub(crate) fn attend(
    sockets: &Sockets,
    order: &SweepOrder,
    interrupt: &Interrupt,
) -> Result<Profiled, Error> {
    let JobSelector { job, .. } = &order.job;
    let before = unfinished(sockets, job)?;
    let mut bar = SweepBar::new();
    let mut trouble = Trouble::default();
    loop {
        let answer = wait(sockets, order, interrupt, &mut bar);
        let sweep = match interrupt.or(job, answer) {
            Ok(Response::Reused(stored)) => return Ok(Profiled::Before(stored.key)),
            Ok(Response::Sweep(sweep)) => *sweep,
            Ok(other) => {
                return Err(interrupt.connect(sockets)?.other_answer(&format!("{other:?}")));
            }
            Err(error) => {
                trouble.wait_out(error, bar.bar())?;
                continue;
            }
        };
        let SweepStatus { state, profile: key, .. } = sweep;
        return match state {
            SweepState::Ended(SweepEnd::Stopped) => {
                Err(Error::NoSuchSweep { job: job.to_string() })
            }
            SweepState::Paused { why } => Err(paused(job, why)),
            SweepState::Ended(_) | SweepState::Running | SweepState::Waiting { .. } => {
                let same = before.iter().find(|earlier| earlier.profile == key);
                let resumed_after = same.map_or(0, |earlier| earlier.measured);
                Ok(Profiled::Now { key, resumed_after })
            }
        };
    }
}

/// Waits for the answer, and shows meanwhile how far the sweep is.
fn wait(
    sockets: &Sockets,
    order: &SweepOrder,
    interrupt: &Interrupt,
    bar: &mut SweepBar,
) -> Result<Response, Error> {
    let mut connection = interrupt.connect(sockets)?;
    connection.send(Request::SweepAttend(order.clone()))?;
    let timeout = PollTimeout::try_from(POLL).unwrap_or(PollTimeout::ZERO);
    let is_there = || {
        let mut answer = [PollFd::new(connection.stream().as_fd(), PollFlags::POLLIN)];
        // An error shows again when the answer is read.
        poll(&mut answer, timeout) != Ok(0)
    };
    while !is_there() {
        // Whoever does not answer this does not answer the other connection either.
        let known = unfinished(sockets, &order.job.job).unwrap_or_default();
        if let [sweep] = &known[..] {
            bar.show(sweep);
        }
    }
    connection.receive(Patience::Unlimited)
}

/// The sweeps of jobs of this name that are not over.
fn unfinished(sockets: &Sockets, job: &JobName) -> Result<Vec<SweepStatus>, Error> {
    let mut sweeps = ask(sockets)?;
    sweeps.retain(|sweep| sweep.job == *job && !matches!(sweep.state, SweepState::Ended(_)));
    Ok(sweeps)
}
