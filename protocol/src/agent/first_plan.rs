//! First plans: what a job begins with at its first step, kept for its name before it is there.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{JobName, Uid};

/// A plan that the agent keeps for a job. `pfoctl plan list --json` prints these very fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstPlan {
    /// The job's name.
    pub job: JobName,
    /// Whose it is.
    pub uid: Uid,
    /// What the plan is called in status.
    pub label: String,
    /// Its number of stages.
    pub stages: u32,
    /// The microbatches of a step.
    pub num_microbatches: u32,
    /// When it was loaded, in seconds since 1970.
    pub loaded_unix_s: u64,
    /// What has become of it.
    pub state: FirstPlanState,
}

/// What has become of a first plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstPlanState {
    /// `pfod` has it: the job begins with it.
    Ready,
    /// `pfod` does not have it yet, or the job has just left this node: a job that is back within a
    /// minute continues with what it ran.
    Unready,
    /// The job is on this node and began with it.
    Begun,
    /// The job is on this node and began with something else; its next run begins with the plan.
    NextRun,
    /// Why the job did not or would not begin with it: the first difference.
    Refused(String),
}

/// A rank that is about to begin its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginningRank {
    /// The name of its job, which is the peer's own.
    pub job: JobName,
    /// The number of pipeline stages.
    pub pp_degree: u32,
    /// The number of microbatches of a step, if the rank knows it.
    pub num_microbatches: Option<u32>,
}

/// A plan file of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFile {
    /// What to call the plan in status.
    pub label: String,
    /// Its bytes, pfo-plan/1 JSON.
    pub json: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::request::AgentRequest;
    use crate::message::ClientMessage;

    #[test]
    fn the_bytes_of_a_rank_that_brings_a_plan_are_the_documented_ones() {
        let rank =
            BeginningRank { job: "j".parse().unwrap(), pp_degree: 4, num_microbatches: Some(8) };
        let plan = Some(PlanFile { label: "p".into(), json: b"{}".to_vec() });
        let request = AgentRequest::JobBegins { rank, plan };
        #[rustfmt::skip]
        assert_eq!(ClientMessage::AgentRequest(request).to_frame().unwrap(), [
            42, 0, 0, 0,  1, 0,  5, 0,
            31, 0, 0, 0,                                    // job begins
            1, 0, 0, 0, 0, 0, 0, 0, b'j',                   // job
            4, 0, 0, 0,  1, 8, 0, 0, 0,                     // stages, some: microbatches
            1,                                              // a plan
            1, 0, 0, 0, 0, 0, 0, 0, b'p',                   // label
            2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}',             // bytes
        ]);
    }
}
