//! Requests to pfod and to the agent from the test itself.

use pfo_protocol::{
    AgentRequest, AgentResponse, AgentStatus, ClientMessage, ClockTable, DaemonMessage,
    JobSelector, PlanStatus, RecordedTrial, Refusal, Request, Response, Status, SwapTarget,
    Swapped, TrialLength, TrialResult, TrialRun,
};

use crate::client::Client;
use crate::node::Node;

/// A job by its name.
#[must_use]
pub fn job(name: &str) -> JobSelector {
    JobSelector { job: name.parse().unwrap(), uid: None }
}

/// Some steps, after one in which clocks settle.
#[must_use]
pub fn after_settling(steps: u32) -> TrialLength {
    TrialLength { settling_steps: 1, steps }
}

impl Client {
    /// Asks pfod, and waits for the answer.
    ///
    /// # Errors
    /// The refusal.
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

    /// Asks the agent, and waits for the answer.
    ///
    /// # Errors
    /// The refusal.
    pub fn ask_agent(&mut self, request: AgentRequest) -> Result<AgentResponse, Refusal> {
        self.say(&ClientMessage::AgentRequest(request));
        match self.answer() {
            Ok(
                DaemonMessage::AgentResponse(AgentResponse::Refused(refusal))
                | DaemonMessage::Refusal(refusal),
            ) => Err(refusal),
            Ok(DaemonMessage::AgentResponse(response)) => Ok(response),
            other => panic!("the answer to a request is {other:?}"),
        }
    }

    /// What pfod says of itself, its GPUs and jobs.
    #[must_use]
    pub fn status(&mut self) -> Status {
        match self.ask(Request::Status) {
            Ok(Response::Status(status)) => *status,
            other => panic!("the answer to a request for status is {other:?}"),
        }
    }

    /// What the agent says of itself and the jobs that it watches.
    #[must_use]
    pub fn agent_status(&mut self) -> AgentStatus {
        match self.ask_agent(AgentRequest::Status) {
            Ok(AgentResponse::Status(status)) => *status,
            other => panic!("the answer to a request for status is {other:?}"),
        }
    }
}

impl Client {
    /// Runs a trial, which the agent measures.
    ///
    /// # Errors
    /// The refusal.
    pub fn trial(&mut self, name: &str, run: TrialRun, steps: u32) -> Result<TrialResult, Refusal> {
        self.record(name, run, after_settling(steps), false).map(|recorded| recorded.trial)
    }

    /// Ends the trials of a job.
    ///
    /// # Errors
    /// The refusal.
    pub fn end_trials(&mut self, name: &str, keep: bool) -> Result<Option<PlanStatus>, Refusal> {
        match self.ask_agent(AgentRequest::RecordingEnd { job: job(name), keep })? {
            AgentResponse::RecordingEnded(plan) => Ok(plan),
            other => panic!("the answer to the end of trials is {other:?}"),
        }
    }

    /// Runs a trial that the agent records.
    ///
    /// # Errors
    /// The refusal.
    pub fn record(
        &mut self,
        name: &str,
        run: TrialRun,
        length: TrialLength,
        samples: bool,
    ) -> Result<RecordedTrial, Refusal> {
        match self.ask_agent(AgentRequest::Record { job: job(name), run, length, samples })? {
            AgentResponse::Recorded(trial) => Ok(*trial),
            other => panic!("the answer to a recorded trial is {other:?}"),
        }
    }
}

impl Node {
    /// Loads a plan for a job.
    ///
    /// # Errors
    /// The refusal.
    pub fn load(&self, name: &str, plan: impl Into<ClockTable>) -> Result<PlanStatus, Refusal> {
        let (label, table) = ("test".into(), plan.into());
        match self.control().ask(Request::PlanLoad { job: job(name), label, table })? {
            Response::Loaded(plan) => Ok(plan),
            other => panic!("the answer to a plan is {other:?}"),
        }
    }

    /// Swaps what a job runs, without waiting for it.
    ///
    /// # Errors
    /// The refusal.
    pub fn swap(&self, name: &str, target: SwapTarget) -> Result<Swapped, Refusal> {
        swap(&mut self.control(), name, target, false)
    }

    /// Loads a plan and swaps to it.
    pub fn take_up(&self, name: &str, plan: impl Into<ClockTable>) -> Swapped {
        self.load(name, plan).unwrap();
        self.swap(name, SwapTarget::Loaded).unwrap()
    }
}

/// Swaps over a connection.
///
/// # Errors
/// The refusal.
pub fn swap(
    client: &mut Client,
    name: &str,
    target: SwapTarget,
    wait: bool,
) -> Result<Swapped, Refusal> {
    // A test has the ranks that it is about, which need not be all of their job.
    let request = Request::PlanSwapHere { job: job(name), target, at_step: None, wait };
    match client.ask(request)? {
        Response::Swapped(swapped) => Ok(swapped),
        other => panic!("the answer to a swap is {other:?}"),
    }
}
