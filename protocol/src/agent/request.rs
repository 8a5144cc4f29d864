//! What `pfoctl` asks of the agent, and what it answers: one response to each request, in order.

use serde::{Deserialize, Serialize};

use crate::agent::p2p::{P2pPower, P2pTarget};
use crate::agent::recorded::RecordedTrial;
use crate::agent::sample::SamplePage;
use crate::agent::status::{AgentStatus, FrontierStatus};
use crate::agent::sweep::{ProfileSelector, StoredProfile, SweepControl, SweepOrder, SweepStatus};
use crate::job::{JobSelector, Swapped};
use crate::session::Refusal;
use crate::status::PlanStatus;
use crate::trial::{TrialLength, TrialRun};

/// One request to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentRequest {
    /// Everything about the agent and the jobs that it watches.
    Status,
    /// Run something for some steps and measure its instructions. The connection then holds the job for
    /// measuring until it asks for [`AgentRequest::RecordingEnd`] or ends.
    Record {
        /// The job.
        job: JobSelector,
        /// What it runs.
        run: TrialRun,
        /// For how long.
        length: TrialLength,
        /// Keep each instruction by itself, too, for [`AgentRequest::Samples`].
        samples: bool,
    },
    /// Stop holding a job for measuring. A connection that ends does so too, without `keep`.
    RecordingEnd {
        /// The job.
        job: JobSelector,
        /// Continue with what the last trial ran, which must be a plan, power limits or default clocks.
        /// Otherwise the job changes to default clocks.
        keep: bool,
    },
    /// Hand out the next instructions that the last trial of this connection kept, each once.
    Samples(JobSelector),
    /// Check a frontier against a job and keep it, for stragglers.
    FrontierLoad {
        /// The job.
        job: JobSelector,
        /// What to call the frontier in status.
        label: String,
        /// The bytes of a frontier file.
        frontier: Vec<u8>,
    },
    /// Run the plan of the frontier for a straggler.
    Straggler {
        /// The job.
        job: JobSelector,
        /// How many times the fastest iteration the straggler's takes; none if it is over, and what
        /// ran before it is to run again.
        slowdown: Option<f64>,
        /// Answer only when every rank has changed.
        wait: bool,
    },
    /// Whether the agent is to answer stragglers that it finds itself.
    StragglerAuto {
        /// The job.
        job: JobSelector,
        /// Whether it is.
        on: bool,
    },
    /// Sweep a job through its clocks and store the profile. The sweep continues without the connection,
    /// and holds the job for measuring meanwhile; at its end the job runs at default clocks.
    SweepStart(SweepOrder),
    /// As [`AgentRequest::SweepStart`], or continue the job's unfinished sweep, for as long as the connection
    /// lasts: it is answered when the sweep is over or paused, and a connection that ends before pauses it.
    SweepAttend(SweepOrder),
    /// Pause, resume or stop the sweep of a job.
    SweepControl {
        /// The job.
        job: JobSelector,
        /// What is to become of its sweep.
        control: SweepControl,
    },
    /// Every sweep that the peer may see.
    Sweeps,
    /// The CSV of the clocks that the sweep of a job has measured so far.
    SweepRead(JobSelector),
    /// Every stored profile that the peer may see.
    Profiles,
    /// The CSV of a stored profile.
    ProfileRead(ProfileSelector),
    /// Every P2P-blocking power that is known.
    P2pPowers,
    /// Keep what the trials of a job that this connection holds have shown of its waits.
    P2pKeep(JobSelector),
    /// Set a P2P-blocking power, or forget what was set.
    P2pSet {
        /// Of what.
        target: P2pTarget,
        /// The power in watts; none to forget it.
        power_w: Option<f64>,
    },
}

/// The answer of the agent to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentResponse {
    /// To any request.
    Refused(Refusal),
    /// To [`AgentRequest::Status`].
    Status(Box<AgentStatus>),
    /// To [`AgentRequest::Record`], when the trial is over.
    Recorded(Box<RecordedTrial>),
    /// To [`AgentRequest::RecordingEnd`], what the job runs from now on or changes to.
    RecordingEnded(Option<PlanStatus>),
    /// To [`AgentRequest::Samples`], rank by rank; none when all are handed out.
    Samples(Option<SamplePage>),
    /// To [`AgentRequest::FrontierLoad`] and [`AgentRequest::StragglerAuto`].
    Frontier(FrontierStatus),
    /// To [`AgentRequest::Straggler`].
    Swapped(Swapped),
    /// To [`AgentRequest::SweepStart`], [`AgentRequest::SweepAttend`] and [`AgentRequest::SweepControl`].
    Sweep(Box<SweepStatus>),
    /// To [`AgentRequest::SweepStart`] and [`AgentRequest::SweepAttend`] with `reuse`, if there is a profile
    /// already.
    Reused(StoredProfile),
    /// To [`AgentRequest::Sweeps`], by owner and job.
    Sweeps(Vec<SweepStatus>),
    /// To [`AgentRequest::SweepRead`].
    Swept {
        /// The sweep, which is not over.
        sweep: Box<SweepStatus>,
        /// The CSV, as the planner reads it.
        csv: Vec<u8>,
    },
    /// To [`AgentRequest::Profiles`], by owner and model.
    Profiles(Vec<StoredProfile>),
    /// To [`AgentRequest::ProfileRead`].
    Profile {
        /// Which it is.
        profile: StoredProfile,
        /// The CSV, as the planner reads it.
        csv: Vec<u8>,
    },
    /// To [`AgentRequest::P2pPowers`]; to [`AgentRequest::P2pKeep`] and [`AgentRequest::P2pSet`] those that
    /// are new.
    P2pPowers(Vec<P2pPower>),
}
