//! Where an experiment happens: all that it does to a job, and what it learns of it.

use std::time::Duration;

use pfo_protocol::{AgentRequest, AgentResponse, Refusal, Request, Response};

/// A job on a node, or in a test, and the two daemons that measure it.
///
/// An experiment learns everything through this, the time included. A connection that holds the job for
/// measuring is the bench's business: it opens one with the first trial, and ends it when it is dropped, by
/// which the job returns to default clocks.
pub trait Bench: Send {
    /// Asks the agent. With `within`, the request is given up after that time.
    fn agent(
        &mut self,
        request: AgentRequest,
        within: Option<Duration>,
    ) -> impl Future<Output = Result<AgentResponse, BenchError>> + Send;

    /// Asks `pfod`, in the name of the user for whom the experiment is made.
    fn pfod(
        &mut self,
        request: Request,
    ) -> impl Future<Output = Result<Response, BenchError>> + Send;

    /// Computes something that takes a while.
    fn compute<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, BenchError>> + Send;

    /// When the last answer came, since any moment before the experiment began.
    fn now(&self) -> Duration;

    /// Whether the experiment was interrupted, and the job was not measured since: its ranks may still be
    /// on their way back.
    fn is_resumed(&self) -> bool {
        false
    }

    /// Lets some time pass.
    fn pause(&mut self, length: Duration) -> impl Future<Output = ()> + Send;

    /// Takes note of how far the experiment is.
    fn show(&mut self, progress: Progress);

    /// Takes note of something that a person should read.
    fn remark(&mut self, line: String);
}

/// Why a bench has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BenchError {
    /// A daemon refused, or cannot be reached: the code of the refusal says which.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There was none within the time that it was given.
    #[error("no answer in time")]
    Late,
}

/// How far an experiment is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What it does.
    pub phase: Phase,
    /// The same in words, such as `proving pfo 1, round 2 of about 4`.
    pub now: String,
    /// How much of the phase is done, from 0 to 1.
    pub done: f64,
    /// How long the phase will still take, in seconds, where that is known.
    pub remaining_s: Option<f64>,
    /// The share of energy that the best plan so far saves.
    pub saving: Option<f64>,
}

/// What an experiment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It reads the profile, or has the job swept for it.
    Profile,
    /// It measures how the GPUs change their clocks.
    Calibration,
    /// It measures the job at default clocks.
    DefaultClocks,
    /// It computes plans.
    Planning,
    /// A policy searches on the job.
    Search,
    /// A plan and default clocks take turns.
    Proof,
}
