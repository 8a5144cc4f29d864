//! What the agent is asked for a trial, and what it hands out: windows and recordings.

use pfo_protocol::{
    AgentRequest, AgentResponse, JobSelector, RecordedTrial, TrialLength, TrialResult, TrialRun,
};

use crate::daemons::{Agent, Daemon};

/// A daemon that runs trials on a job and holds the job meanwhile.
pub(crate) trait Measuring: Daemon {
    type Trial;

    fn trial_request(job: JobSelector, run: TrialRun, length: TrialLength) -> Self::Request;

    /// The trial, or the response that is none.
    fn trial(response: Self::Response) -> Result<Self::Trial, Self::Response>;

    fn end_request(job: JobSelector) -> Self::Request;

    /// Whether that is done, or the response that does not say it.
    fn ended(response: Self::Response) -> Result<(), Self::Response>;

    /// The windows of a trial.
    fn windows(trial: &Self::Trial) -> &TrialResult;
}

impl Measuring for Agent {
    type Trial = RecordedTrial;

    fn trial_request(job: JobSelector, run: TrialRun, length: TrialLength) -> AgentRequest {
        AgentRequest::Record { job, run, length, samples: false }
    }

    fn trial(response: AgentResponse) -> Result<RecordedTrial, AgentResponse> {
        match response {
            AgentResponse::Recorded(trial) => Ok(*trial),
            other => Err(other),
        }
    }

    fn end_request(job: JobSelector) -> AgentRequest {
        AgentRequest::RecordingEnd { job, keep: false }
    }

    fn ended(response: AgentResponse) -> Result<(), AgentResponse> {
        match response {
            AgentResponse::RecordingEnded(_) => Ok(()),
            other => Err(other),
        }
    }

    fn windows(trial: &RecordedTrial) -> &TrialResult {
        &trial.trial
    }
}
