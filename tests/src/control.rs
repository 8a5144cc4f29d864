//! Requests to the daemon from the test itself.

use pfo_protocol::{
    ClientMessage, DaemonMessage, JobSelector, PlanStatus, Refusal, Request, Response, Status,
    SwapTarget, Swapped, TrialLength, TrialResult, TrialRun,
};

use crate::client::Client;
use crate::node::Node;

/// A job by its name.
#[must_use]
pub fn job(name: &str) -> JobSelector {
    JobSelector { job: name.parse().unwrap(), uid: None }
}

impl Client {
    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn ask(&mut self, request: Request) -> Result<Response, Refusal> {
        self.say(&ClientMessage::Request(request));
        match self.answer() {
            Ok(
                DaemonMessage::Response(Response::Refused(refusal))
                | DaemonMessage::Refusal(refusal),
            ) => Err(refusal),
            Ok(DaemonMessage::Response(response)) => Ok(response),
            other => panic!("the answer to a request is {other:?}"),
        }
    }

    /// The daemon's status.
    #[must_use]
    pub fn status(&mut self) -> Status {
        match self.ask(Request::Status) {
            Ok(Response::Status(status)) => *status,
            other => panic!("the answer to a request for status is {other:?}"),
        }
    }
}

impl Client {
    /// Runs a trial.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn trial(&mut self, name: &str, run: TrialRun, steps: u32) -> Result<TrialResult, Refusal> {
        let length = TrialLength { settling_steps: 1, steps };
        match self.ask(Request::Trial { job: job(name), run, length, samples: false })? {
            Response::Trial(result) => Ok(*result),
            other => panic!("the answer to a trial is {other:?}"),
        }
    }

    /// Ends the trials of a job.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn end_trials(&mut self, name: &str, keep: bool) -> Result<Option<PlanStatus>, Refusal> {
        match self.ask(Request::TrialsEnd { job: job(name), keep })? {
            Response::TrialsEnded(plan) => Ok(plan),
            other => panic!("the answer to the end of trials is {other:?}"),
        }
    }
}

impl Node {
    /// Loads a plan for a job.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn load(&self, name: &str, plan: &[u8]) -> Result<PlanStatus, Refusal> {
        let label = "test".into();
        let request = Request::PlanLoad { job: job(name), label, plan: plan.to_vec() };
        match self.control().ask(request)? {
            Response::Loaded(plan) => Ok(plan),
            other => panic!("the answer to a plan is {other:?}"),
        }
    }

    /// Swaps what a job runs, without waiting for it.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn swap(&self, name: &str, target: SwapTarget) -> Result<Swapped, Refusal> {
        swap(&mut self.control(), name, target, false)
    }

    /// Loads a plan and swaps to it.
    pub fn take_up(&self, name: &str, plan: &[u8]) -> Swapped {
        self.load(name, plan).unwrap();
        self.swap(name, SwapTarget::Loaded).unwrap()
    }
}

/// Swaps over a connection.
///
/// # Errors
/// The daemon's refusal.
pub fn swap(
    client: &mut Client,
    name: &str,
    target: SwapTarget,
    wait: bool,
) -> Result<Swapped, Refusal> {
    let request = Request::PlanSwap { job: job(name), target, not_before: None, wait };
    match client.ask(request)? {
        Response::Swapped(swapped) => Ok(swapped),
        other => panic!("the answer to a swap is {other:?}"),
    }
}
