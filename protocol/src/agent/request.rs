//! What `pfoctl` asks of the agent, and what it answers: one response to each request, in order.

use std::ops::RangeInclusive;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use pfo_vocabulary::{GpuUuid, JobName, PartitionName, Uid};

use crate::agent::budget::{
    BudgetChange, BudgetDraft, BudgetOrder, BudgetReport, BudgetScope, BudgetTerms, SignedBudgets,
};
use crate::agent::calibration::Calibration;
use crate::agent::first_plan::{BeginningRank, FirstPlan, PlanFile};
use crate::agent::fleet::{FleetFinding, FleetStatus, FleetSwapped};
use crate::agent::own_order::RankOrder;
use crate::agent::p2p::{P2pPower, P2pTarget};
use crate::agent::recorded::RecordedTrial;
use crate::agent::sample::SamplePage;
use crate::agent::savings::{SavingsQuery, SavingsReport};
use crate::agent::status::{AgentStatus, FrontierStatus, GuardStatus};
use crate::agent::sweep::{ProfileSelector, StoredProfile, SweepControl, SweepOrder, SweepStatus};
use crate::agent::tune::{TuneOrder, TuneReport, TuneStatus};
use crate::clock_table::ClockTable;
use crate::job::{JobSelector, SwapTarget, Swapped};
use crate::range::within;
use crate::session::Refusal;
use crate::status::PlanStatus;
use crate::trial::{TrialLength, TrialRun};

/// How many times the fastest iteration that of a straggler may take.
const SLOWDOWNS: RangeInclusive<f64> = 1.0..=1e6;

/// The slowdowns that may be allowed, as shares.
const MAX_SLOWDOWNS: RangeInclusive<f64> = 0.0..=100.0;

/// The P2P-blocking power that a GPU may have, in watts.
const POWERS_W: RangeInclusive<f64> = 0.001..=10_000.0;

/// One request to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentRequest {
    /// Everything about the agent and the jobs that it watches.
    Status,
    /// Run something for some steps and measure its instructions. The connection then holds the job
    /// for measuring until it asks for [`AgentRequest::RecordingEnd`] or ends.
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
        /// Continue with what the last trial ran, which must be a plan, power limits or default
        /// clocks. Otherwise the job changes to default clocks.
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
        /// The straggler's iteration time as a multiple of the fastest one, from 1; none if the
        /// straggler is gone, and the job returns to what it ran before.
        #[serde(deserialize_with = "slowdown")]
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
    /// Sweep a job through its clocks and store the profile. The sweep continues without the
    /// connection, and holds the job for measuring meanwhile; at its end the job runs at default
    /// clocks.
    SweepStart(SweepOrder),
    /// As [`AgentRequest::SweepStart`], or continue the job's unfinished sweep, for as long as the
    /// connection lasts: it is answered when the sweep is over or paused, and a connection that
    /// ends before pauses it.
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
        #[serde(deserialize_with = "power_w")]
        power_w: Option<f64>,
    },
    /// Keep a job's steps from taking longer under its plans than allowed: compare with default
    /// clocks now and then, and return to these if a plan takes longer.
    Guard {
        /// The job.
        job: JobSelector,
        /// The slowdown that is allowed, as a share of a step's time at default clocks; none to end
        /// the guard.
        #[serde(deserialize_with = "max_slowdown")]
        max_slowdown: Option<f64>,
    },
    /// What is known about how GPUs change their clocks, as far as it is used for the peer's jobs.
    Calibrations,
    /// Measure how the GPUs of a job change their clocks, with some of its steps. The job runs at
    /// default clocks afterwards.
    Calibrate {
        /// The job.
        job: JobSelector,
        /// The CSV of its profile, as the planner reads it.
        profile: Vec<u8>,
    },
    /// Change what a job that has ranks on several nodes runs, at the same step on all of them.
    FleetSwap {
        /// The job.
        job: JobSelector,
        /// To what.
        target: SwapTarget,
        /// At this step, or not at all; without one, at a step that the nodes agree on.
        at_step: Option<u64>,
        /// The slowdown that is allowed from then on, as of [`AgentRequest::Guard`]; none to change
        /// nothing about that.
        #[serde(deserialize_with = "max_slowdown")]
        max_slowdown: Option<f64>,
        /// Answer only when every node has changed.
        wait: bool,
    },
    /// The nodes of the fleet.
    FleetStatus,
    /// Look for what is wrong with the set-up of the fleet.
    FleetCheck,
    /// What plans have saved, of the jobs that the peer may see.
    Savings(SavingsQuery),
    /// Every power budget, and what the jobs that the peer may see give up for it.
    Budget,
    /// Set a power budget, in the place of the one of the same scope.
    BudgetSet(BudgetOrder),
    /// End a power budget: its jobs run again what they ran by themselves.
    BudgetClear(BudgetScope),
    /// Set how much jobs count for a budget, and how slow they may become, in the place of the terms of
    /// the same scope.
    BudgetTerms(BudgetTerms),
    /// Keep a plan for a job, which begins with it whenever it starts anew, in the place of the former
    /// one. The job need not be there.
    FirstPlanLoad {
        /// The job; without an owner, the peer's own.
        job: JobSelector,
        /// What to call the plan in status.
        label: String,
        /// The plan.
        table: ClockTable,
    },
    /// Keep no plan for a job any more.
    FirstPlanDrop(JobSelector),
    /// The plans that are kept for jobs that the peer may see.
    FirstPlans,
    /// A rank is about to ask `pfod` for its lease: have its job begin with a plan.
    JobBegins {
        /// The rank.
        rank: BeginningRank,
        /// The plan; none means the one that is kept for the job.
        plan: Option<PlanFile>,
    },
    /// What the job of a rank runs, now that it has its lease.
    JobBegan(JobName),
    /// What each rank of a job on this node runs in a step. Nothing about the job changes; the answer comes
    /// with its next whole step.
    OrderRead(JobSelector),
    /// Measure what a lock of the memory clock does to the steps of a job, which runs some of them without
    /// it, in turns, and is at default clocks afterwards. Where nothing is locked, nothing is measured.
    CalibrateMemory(JobSelector),
    /// Take it from a scheduler in which of its partitions a job is.
    BudgetPartition {
        /// Whose job it is.
        uid: Uid,
        /// The job's GPUs on this node.
        gpus: Vec<GpuUuid>,
        /// The partition; none if the job has ended.
        partition: Option<PartitionName>,
    },
    /// Find a plan for a job, prove it on the job, and leave the job running it. The tune continues
    /// without the connection, and over restarts of both daemons.
    TuneStart(TuneOrder),
    /// How far the tune of a job is, as soon as its status is no longer the one with this number.
    TuneWatch {
        /// The job.
        job: JobSelector,
        /// The number of the status that the peer has; 0 for none.
        seen: u64,
    },
    /// End the tune of a job, which changes to default clocks.
    TuneStop(JobSelector),
    /// Every tune that the peer may see.
    Tunes,
    /// What the tune of a job has measured and decided, once it is over.
    TuneRead(JobSelector),
    /// What an administrator is to sign for a change of the fleet's budgets. Nothing changes.
    BudgetDraft(BudgetChange),
    /// Put what an administrator has signed into the store, for all nodes of the fleet.
    BudgetSigned(SignedBudgets),
    /// The frontier that is loaded for a job, by `pfoctl tune` or by hand, on any of its nodes.
    FrontierRead(JobSelector),
}

impl AgentRequest {
    /// Whether the answer may be as large as a frame may be.
    #[must_use]
    pub fn has_large_answer(&self) -> bool {
        matches!(
            self,
            Self::ProfileRead(_) | Self::FrontierRead(_) | Self::SweepRead(_) | Self::Samples(_)
        )
    }
}

fn slowdown<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let slowdown = Option::<f64>::deserialize(deserializer)?;
    let check = |slowdown| within("the straggler's slowdown", slowdown, SLOWDOWNS);
    slowdown.map(check).transpose().map_err(D::Error::custom)
}

fn max_slowdown<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let slowdown = Option::<f64>::deserialize(deserializer)?;
    let check = |slowdown| within("the slowdown that is allowed", slowdown, MAX_SLOWDOWNS);
    slowdown.map(check).transpose().map_err(D::Error::custom)
}

fn power_w<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let power_w = Option::<f64>::deserialize(deserializer)?;
    let check = |power_w| within("the P2P-blocking power in watts", power_w, POWERS_W);
    power_w.map(check).transpose().map_err(D::Error::custom)
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
    /// To [`AgentRequest::Straggler`], for a job of this node alone.
    Swapped(Swapped),
    /// To [`AgentRequest::SweepStart`], [`AgentRequest::SweepAttend`] and
    /// [`AgentRequest::SweepControl`].
    Sweep(Box<SweepStatus>),
    /// To [`AgentRequest::SweepStart`] and [`AgentRequest::SweepAttend`] with `reuse`, if there is
    /// a profile already.
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
    /// To [`AgentRequest::P2pPowers`]; to [`AgentRequest::P2pKeep`] and [`AgentRequest::P2pSet`]
    /// those that are new.
    P2pPowers(Vec<P2pPower>),
    /// To [`AgentRequest::Guard`].
    Guarded(Option<GuardStatus>),
    /// To [`AgentRequest::Calibrations`], and to [`AgentRequest::Calibrate`] and
    /// [`AgentRequest::CalibrateMemory`] those of the job's GPUs.
    Calibrations(Vec<Calibration>),
    /// To [`AgentRequest::FleetSwap`], and to [`AgentRequest::Straggler`] for a job over several nodes.
    FleetSwapped(FleetSwapped),
    /// To [`AgentRequest::FleetStatus`].
    Fleet(FleetStatus),
    /// To [`AgentRequest::FleetCheck`], in the order in which they were looked at.
    FleetChecked(Vec<FleetFinding>),
    /// To [`AgentRequest::Savings`].
    Savings(Box<SavingsReport>),
    /// To [`AgentRequest::Budget`], [`AgentRequest::BudgetSet`], [`AgentRequest::BudgetClear`],
    /// [`AgentRequest::BudgetTerms`], [`AgentRequest::BudgetPartition`] and
    /// [`AgentRequest::BudgetSigned`].
    Budget(Box<BudgetReport>),
    /// To [`AgentRequest::FirstPlanLoad`] and [`AgentRequest::FirstPlanDrop`].
    FirstPlan(FirstPlan),
    /// To [`AgentRequest::FirstPlans`], by owner and job.
    FirstPlans(Vec<FirstPlan>),
    /// To [`AgentRequest::JobBegins`] and [`AgentRequest::JobBegan`]; none at default clocks.
    Begins(Option<PlanStatus>),
    /// To [`AgentRequest::OrderRead`], in the order of the ranks.
    Order(Vec<RankOrder>),
    /// To [`AgentRequest::TuneStart`], [`AgentRequest::TuneWatch`] and [`AgentRequest::TuneStop`].
    Tune(Box<TuneStatus>),
    /// To [`AgentRequest::Tunes`], by owner and job.
    Tunes(Vec<TuneStatus>),
    /// To [`AgentRequest::TuneRead`].
    TuneReport(Box<TuneReport>),
    /// To [`AgentRequest::BudgetDraft`].
    BudgetDraft(Box<BudgetDraft>),
    /// To [`AgentRequest::FrontierRead`].
    FrontierFile {
        /// What status calls the frontier.
        label: String,
        /// The bytes of the frontier file.
        frontier: Vec<u8>,
    },
}

#[cfg(test)]
mod tests {
    use pfo_vocabulary::{Chunk, Instruction, Mhz, Microbatch, Rank, Unit};

    use super::*;
    use crate::agent::sample::{Doubt, InstructionSample};
    use crate::agent::sweep::{ProfileKey, SweepSettings};
    use crate::agent::tune::{TuneEnd, TuneState};
    use crate::codec;
    use crate::message::{ClientMessage, DaemonMessage};

    fn job() -> JobSelector {
        JobSelector { job: "j".parse().unwrap(), uid: None }
    }

    fn frame(request: AgentRequest) -> Vec<u8> {
        ClientMessage::AgentRequest(request).to_frame().unwrap()
    }

    fn decoded(request: &AgentRequest) -> Result<AgentRequest, String> {
        let mut bytes = Vec::new();
        codec::append(request, &mut bytes).unwrap();
        codec::decode(&bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn a_slowdown_that_no_straggler_has_is_refused_where_it_is_decoded() {
        let straggler = |slowdown| {
            decoded(&AgentRequest::Straggler { job: job(), slowdown, wait: false }).map(|_| ())
        };
        for slowdown in [None, Some(1.0), Some(1.5)] {
            assert_eq!(straggler(slowdown), Ok(()));
        }
        for slowdown in [0.99, -1.0, 1e300, f64::NAN, f64::INFINITY] {
            let error = straggler(Some(slowdown)).unwrap_err();
            let part = format!("slowdown is {slowdown}; it must be 1 to 1000000");
            assert!(error.contains(&part), "{error}");
        }
    }

    #[test]
    fn a_power_that_no_gpu_has_is_refused_where_it_is_decoded() {
        let set = |power_w| {
            let target = P2pTarget::Model("m".into());
            decoded(&AgentRequest::P2pSet { target, power_w }).map(|_| ())
        };
        for power_w in [None, Some(83.64), Some(10_000.0)] {
            assert_eq!(set(power_w), Ok(()));
        }
        for power_w in [0.0, -1.0, 10_000.5, f64::NAN] {
            let error = set(Some(power_w)).unwrap_err();
            let part = format!("power in watts is {power_w}; it must be 0.001 to 10000");
            assert!(error.contains(&part), "{error}");
        }
    }

    #[test]
    fn the_bytes_of_a_straggler_are_the_documented_ones() {
        let straggler = AgentRequest::Straggler { job: job(), slowdown: Some(1.5), wait: false };
        #[rustfmt::skip]
        assert_eq!(frame(straggler), [
            24, 0, 0, 0,  1, 0,  5, 0,
            5, 0, 0, 0,                                     // straggler
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
            1, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f,                // some: 1.5
            0,                                              // do not wait
        ]);
    }

    #[test]
    fn the_bytes_of_a_partition_are_the_documented_ones() {
        let partition = AgentRequest::BudgetPartition {
            uid: Uid(5),
            gpus: vec!["G-1".parse().unwrap()],
            partition: Some("p".parse().unwrap()),
        };
        #[rustfmt::skip]
        assert_eq!(frame(partition), [
            37, 0, 0, 0,  1, 0,  5, 0,
            35, 0, 0, 0,                                    // partition of a budget
            5, 0, 0, 0,                                     // user 5
            1, 0, 0, 0, 0, 0, 0, 0,                         // one GPU
            3, 0, 0, 0, 0, 0, 0, 0, b'G', b'-', b'1',
            1, 1, 0, 0, 0, 0, 0, 0, 0, b'p',                // some partition
        ]);
    }

    #[test]
    fn the_bytes_of_the_requests_about_sweeps_are_the_documented_ones() {
        let stop = AgentRequest::SweepControl { job: job(), control: SweepControl::Stop };
        #[rustfmt::skip]
        assert_eq!(frame(stop), [
            18, 0, 0, 0,  1, 0,  5, 0,
            9, 0, 0, 0,                                     // sweep control
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
            2, 0, 0, 0,                                     // stop
        ]);
        let settings = SweepSettings {
            steps: 10,
            settling_steps: 1,
            stride_mhz: Mhz(30),
            min_mhz: Mhz(0),
            max_slowdown: None,
        };
        let order = SweepOrder { job: job(), model: None, settings, reuse: true };
        #[rustfmt::skip]
        assert_eq!(frame(AgentRequest::SweepAttend(order)), [
            33, 0, 0, 0,  1, 0,  5, 0,
            8, 0, 0, 0,                                     // sweep attend
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
            0,                                              // the model has the job's name
            10, 0, 0, 0, 1, 0, 0, 0,                        // steps, settling steps
            30, 0, 0, 0, 0, 0, 0, 0,                        // stride, lowest clock, in MHz
            0,                                              // no limit of the slowdown
            1,                                              // reuse
        ]);
    }

    #[test]
    fn the_bytes_of_the_requests_about_tunes_are_the_documented_ones() {
        let (terms, profile, order) = (b"{}".to_vec(), Some(vec![7]), None);
        let start = AgentRequest::TuneStart(TuneOrder { job: job(), terms, profile, order });
        #[rustfmt::skip]
        assert_eq!(frame(start), [
            35, 0, 0, 0,  1, 0,  5, 0,
            36, 0, 0, 0,                                    // tune start
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
            2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}',             // terms
            1, 1, 0, 0, 0, 0, 0, 0, 0, 7,                   // some profile
            0,                                              // no order
        ]);
        #[rustfmt::skip]
        assert_eq!(frame(AgentRequest::TuneWatch { job: job(), seen: 9 }), [
            22, 0, 0, 0,  1, 0,  5, 0,
            37, 0, 0, 0,                                    // tune watch
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
            9, 0, 0, 0, 0, 0, 0, 0,                         // the status that was seen
        ]);
    }

    #[test]
    fn the_bytes_of_a_tunes_status_are_the_documented_ones() {
        let status = TuneStatus {
            job: "j".parse().unwrap(),
            uid: Uid(7),
            changed: 3,
            state: TuneState::Ended(TuneEnd::Kept),
            now: "n".into(),
            done: 1.5,
            remaining_s: None,
            saving: Some(1.5),
            remarks: vec!["r".into()],
        };
        let tune = AgentResponse::Tune(Box::new(status));
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::AgentResponse(tune).to_frame().unwrap(), [
            77, 0, 0, 0,  1, 0,  134, 0,
            25, 0, 0, 0,                                    // tune
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 7, 0, 0, 0,       // job, uid
            3, 0, 0, 0, 0, 0, 0, 0,                         // changes
            6, 0, 0, 0, 0, 0, 0, 0,                         // ended: kept
            1, 0, 0, 0, 0, 0, 0, 0, b'n',                   // what is being done
            0, 0, 0, 0, 0, 0, 0xf8, 0x3f,                   // how much of it
            0,                                              // for how long is not known
            1, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f,                // some saving
            1, 0, 0, 0, 0, 0, 0, 0,                         // one remark
            1, 0, 0, 0, 0, 0, 0, 0, b'r',
        ]);
    }

    #[test]
    fn the_bytes_of_the_request_for_a_frontier_are_the_documented_ones() {
        #[rustfmt::skip]
        assert_eq!(frame(AgentRequest::FrontierRead(job())), [
            14, 0, 0, 0,  1, 0,  5, 0,
            43, 0, 0, 0,                                    // frontier read
            1, 0, 0, 0, 0, 0, 0, 0, b'j', 0,                // job, no uid
        ]);
        let file = AgentResponse::FrontierFile { label: "f".into(), frontier: vec![7] };
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::AgentResponse(file).to_frame().unwrap(), [
            22, 0, 0, 0,  1, 0,  134, 0,
            29, 0, 0, 0,                                    // frontier file
            1, 0, 0, 0, 0, 0, 0, 0, b'f',                   // label
            1, 0, 0, 0, 0, 0, 0, 0, 7,                      // one byte
        ]);
    }

    #[test]
    fn the_bytes_of_a_stored_profile_are_the_documented_ones() {
        let key = ProfileKey {
            uid: Uid(7),
            model: "m".parse().unwrap(),
            gpus: "A".into(),
            partition: "p".into(),
        };
        let reused = AgentResponse::Reused(StoredProfile { key, measured_unix_s: 9, bytes: 3 });
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::AgentResponse(reused).to_frame().unwrap(), [
            51, 0, 0, 0,  1, 0,  134, 0,
            8, 0, 0, 0,                                     // reused
            7, 0, 0, 0,                                     // uid
            1, 0, 0, 0, 0, 0, 0, 0, b'm',                   // model
            1, 0, 0, 0, 0, 0, 0, 0, b'A',                   // GPUs
            1, 0, 0, 0, 0, 0, 0, 0, b'p',                   // partition
            9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, // seconds since 1970, bytes
        ]);
    }

    #[test]
    fn the_bytes_of_a_page_of_samples_are_the_documented_ones() {
        let sample = InstructionSample {
            step: 9,
            unit: Unit {
                instruction: Instruction::Backward,
                chunk: Chunk(1),
                microbatch: Microbatch(7),
            },
            began_ns: 256,
            ended_ns: 512,
            mhz: Some(Mhz(1410)),
            observed: None,
            throttle_reasons: 4,
            counter_j: Some(1.5),
            counter_refreshes: 2,
            left_out: Some(Doubt::Throttled),
        };
        let page = SamplePage { rank: Rank(3), samples: vec![sample], dropped: 5 };
        let samples = AgentResponse::Samples(Some(page));
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::AgentResponse(samples).to_frame().unwrap(), [
            91, 0, 0, 0,  1, 0,  134, 0,
            4, 0, 0, 0,  1,                                 // samples: some
            3, 0, 0, 0,                                     // rank
            1, 0, 0, 0, 0, 0, 0, 0,                         // one sample
            9, 0, 0, 0, 0, 0, 0, 0,                         // step
            1, 0, 0, 0,  1, 0,  7, 0, 0, 0,                 // backward, chunk, microbatch
            0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, // began, ended
            1, 130, 5, 0, 0,  0,                            // some: 1410 MHz; none observed
            4, 0, 0, 0, 0, 0, 0, 0,                         // throttle reasons
            1, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f,                // some: 1.5 J
            2, 0, 0, 0,                                     // refreshes
            1, 2, 0, 0, 0,                                  // some: throttled
            5, 0, 0, 0, 0, 0, 0, 0,                         // dropped
        ]);
    }
}
