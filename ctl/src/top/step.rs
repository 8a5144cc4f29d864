//! The last step of the job that is looked into, as its ranks ran it. The agent is asked, by a thread of
//! its own: the answer comes with the next whole step. `pfod` is asked nothing more.

use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use interprocess::os::unix::uds_local_socket::Stream;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pfo_protocol::{AgentRequest, AgentResponse, JobSelector, RanUnit, RankOrder, Stage};

use super::message::Message;
use super::sheet::JobKey;
use crate::daemons::{Agent, Connection, Daemons, Patience};
use crate::error::Error;
use crate::text::harmless;

/// How often to look whether another job is meant, while a step is awaited.
const LOOK_MS: u16 = 200;

/// How long to leave the agent alone after it did not know: each refusal is in its journal.
const AFTER_REFUSAL: Duration = Duration::from_secs(60);

/// What the stages of a job ran in one step, each as its first rank on this node did.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) stages: Vec<(Stage, Vec<RanUnit>)>,
}

impl Step {
    pub(super) fn of(mut ranks: Vec<RankOrder>) -> Self {
        ranks.sort_by_key(|rank| (rank.stage, rank.rank));
        ranks.dedup_by_key(|rank| rank.stage);
        Self { stages: ranks.into_iter().map(|rank| (rank.stage, rank.ran)).collect() }
    }
}

/// Sends the steps of whichever job is looked into, until nobody wants any.
pub(super) fn follow(
    daemons: &Daemons,
    every: Duration,
    jobs: &Receiver<Option<JobKey>>,
    messages: &SyncSender<Message>,
) {
    let mut job = None;
    loop {
        let Some(key) = job.clone() else {
            let Ok(next) = jobs.recv() else { return };
            job = next;
            continue;
        };
        let began = Instant::now();
        let step = match ask(daemons, &key) {
            Ok(mut agent) => match wait(agent.stream(), jobs) {
                Waited::Answered => receive(&mut agent),
                Waited::Other(next) => {
                    job = next;
                    continue;
                }
                Waited::Ended => return,
            },
            Err(error) => Err(error),
        };
        // Looking on takes half of the time at most.
        let rest = if step.is_ok() { every.max(began.elapsed()) } else { AFTER_REFUSAL };
        let step = step.map_err(|error| harmless(&error.to_string()).into_owned());
        if messages.send(Message::Stepped(key, step)).is_err() {
            return;
        }
        match jobs.recv_timeout(rest) {
            Ok(next) => job = next,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn ask(daemons: &Daemons, (uid, job): &JobKey) -> Result<Connection<Agent>, Error> {
    let mut agent: Connection<Agent> = daemons.agent()?;
    let job = JobSelector { job: job.clone(), uid: Some(*uid) };
    agent.send(AgentRequest::OrderRead(job))?;
    Ok(agent)
}

fn receive(agent: &mut Connection<Agent>) -> Result<Step, Error> {
    match agent.receive(Patience::Limited)? {
        AgentResponse::Order(ranks) => Ok(Step::of(ranks)),
        other => Err(agent.unexpected(&other).into()),
    }
}

/// How a wait for a step ended.
enum Waited {
    Answered,
    /// Another job is looked into, or none.
    Other(Option<JobKey>),
    Ended,
}

fn wait(answer: &Stream, jobs: &Receiver<Option<JobKey>>) -> Waited {
    loop {
        let mut waiting = [PollFd::new(answer.as_fd(), PollFlags::POLLIN)];
        // An error shows again when the answer is read.
        if !matches!(poll(&mut waiting, PollTimeout::from(LOOK_MS)), Ok(0)) {
            return Waited::Answered;
        }
        match jobs.try_recv() {
            Ok(next) => return Waited::Other(next),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Waited::Ended,
        }
    }
}
