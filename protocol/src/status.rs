//! What the daemon reports about itself, its GPUs and its jobs. `pfoctl status --json` prints these
//! very fields.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{
    DriverUse, GpuUuid, JobName, Mhz, PciBusId, Pid, Rank, SessionId, Stage, Uid,
};

/// Everything that `pfoctl status` shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon.
    pub daemon: DaemonStatus,
    /// Every GPU of the node, in the driver's order.
    pub gpus: Vec<GpuStatus>,
    /// The jobs that the peer may see.
    pub jobs: Vec<JobStatus>,
}

/// The daemon itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: Pid,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// The driver's version, if it could be loaded.
    pub driver: Option<String>,
    /// What is wrong with the driver, if anything.
    pub driver_problem: Option<String>,
    /// Sessions open now.
    pub sessions: u32,
    /// GPUs whose clocks could not be restored yet, each with the reason.
    pub unrestored: Vec<String>,
    /// Its configuration.
    pub config: ConfigStatus,
    /// Who drained the node, if it is drained.
    pub drained: Option<Drained>,
    /// What was wrong with the ledger, if locks may be in place that pfo does not know, until an
    /// administrator acknowledges it.
    pub ledger_damage: Option<String>,
    /// Whether it sets nothing, and plans are followed as if their clocks were set.
    pub only_observes: bool,
}

/// Why no GPU of the node can be leased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// What the administrator said.
    pub reason: String,
    /// The administrator.
    pub by_uid: Uid,
    /// Since when.
    pub since_unix_s: u64,
    /// Whether `pfod` has released the driver, too.
    pub driver_released: bool,
}

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// The file that it comes from; none if there was none, and the defaults are in force.
    pub file: Option<String>,
    /// Why the file as it is now is not in force; what was in force before stays.
    pub refused: Option<String>,
    /// The keys whose new values take a restart.
    pub restart_needed_for: Vec<String>,
    /// Configured names that this node does not have: what the configuration grants to them has no
    /// effect.
    pub unknown_names: Vec<String>,
    /// Whether the file has been written since: what it says now is not in force.
    #[serde(default)]
    pub outdated: bool,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// The driver's index, for people only.
    pub index: u32,
    /// The UUID.
    pub uuid: GpuUuid,
    /// The PCI bus id.
    pub pci_bus_id: PciBusId,
    /// The model.
    pub model: String,
    /// Whether MIG splits it.
    pub mig: bool,
    /// The SM clock that pfo locked, in MHz; none if pfo holds no lock.
    pub requested_mhz: Option<Mhz>,
    /// The SM clock that the driver reports, in MHz.
    pub observed_mhz: Option<Mhz>,
    /// The memory clock that pfo locked, in MHz.
    pub memory_locked_mhz: Option<Mhz>,
    /// The power that the driver reports, in watts.
    pub power_w: Option<f64>,
    /// The power limit that pfo set, in watts; none if pfo set none.
    pub power_limit_w: Option<u32>,
    /// Who holds the lease; none for a user who may not see the holder's jobs.
    pub holder: Option<Holder>,
    /// What is wrong with the GPU, if anything.
    pub problem: Option<String>,
    /// Whether somebody holds a lease of it.
    pub leased: bool,
    /// What pfod asks of its driver.
    pub driver_use: DriverUse,
    /// NVML's clock throttle reasons that are in force and that no user asked for; 0 if there are none,
    /// or the driver does not report them.
    pub throttle_reasons: u64,
    /// The temperature that the driver reports, in degrees Celsius.
    pub temperature_c: Option<u32>,
    /// The number of its device file, `nvidiaN`, by which schedulers count; none if it has no such file.
    #[serde(default)]
    pub minor: Option<u32>,
    /// What is wrong with its energy counter, judged while it is leased, if anything.
    #[serde(default)]
    pub meter: Option<MeterStatus>,
}

/// What is wrong with an energy counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterStatus {
    /// In words.
    pub reason: String,
    /// Whether there are no figures of its energy because of that.
    pub withheld: bool,
}

/// Who holds a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The job.
    pub job: JobName,
    /// The rank.
    pub rank: Rank,
    /// The user, as the kernel gave it.
    pub uid: Uid,
    /// The process, as the kernel gave it.
    pub pid: Pid,
    /// The session.
    pub session: SessionId,
}

/// One job, as far as its ranks are on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The name.
    pub job: JobName,
    /// Whose it is.
    pub uid: Uid,
    /// The number of pipeline stages.
    pub pp_degree: u32,
    /// The plan that the job runs; none at default clocks.
    pub plan: Option<PlanStatus>,
    /// The plan that is loaded and waits for a swap.
    pub loaded: Option<PlanStatus>,
    /// Who holds the job for measuring: until that is over, no other request changes what it
    /// runs.
    pub measured_by: Option<MeasuredBy>,
    /// The step at which a swap that is under way takes place.
    pub swap_at_step: Option<u64>,
    /// Seconds since measuring began: with the first rank of the job, or of a daemon that was
    /// restarted.
    pub measured_for_s: f64,
    /// Joules that the job's GPUs on this node used while they were leased, by their counters; none
    /// if one of them has none.
    pub energy_j: Option<f64>,
    /// What was measured under each plan, oldest first, the last one running on.
    pub windows: Vec<Window>,
    /// The ranks on this node, in the order of their numbers.
    pub ranks: Vec<RankStatus>,
}

/// The holder of a job that is being measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredBy {
    /// The user.
    pub uid: Uid,
    /// The process; none for a sweep, which continues without one.
    pub pid: Option<Pid>,
}

/// A plan as status shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStatus {
    /// Counts the plans of the job from 1.
    pub number: u32,
    /// Where it came from, as the client called it.
    pub label: String,
    /// The step time that the plan predicts, in seconds.
    pub predicted_time_s: Option<f64>,
    /// The step energy of all stages that the plan predicts, in joules.
    pub predicted_energy_j: Option<f64>,
    /// Why the plan is suspended; the job then runs at default clocks.
    pub suspended: Option<String>,
    /// The power limit of each stage, in watts, of a plan that has these in the place of clocks.
    #[serde(default)]
    pub power_limits_w: Vec<u32>,
}

/// The measured part of a job's life under one plan (or none). The step in which a plan is taken up
/// is left out, because its clocks still settle, and so is the last one before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The plan; none at default clocks.
    pub plan: Option<PlanStatus>,
    /// The ranks on this node that were measured. A plan's predicted energy is that of one rank of
    /// each stage.
    pub ranks: u32,
    /// The fewest whole steps that a rank measured.
    pub steps: u64,
    /// Mean time from one step's begin to the next one's, of the slowest rank, in seconds.
    pub iteration_time_s: f64,
    /// Mean energy of a step, of all ranks on this node together, in joules; none if one of their
    /// GPUs has no energy counter.
    pub iteration_energy_j: Option<f64>,
}

/// One rank on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// The global rank.
    pub rank: Rank,
    /// Its stage.
    pub stage: Stage,
    /// Its process.
    pub pid: Pid,
    /// Its session.
    pub session: SessionId,
    /// Its GPU.
    pub gpu_uuid: GpuUuid,
    /// The step that it began last.
    pub step: Option<u64>,
    /// The number of the plan that it runs.
    pub plan: Option<u32>,
    /// Steps in which its instructions did not follow the plan.
    pub mismatched_steps: u64,
    /// The last mismatch, in words.
    pub last_mismatch: Option<String>,
    /// Events that the rank could not deliver.
    pub lost_events: u64,
    /// Instructions that began outside a step, or before the last one had ended: they are neither measured
    /// nor planned.
    pub misplaced_instructions: u64,
    /// Calls that counted when the host made them, because they could not be timed on the GPU, up to the
    /// last step begun.
    pub untimed_calls: u64,
    /// Joules of its GPU since the session began; none if that has no energy counter.
    pub energy_j: Option<f64>,
    /// Instructions run under plans.
    pub instructions: u64,
    /// Seconds that these took.
    pub instruction_s: f64,
    /// Seconds of these that ran at another clock than planned, as far as the daemon knows:
    /// until the driver's set call returned and the configured settling time was over.
    pub off_plan_s: f64,
    /// Instructions that began before their clock was in force, because the wait before them had a
    /// clock of its own and ended sooner than predicted.
    pub late_instructions: u64,
    /// Clock changes asked of the driver.
    pub clock_changes: u64,
    /// Clock changes not asked of the driver, because there had been too many in a second. The GPU
    /// was at the highest clock that the rank may have instead.
    pub skipped_changes: u64,
    /// Mean duration of such a call, in microseconds.
    pub set_call_mean_us: f64,
    /// From such a call until the clock is in force, in milliseconds: the longest of its clocks, or as
    /// it is configured if that was not measured.
    pub settle_ms: f64,
    /// The longest, in microseconds.
    pub set_call_max_us: f64,
    /// What is wrong, if anything.
    pub problem: Option<String>,
}
