//! What `pfoctl` and the agent ask of `pfod`, and what it answers: one response to each request, in
//! order.

use std::fmt;

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{Gid, GpuName, GpuUuid, JobName, Mhz, PciBusId, Pid, Uid};

use crate::clock_table::ClockTable;
use crate::job::{JobSelector, JobView, SwapTarget, Swapped};
use crate::session::Refusal;
use crate::settle::SettleTimes;
use crate::status::{ConfigStatus, Holder, PlanStatus, Status};
use crate::tap::TappedRank;
use crate::trial::{TrialLength, TrialRun};

/// One request to `pfod`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// List the GPUs of the node.
    Gpus,
    /// Report everything about the daemon, its GPUs and jobs.
    Status,
    /// Check a plan against a job and keep it for a swap.
    PlanLoad {
        /// The job.
        job: JobSelector,
        /// What to call the plan in status.
        label: String,
        /// The plan.
        table: ClockTable,
    },
    /// Change what a job runs, at the same step on all of its ranks. Refused if it has ranks on other
    /// nodes, unless the agent asks, which has all of them change.
    PlanSwap {
        /// The job.
        job: JobSelector,
        /// To what.
        target: SwapTarget,
        /// At this step, which is refused if a rank has begun it. Otherwise at the first one that
        /// no rank has begun. A table at step 0 waits for a job that is not there, if its owner is named.
        at_step: Option<u64>,
        /// Only if this is still the newest swap of the job, by the number that [`JobView`] has.
        after: Option<u64>,
        /// Answer only when every rank has changed.
        wait: bool,
    },
    /// Return the plan that a job runs.
    PlanRead(JobSelector),
    /// Restore clocks that pfo left locked and no session holds.
    ClocksReset {
        /// One GPU, or all of the node.
        gpu: Option<GpuName>,
        /// Also reset locks that pfo did not set. What a session holds is never touched.
        all: bool,
    },
    /// Report who may lease which GPUs on which terms.
    PolicyExplain {
        /// A user other than the peer.
        who: Option<User>,
        /// One GPU, or all of the node.
        gpu: Option<GpuName>,
    },
    /// Read the configuration again.
    Reload,
    /// List leases and revocations.
    Leases,
    /// End sessions, and do not let their processes open others.
    LeaseRevoke(LeaseTarget),
    /// Lift revocations.
    LeaseAllow(LeaseTarget),
    /// Begin to run something. A tap of the job says which steps are to be measured
    /// ([`TapRecord::TrialBegan`](crate::TapRecord)). The connection then holds the job for measuring until
    /// it asks for [`Request::TrialsEnd`] or ends: no other request changes what the job runs.
    Trial {
        /// The job.
        job: JobSelector,
        /// What it runs.
        run: TrialRun,
        /// For how long.
        length: TrialLength,
        /// The swap that has to be the newest one still. A connection whose first trial gives it compares
        /// in the background: its hold ends when somebody else changes the job, and the job returns to the
        /// plan that it ran before.
        after: Option<u64>,
    },
    /// Stop holding a job for measuring. A connection that ends does so too, without `keep`.
    TrialsEnd {
        /// The job.
        job: JobSelector,
        /// Continue with what the last trial ran, which must be a plan, power limits or default
        /// clocks. Otherwise the job changes to default clocks.
        keep: bool,
    },
    /// List the SM clocks of a GPU that the peer may lock.
    SmClocks(GpuName),
    /// Return the range of power limits of a GPU that the peer may choose from.
    PowerLimits(GpuName),
    /// List the jobs that the peer may see.
    Jobs,
    /// Send a [`Notice`](crate::Notice) whenever a job changes, until the connection ends. Agent
    /// only.
    WatchJobs,
    /// Stream what is seen of a job as [`TapBatch`](crate::TapBatch) frames, until the connection
    /// ends. Agent only.
    Tap {
        /// The job.
        job: JobSelector,
        /// Also read the energy counters, as often as their rhythm asks for.
        counters: bool,
    },
    /// Make every later request of this connection in the name of a user. Agent only.
    OnBehalf {
        /// The user. What it may do is decided by `pfod`.
        uid: Uid,
        /// The process that asked; none if the user waits for nothing.
        pid: Option<Pid>,
        /// Whether the user asked as an administrator, through the agent's socket for administration.
        administrator: bool,
    },
    /// End every lease, and grant none until [`Request::Undrain`] or the next boot.
    Drain {
        /// Why, for those who wonder: one line of 1 to 200 bytes.
        reason: String,
        /// Also release the driver, so that it can be unloaded and GPUs can be reset.
        release_driver: bool,
    },
    /// Grant leases again.
    Undrain,
    /// Give GPUs to a user: nobody else may lease them, and the user needs no device file.
    Grant {
        /// The user.
        uid: Uid,
        /// The GPUs. Each belongs to one user at a time: the grant before ends.
        gpus: Vec<GpuName>,
        /// When it ends, in seconds since 1970; none means with [`Request::GrantRevoke`].
        until_unix_s: Option<u64>,
    },
    /// End grants, and the leases that their users have on these GPUs.
    GrantRevoke {
        /// Only those of this user.
        uid: Option<Uid>,
        /// Only those of these GPUs; empty means all.
        gpus: Vec<GpuName>,
    },
    /// Report no more that a damaged ledger may have named locks that are lost.
    LedgerAcknowledge,
    /// Take these times for how long the clocks of a leased GPU take to be in force, until the lease
    /// ends. Agent only.
    SettleTimes {
        /// The GPU.
        gpu: GpuUuid,
        /// What was measured.
        times: SettleTimes,
    },
    /// Check a plan against a job as [`Request::PlanLoad`] does, and keep nothing.
    PlanCheck {
        /// The job.
        job: JobSelector,
        /// What the plan is to be called in status.
        label: String,
        /// The plan.
        table: ClockTable,
    },
    /// Keep a leased GPU below a power at once, whatever its job runs, until the lease ends. Agent only.
    PowerCap {
        /// The GPU.
        gpu: GpuUuid,
        /// The limit in watts, 1 to 10,000, or as little as the lease's policy and the board allow if
        /// that is more; none lets it go.
        #[serde(deserialize_with = "crate::trial::cap_w")]
        limit_w: Option<u32>,
    },
    /// As [`Request::PlanSwap`], which is refused if the job has ranks on other nodes: change those on
    /// this one alone.
    PlanSwapHere {
        /// The job.
        job: JobSelector,
        /// To what.
        target: SwapTarget,
        /// At this step, as there.
        at_step: Option<u64>,
        /// Answer only when every rank has changed.
        wait: bool,
    },
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
    pub uid: Uid,
    /// All of its groups.
    pub groups: Vec<Gid>,
    /// The path of its control group, if the rules about those are to apply.
    pub cgroup: Option<String>,
}

/// The answer of `pfod` to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// To any request.
    Refused(Refusal),
    /// To [`Request::Gpus`], in the driver's order.
    Gpus(Vec<GpuListing>),
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::PlanLoad`] and [`Request::PlanCheck`].
    Loaded(PlanStatus),
    /// To [`Request::PlanSwap`] and [`Request::PlanSwapHere`].
    Swapped(Swapped),
    /// To [`Request::PlanRead`]; none at default clocks and for plans without a clock table.
    Plan(Option<ClockTable>),
    /// To [`Request::ClocksReset`], one entry for each GPU looked at.
    Reset(Vec<ResetOutcome>),
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
        /// Every grant in force.
        granted: Vec<GpuGrant>,
    },
    /// To [`Request::LeaseRevoke`], the leases that end.
    Revoked(Vec<LeaseStatus>),
    /// To [`Request::LeaseAllow`], the revocations that were lifted.
    Allowed(Vec<RevocationStatus>),
    /// To [`Request::Trial`]. The job changes at its next step.
    TrialBegan {
        /// The first step that is to be measured, after those in which the job settles.
        first_step: u64,
        /// What the job runs in the trial; `None` is default clocks.
        plan: Option<PlanStatus>,
    },
    /// To [`Request::TrialsEnd`], what the job runs from now on or changes to.
    TrialsEnded(Option<PlanStatus>),
    /// To [`Request::SmClocks`], rising.
    SmClocks(Vec<Mhz>),
    /// To [`Request::PowerLimits`].
    PowerLimits {
        /// The lowest, in watts.
        lowest_w: u32,
        /// The one that the GPU has without pfo, in watts.
        highest_w: u32,
    },
    /// To [`Request::Jobs`], by owner and name.
    Jobs(Vec<JobView>),
    /// To [`Request::Tap`]; batches follow.
    Tapped(Vec<TappedRank>),
    /// To [`Request::WatchJobs`], [`Request::OnBehalf`], [`Request::Undrain`],
    /// [`Request::LedgerAcknowledge`], [`Request::SettleTimes`] and [`Request::PowerCap`].
    Done,
    /// To [`Request::Drain`], how many leases end.
    Drained(u32),
    /// To [`Request::Grant`], what is granted now, and to [`Request::GrantRevoke`], what has ended.
    Granted(Vec<GpuGrant>),
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

/// Whether a user may lease a GPU.
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
    pub min_mhz: Mhz,
    /// The highest SM clock that may be locked, in MHz.
    pub max_mhz: Mhz,
    /// The lowest power limit that may be set, in watts.
    pub min_power_limit_w: u32,
    /// Clock changes that may be asked of the driver in a second.
    pub changes_per_second: u32,
    /// What the SM clock is left at, in MHz; none is what the driver chooses.
    pub restore_to_mhz: Option<(Mhz, Mhz)>,
    /// Sessions that the user may have open at once.
    pub sessions_per_user: u32,
    /// Seconds of silence after which a session ends.
    pub idle_limit_s: u32,
    /// Whether the peer must have a process on the GPU.
    pub require_process: bool,
    /// Whether the peer must have the GPU's device file open.
    pub require_device: bool,
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
    /// Who holds it; none for a user who may not see the holder's jobs.
    pub holder: Option<Holder>,
    /// Since when this daemon gave it, in seconds since 1970.
    pub since_unix_s: u64,
    /// The SM clock that pfo locked, in MHz; none if it holds no lock.
    pub requested_mhz: Option<Mhz>,
    /// The SM clock that the driver reports, in MHz.
    pub observed_mhz: Option<Mhz>,
}

/// A revocation that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationStatus {
    /// The job.
    pub job: JobName,
    /// Whose it is.
    pub uid: Uid,
    /// The GPU; none means every GPU.
    pub gpu_uuid: Option<GpuUuid>,
    /// Who revoked.
    pub by_uid: Uid,
    /// When, in seconds since 1970.
    pub since_unix_s: u64,
    /// Processes that held a lease and are still there. It ends with the last one.
    pub processes: u32,
}

/// A GPU that an administrator has given to a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuGrant {
    /// The GPU.
    pub gpu_uuid: GpuUuid,
    /// The user.
    pub uid: Uid,
    /// Who gave it.
    pub by_uid: Uid,
    /// When, in seconds since 1970.
    pub since_unix_s: u64,
    /// When it ends, in seconds since 1970; none means with [`Request::GrantRevoke`].
    pub until_unix_s: Option<u64>,
}

#[cfg(test)]
mod tests {
    use pfo_vocabulary::{Instruction, Unit};

    use super::*;
    use crate::clock_table::PlannedUnit;
    use crate::frame::{HEADER_BYTES, Kind};
    use crate::message::{ClientMessage, DaemonMessage};

    fn job() -> JobSelector {
        JobSelector { job: "j".parse().unwrap(), uid: None }
    }

    fn frame(request: Request) -> Vec<u8> {
        ClientMessage::Request(request).to_frame().unwrap()
    }

    #[test]
    fn the_bytes_of_a_swap_are_the_documented_ones() {
        let at_step = Some(9);
        let target = SwapTarget::Previous;
        #[rustfmt::skip]
        assert_eq!(frame(Request::PlanSwap { job: job(), target, at_step, after: Some(4), wait: true }), [
            37, 0, 0, 0,  1, 0,  6, 0,
            3, 0, 0, 0,                                     // plan swap
            1, 0, 0, 0, 0, 0, 0, 0, b'j',                   // job
            0,                                              // no uid
            1, 0, 0, 0,                                     // previous
            1, 9, 0, 0, 0, 0, 0, 0, 0,                      // some: not before step 9
            1, 4, 0, 0, 0, 0, 0, 0, 0,                      // some: after swap 4
            1,                                              // wait
        ]);
    }

    #[test]
    fn the_bytes_of_a_swap_of_one_node_are_the_documented_ones() {
        let (target, at_step) = (SwapTarget::DefaultClocks, Some(9));
        #[rustfmt::skip]
        assert_eq!(frame(Request::PlanSwapHere { job: job(), target, at_step, wait: true }), [
            28, 0, 0, 0,  1, 0,  6, 0,
            27, 0, 0, 0,                                    // plan swap here
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
            2, 0, 0, 0,                                     // default clocks
            1, 9, 0, 0, 0, 0, 0, 0, 0,                      // some: not before step 9
            1,                                              // wait
        ]);
    }

    #[test]
    fn the_bytes_of_a_swap_to_a_table_are_the_documented_ones() {
        let unit = PlannedUnit {
            unit: Unit::new(Instruction::Backward, 0),
            mhz: Mhz(900),
            wait_mhz: None,
        };
        let table = ClockTable::new(1, None, vec![vec![unit]]).unwrap();
        let target = SwapTarget::Table { label: "l".into(), table };
        #[rustfmt::skip]
        assert_eq!(frame(Request::PlanSwap { job: job(), target, at_step: None, after: None, wait: false }), [
            66, 0, 0, 0,  1, 0,  6, 0,
            3, 0, 0, 0,                                     // plan swap
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
            3, 0, 0, 0,                                     // table
            1, 0, 0, 0, 0, 0, 0, 0, b'l',                   // label
            1, 0, 0, 0, 0,                                  // one microbatch, no prediction
            1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, // one stage, one unit
            1, 0, 0, 0,  0, 0,  0, 0, 0, 0,  0x84, 3, 0, 0, // backward, chunk, microbatch, 900 MHz
            0,                                              // no clock for the wait before it
            0, 0, 0,                                        // at any step, after any swap, do not wait
        ]);
    }

    #[test]
    fn the_bytes_of_a_revocation_are_the_documented_ones() {
        #[rustfmt::skip]
        assert_eq!(frame(Request::LeaseRevoke(LeaseTarget::Job(job()))), [
            18, 0, 0, 0,  1, 0,  6, 0,
            9, 0, 0, 0,                                     // lease revoke
            1, 0, 0, 0,                                     // of a job
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
        ]);
    }

    #[test]
    fn the_bytes_of_a_question_about_policy_are_the_documented_ones() {
        let groups = vec![Gid(50), Gid(51)];
        let who = Some(User { uid: Uid(7), groups, cgroup: Some("/a".into()) });
        #[rustfmt::skip]
        assert_eq!(frame(Request::PolicyExplain { who, gpu: Some("GPU-a".parse().unwrap()) }), [
            54, 0, 0, 0,  1, 0,  6, 0,
            6, 0, 0, 0,                                     // policy explain
            1, 7, 0, 0, 0,                                  // some: uid 7
            2, 0, 0, 0, 0, 0, 0, 0, 50, 0, 0, 0, 51, 0, 0, 0,
            1, 2, 0, 0, 0, 0, 0, 0, 0, b'/', b'a',          // some: control group
            1, 0, 0, 0, 0,                                  // some: GPU by UUID
            5, 0, 0, 0, 0, 0, 0, 0, b'G', b'P', b'U', b'-', b'a',
        ]);
    }

    #[test]
    fn the_bytes_of_a_trial_are_the_documented_ones() {
        let length = TrialLength { settling_steps: 1, steps: 20 };
        let uniform = TrialRun::Uniform(Mhz(1410));
        #[rustfmt::skip]
        assert_eq!(frame(Request::Trial { job: job(), run: uniform, length, after: None }), [
            31, 0, 0, 0,  1, 0,  6, 0,
            11, 0, 0, 0,                                    // trial
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
            2, 0, 0, 0, 130, 5, 0, 0,                       // uniform: 1410 MHz
            1, 0, 0, 0, 20, 0, 0, 0, 0,                     // settling steps, steps, no swap
        ]);
        let run = TrialRun::PowerLimits { label: "z".into(), limits_w: vec![200, 250] };
        #[rustfmt::skip]
        assert_eq!(frame(Request::Trial { job: job(), run, length, after: Some(7) }), [
            60, 0, 0, 0,  1, 0,  6, 0,
            11, 0, 0, 0,                                    // trial
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
            3, 0, 0, 0,                                     // power limits
            1, 0, 0, 0, 0, 0, 0, 0, b'z',                   // label
            2, 0, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0, 250, 0, 0, 0,
            1, 0, 0, 0, 20, 0, 0, 0,                        // settling steps, steps
            1, 7, 0, 0, 0, 0, 0, 0, 0,                      // after swap 7
        ]);
    }

    #[test]
    fn the_bytes_of_acting_for_a_user_are_the_documented_ones() {
        #[rustfmt::skip]
        assert_eq!(frame(Request::OnBehalf { uid: Uid(1000), pid: Some(Pid(77)), administrator: true }), [
            14, 0, 0, 0,  1, 0,  6, 0,
            18, 0, 0, 0,                                    // on behalf
            0xe8, 3, 0, 0,  1, 77, 0, 0, 0,  1,             // uid, some: pid, administrator
        ]);
    }

    #[test]
    fn the_bytes_of_a_power_cap_are_the_documented_ones_and_no_gpu_has_no_power() {
        let cap = |limit_w| {
            let gpu = "GPU-1".parse().unwrap();
            ClientMessage::Request(Request::PowerCap { gpu, limit_w }).to_frame().unwrap()
        };
        #[rustfmt::skip]
        assert_eq!(cap(Some(250)), [
            22, 0, 0, 0,  1, 0,  6, 0,
            26, 0, 0, 0,                                    // power cap
            5, 0, 0, 0, 0, 0, 0, 0, 71, 80, 85, 45, 49,     // the GPU
            1, 250, 0, 0, 0,                                // some: watts
        ]);
        for (limit_w, is_one) in
            [(None, true), (Some(0), false), (Some(10_000), true), (Some(10_001), false)]
        {
            let bytes = cap(limit_w);
            let decoded = ClientMessage::from_payload(Kind::Request, &bytes[HEADER_BYTES..]);
            assert_eq!(decoded.is_ok(), is_one, "{limit_w:?}: {decoded:?}");
        }
    }

    #[test]
    fn the_bytes_of_the_range_of_power_limits_are_the_documented_ones() {
        let range = Response::PowerLimits { lowest_w: 100, highest_w: 300 };
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::Response(range).to_frame().unwrap(), [
            12, 0, 0, 0,  1, 0,  137, 0,
            15, 0, 0, 0,                                    // power limits
            100, 0, 0, 0, 44, 1, 0, 0,                      // watts: lowest, highest
        ]);
    }
}
