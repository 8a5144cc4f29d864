//! What `pfoctl` asks and what the daemon answers: one response to each request, in order.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::{GpuName, GpuUuid, JobName, PciBusId};
use crate::p2p::{P2pPower, P2pTarget};
use crate::sample::SamplePage;
use crate::session::Refusal;
use crate::status::{ConfigStatus, FrontierStatus, Holder, PlanStatus, Status};
use crate::sweep::{ProfileSelector, StoredProfile, SweepControl, SweepOrder, SweepStatus};
use crate::trial::{TrialLength, TrialResult, TrialRun};

/// Which job is meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSelector {
    /// The job's name.
    pub job: JobName,
    /// Whose job; none means the peer's own or, for an administrator, the only one of that name.
    pub uid: Option<u32>,
}

/// What a job shall run from the swap on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwapTarget {
    /// The plan that was loaded before.
    Loaded,
    /// What ran before the current plan.
    Previous,
    /// No plan: default clocks.
    DefaultClocks,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Request {
    /// Which GPUs the node has.
    Gpus,
    /// Everything about daemon, GPUs and jobs.
    Status,
    /// Check a plan against a job and keep it for a swap.
    PlanLoad {
        /// The job.
        job: JobSelector,
        /// What to call the plan in status.
        label: String,
        /// The plan, `pfo-plan/1` JSON.
        plan: Vec<u8>,
    },
    /// Change what a job runs, at the same step on all of its ranks.
    PlanSwap {
        /// The job.
        job: JobSelector,
        /// To what.
        target: SwapTarget,
        /// Not before this step; the daemon takes the first one that no rank has begun.
        not_before: Option<u64>,
        /// Answer only when every rank has changed.
        wait: bool,
    },
    /// Restore clocks that pfo left locked and no session holds.
    ClocksReset {
        /// One GPU, or all of the node.
        gpu: Option<GpuName>,
        /// Also reset locks that pfo did not set. What a session holds is never touched.
        all: bool,
    },
    /// Who may lease which GPUs on which terms.
    PolicyExplain {
        /// Somebody else than the peer.
        who: Option<User>,
        /// One GPU, or all of the node.
        gpu: Option<GpuName>,
    },
    /// Read the configuration again.
    Reload,
    /// Who holds which GPU, and who is not to.
    Leases,
    /// End sessions, and do not let their processes open others.
    LeaseRevoke(LeaseTarget),
    /// Lift revocations.
    LeaseAllow(LeaseTarget),
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
    /// Run something for some steps and measure it. The connection then holds the job for measuring
    /// until it asks for [`Request::TrialsEnd`] or ends: nobody else changes what the job runs.
    Trial {
        /// The job.
        job: JobSelector,
        /// What it runs.
        run: TrialRun,
        /// For how long.
        length: TrialLength,
        /// Keep each instruction by itself, too, for [`Request::TrialSamples`].
        samples: bool,
    },
    /// Stop holding a job for measuring. A connection that ends does so too, without `keep`.
    TrialsEnd {
        /// The job.
        job: JobSelector,
        /// Go on with what the last trial ran, which must be a plan, power limits or default clocks. Otherwise
        /// the job changes to default clocks.
        keep: bool,
    },
    /// Whether the daemon is to answer stragglers that it finds itself.
    StragglerAuto {
        /// The job.
        job: JobSelector,
        /// Whether it is.
        on: bool,
    },
    /// Sweep a job through its clocks and store the profile. It goes on without the connection, and holds
    /// the job for measuring meanwhile; at its end the job runs at default clocks.
    SweepStart(SweepOrder),
    /// Pause, resume or stop the sweep of a job.
    SweepControl {
        /// The job.
        job: JobSelector,
        /// What is to become of its sweep.
        control: SweepControl,
    },
    /// Every sweep that the peer may see.
    Sweeps,
    /// Every stored profile that the peer may see.
    Profiles,
    /// The CSV of a stored profile.
    ProfileRead(ProfileSelector),
    /// Which SM clocks of a GPU the peer may lock.
    SmClocks(GpuName),
    /// Every P2P-blocking power that is known.
    P2pPowers,
    /// Keep what the trials of a job that this connection holds have shown of its waits.
    P2pKeep(JobSelector),
    /// Set a P2P-blocking power, in watts, or forget what was set.
    P2pSet {
        /// Of what.
        target: P2pTarget,
        /// The power; none to forget it.
        power_w: Option<f64>,
    },
    /// Hand out the next instructions that the last trial of this connection kept, each once.
    TrialSamples(JobSelector),
    /// Between which power limits of a GPU the peer may choose.
    PowerLimits(GpuName),
    /// As [`Request::SweepStart`], or go on with the job's sweep that is not over, for as long as the
    /// connection lasts: it is answered when the sweep is over or paused, and a connection that ends before
    /// pauses it.
    SweepAttend(SweepOrder),
    /// The CSV of the clocks that the sweep of a job has measured so far.
    SweepRead(JobSelector),
}

/// The leases that are meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseTarget {
    /// The one of this GPU.
    Gpu(GpuName),
    /// All of this job.
    Job(JobSelector),
}

impl fmt::Display for LeaseTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(gpu) => write!(f, "GPU {gpu}"),
            Self::Job(JobSelector { job, .. }) => write!(f, "job {job}"),
        }
    }
}

/// A user, as the kernel would know its processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// All of its groups.
    pub groups: Vec<u32>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Response {
    /// To [`Request::Gpus`], in the driver's order.
    Gpus(Vec<GpuListing>),
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::PlanLoad`].
    Loaded(PlanStatus),
    /// To [`Request::PlanSwap`] and [`Request::Straggler`].
    Swapped(Swapped),
    /// To [`Request::ClocksReset`], one entry for each GPU looked at.
    Reset(Vec<ResetOutcome>),
    /// To any request.
    Refused(Refusal),
    /// To [`Request::PolicyExplain`], in the driver's order.
    Policy(Vec<PolicyVerdict>),
    /// To [`Request::Reload`].
    Reloaded(Reloaded),
    /// To [`Request::Leases`].
    Leases {
        /// Every lease, in the driver's order of the GPUs.
        leases: Vec<LeaseStatus>,
        /// Every revocation that stands.
        revoked: Vec<RevocationStatus>,
    },
    /// To [`Request::LeaseRevoke`], the leases that end.
    Revoked(Vec<LeaseStatus>),
    /// To [`Request::LeaseAllow`], the revocations that were lifted.
    Allowed(Vec<RevocationStatus>),
    /// To [`Request::FrontierLoad`] and [`Request::StragglerAuto`].
    Frontier(FrontierStatus),
    /// To [`Request::SmClocks`], in MHz, rising.
    SmClocks(Vec<u32>),
    /// To [`Request::P2pPowers`]; to [`Request::P2pKeep`] and [`Request::P2pSet`] those that are new.
    P2pPowers(Vec<P2pPower>),
    /// To [`Request::Trial`], when it is over.
    Trial(Box<TrialResult>),
    /// To [`Request::TrialsEnd`], what the job runs from now on or changes to.
    TrialsEnded(Option<PlanStatus>),
    /// To [`Request::SweepStart`], [`Request::SweepAttend`] and [`Request::SweepControl`].
    Sweep(Box<SweepStatus>),
    /// To [`Request::SweepStart`] and [`Request::SweepAttend`] with `reuse`, if there is a profile already.
    Reused(StoredProfile),
    /// To [`Request::Sweeps`], by owner and job.
    Sweeps(Vec<SweepStatus>),
    /// To [`Request::Profiles`], by owner and model.
    Profiles(Vec<StoredProfile>),
    /// To [`Request::ProfileRead`].
    Profile {
        /// Which it is.
        profile: StoredProfile,
        /// The CSV, as the planner reads it.
        csv: Vec<u8>,
    },
    /// To [`Request::TrialSamples`], rank by rank; none when all are handed out.
    TrialSamples(Option<SamplePage>),
    /// To [`Request::PowerLimits`].
    PowerLimits {
        /// The lowest, in watts.
        lowest_w: u32,
        /// The one that the GPU has without pfo, in watts.
        highest_w: u32,
    },
    /// To [`Request::SweepRead`].
    Swept {
        /// The sweep, which is not over.
        sweep: Box<SweepStatus>,
        /// The CSV, as the planner reads it.
        csv: Vec<u8>,
    },
}

/// A GPU as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuListing {
    /// The UUID.
    pub uuid: GpuUuid,
    /// The PCI bus id.
    pub pci_bus_id: PciBusId,
    /// The model.
    pub model: String,
}

/// A swap that was decided or, with `wait`, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Swapped {
    /// The plan; none at default clocks.
    pub plan: Option<PlanStatus>,
    /// The step at which every rank changes.
    pub step: u64,
    /// The ranks on this node that take part.
    pub ranks: u32,
    /// How many of them have changed already.
    pub changed: u32,
}

/// What became of one GPU in a reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetOutcome {
    /// The GPU.
    pub uuid: GpuUuid,
    /// What was done, or why nothing was.
    pub outcome: String,
    /// Whether the GPU is free of locks of pfo now.
    pub restored: bool,
}

/// Whether somebody may lease a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyVerdict {
    /// The driver's index, for people only.
    pub index: u32,
    /// The GPU.
    pub gpu: GpuListing,
    /// The line of the configuration that decided, or what did so instead.
    pub decided_by: String,
    /// On which terms; none means no.
    pub terms: Option<LeaseTerms>,
}

/// What a lease gives and takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerms {
    /// The lowest SM clock that may be locked, in MHz.
    pub min_mhz: u32,
    /// The highest SM clock that may be locked, in MHz.
    pub max_mhz: u32,
    /// The lowest power limit that may be set, in watts.
    pub min_power_limit_w: u32,
    /// Clock changes that may be asked of the driver in a second.
    pub changes_per_second: u32,
    /// What the SM clock is left at, in MHz; none is what the driver chooses.
    pub restore_to_mhz: Option<(u32, u32)>,
    /// Sessions that the user may have open at once.
    pub sessions_per_user: u32,
    /// Seconds of silence after which a session ends.
    pub idle_limit_s: u32,
    /// Whether the peer must have a process on the GPU.
    pub require_process: bool,
}

/// What became of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// What is in force now.
    pub config: ConfigStatus,
    /// The sessions that are not allowed any more and were ended, each with the reason.
    pub ended: Vec<String>,
    /// The plans that are not allowed any more and were suspended, each with the reason.
    pub suspended: Vec<String>,
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// The driver's index of the GPU, for people only.
    pub index: u32,
    /// The GPU.
    pub gpu: GpuListing,
    /// Who holds it.
    pub holder: Holder,
    /// Since when this daemon gave it, in seconds since 1970.
    pub since_unix_s: u64,
    /// The SM clock that pfo locked, in MHz; none if it holds no lock.
    pub requested_mhz: Option<u32>,
    /// The SM clock that the driver reports, in MHz.
    pub observed_mhz: Option<u32>,
}

/// A revocation that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationStatus {
    /// The job.
    pub job: JobName,
    /// Whose it is.
    pub uid: u32,
    /// The GPU; none means every GPU.
    pub gpu_uuid: Option<GpuUuid>,
    /// Who revoked.
    pub by_uid: u32,
    /// When, in seconds since 1970.
    pub since_unix_s: u64,
    /// Processes that held a lease and are still there. It ends with the last one.
    pub processes: u32,
}
