//! A job in virtual time whose steps are disturbed as those of real jobs are, with the truth beside what
//! is measured of it.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pfo_experiment::{Bench, BenchError, Progress, Terms, TuneError, TuneOrder, Tuned, tune};
use pfo_planner::{LowerBound, Pipeline, Plan, Policy, Profile, Schedule, Timeline, Watts, replay};
use pfo_protocol::{
    AgentRequest, AgentResponse, AgentStatus, Chunk, ClockTable, ConfigStatus, DpRank, GpuUuid,
    Instruction, JobSelector, LeftOut, Mhz, Pid, ProfileKey, RanUnit, Rank, RankOrder,
    RecordedRank, RecordedTrial, Request, Response, Stage, Status, StoredProfile, SweepSettings,
    TpRank, TrialLength, TrialRank, TrialResult, TrialRow, TrialRun, TrialStep, Uid, WaitPower,
};

/// What a GPU draws while it waits.
const WAITING: Watts = Watts(75.0);

/// The clocks of the GPUs.
const CLOCKS: std::ops::RangeInclusive<u32> = 210..=1410;
const APART: usize = 15;
const HIGHEST: u32 = 1410;

/// What disturbs a job, as shares of the time of a step and of its energy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    /// Of each step by itself, as a standard deviation.
    pub(crate) noise: f64,
    /// Of each step, but like that of the step before by this share.
    pub(crate) wandering: (f64, f64),
    /// By how much energy rises in an hour, as a GPU becomes warm.
    pub(crate) heat_per_h: f64,
    /// A neighbour: by how much steps are longer while it is busy, and its mean steps busy and idle.
    pub(crate) neighbour: (f64, f64, f64),
    /// Each how many steps one is longer, by how much.
    pub(crate) checkpoint: (u64, f64),
    /// Each how many steps some are longer, how many and by how much.
    pub(crate) loading: (u64, u64, f64),
    /// A step from which on all are longer, by how much.
    pub(crate) jump: (u64, f64),
    /// Seconds between two refreshes of an energy counter.
    pub(crate) refresh_s: f64,
    /// By how much each change of clocks in a step makes it longer, in seconds.
    pub(crate) change_s: f64,
    /// The error of an instruction's energy in one step.
    pub(crate) kind_error: f64,
    /// What a step takes beside its instructions, such as data and collectives: seconds and watts.
    pub(crate) beside: (f64, f64),
}

impl Default for Disturbance {
    fn default() -> Self {
        Self {
            noise: 0.001,
            wandering: (0.0, 0.0),
            heat_per_h: 0.0,
            neighbour: (0.0, 1.0, 1.0),
            checkpoint: (0, 0.0),
            loading: (0, 0, 0.0),
            jump: (u64::MAX, 0.0),
            refresh_s: 0.02,
            change_s: 0.0,
            kind_error: 0.02,
            beside: (0.0, 0.0),
        }
    }
}

/// A job, and what it has run.
pub(crate) struct World {
    profile: Profile,
    default: Plan,
    stages: u16,
    disturbance: Disturbance,
    random: fastrand::Rng,
    /// Whether the agent has a profile of the job.
    pub(crate) is_known: bool,
    swept: Option<String>,
    pub(crate) steps: u64,
    now_s: f64,
    /// The sum of what steps took longer than at default clocks, in seconds.
    pub(crate) lost_s: f64,
    /// The longest step of the experiment, as a share of one at default clocks.
    pub(crate) longest: f64,
    /// The step at which a plan was in force first that truly saves within the limit.
    pub(crate) first_plan: Option<u64>,
    pub(crate) max_slowdown: f64,
    wandered: f64,
    neighbour_until: (bool, u64),
    /// No answer to a trial from this step on: the job has ended.
    pub(crate) ends_at: u64,
    /// Energies that are reported as this from now on.
    pub(crate) energy: Option<f64>,
    pub(crate) remarks: Vec<String>,
    pub(crate) shown: Vec<Progress>,
    kept: Option<Plan>,
    last: Option<Plan>,
}

fn volts(share: f64) -> f64 {
    0.7 + 0.3 * ((share - 0.5) / 0.5).max(0.0)
}

/// The true time and energy of an instruction at a clock.
fn truth(time_s: f64, memory: f64, watts: f64, mhz: u32) -> (f64, f64) {
    let share = f64::from(mhz) / f64::from(HIGHEST);
    let time_s = time_s * (memory + (1.0 - memory) / share);
    let power = 85.0 + watts * share * volts(share).powi(2);
    (time_s, power * time_s)
}

/// The true profile of a job whose stages are unequal, as long as `step_s` at default clocks.
fn true_csv(stages: u16, microbatches: u32, step_s: f64) -> String {
    let mut csv = "stage,instruction,frequency,time,energy\n".to_owned();
    let unit_s = step_s / f64::from(3 * (microbatches + u32::from(stages) - 1)) / 1.15;
    for stage in 0..stages {
        // The last stage computes the loss, too; others differ by rounding of their layers.
        let weight = match stage {
            _ if stage + 1 == stages => 1.15,
            0 => 0.95,
            _ => 0.97 + 0.06 * f64::from((stage * 7) % 5) / 4.0,
        };
        for (name, share, memory, watts) in
            [("forward", 1.0, 0.22, 215.0), ("backward", 2.0, 0.16, 230.0)]
        {
            for mhz in CLOCKS.step_by(APART) {
                let (time_s, energy_j) = truth(unit_s * weight * share, memory, watts, mhz);
                csv += &format!("{stage},{name},{mhz},{time_s},{energy_j}\n");
            }
        }
    }
    csv
}

impl World {
    pub(crate) fn new(
        (stages, microbatches, step_s): (u16, u32, f64),
        disturbance: Disturbance,
        seed: u64,
    ) -> Self {
        let profile = Profile::from_csv(true_csv(stages, microbatches, step_s).as_bytes()).unwrap();
        let pipeline =
            Pipeline::new(&profile, Schedule::OneForwardOneBackward, microbatches).unwrap();
        let mut outcome = Policy::AllMax.outcome(&pipeline, WAITING, &|_| {}).unwrap();
        Self {
            profile,
            default: outcome.plans.swap_remove(0),
            stages,
            disturbance,
            random: fastrand::Rng::with_seed(seed),
            is_known: false,
            swept: None,
            steps: 0,
            now_s: 0.0,
            lost_s: 0.0,
            longest: 0.0,
            first_plan: None,
            max_slowdown: 0.0,
            wandered: 0.0,
            neighbour_until: (false, 0),
            ends_at: u64::MAX,
            energy: None,
            remarks: Vec::new(),
            shown: Vec::new(),
            kept: None,
            last: None,
        }
    }

    /// Tunes the job.
    pub(crate) fn tuned(&mut self, terms: Terms) -> Result<Tuned, TuneError> {
        self.max_slowdown = terms.max_slowdown;
        let job = JobSelector { job: "j".parse().unwrap(), uid: Some(Uid(1000)) };
        let order = TuneOrder { terms, ..TuneOrder::default() };
        let mut tuning = pin!(tune(self, job, &order));
        match tuning.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(tuned) => tuned,
            Poll::Pending => panic!("the world never waits"),
        }
    }

    /// What a plan truly saves, and by how much it is slower.
    pub(crate) fn truth(&self, plan: &Plan) -> (f64, f64) {
        let (default_s, default_j) = self.step(&self.default);
        let (time_s, energy_j) = self.step(plan);
        (1.0 - energy_j / default_j, time_s / default_s - 1.0)
    }

    /// What the plan truly saves that the job was left with, and by how much it is slower.
    pub(crate) fn kept(&self) -> Option<(f64, f64)> {
        self.kept.as_ref().map(|plan| self.truth(plan))
    }

    /// The most that any plan saves within the allowed slowdown.
    pub(crate) fn optimum(&self) -> f64 {
        let microbatches = self.default.num_microbatches;
        let pipeline =
            Pipeline::new(&self.profile, Schedule::OneForwardOneBackward, microbatches).unwrap();
        let (default_s, default_j) = self.step(&self.default);
        let (beside_s, beside_w) = self.disturbance.beside;
        let limit_s = default_s * (1.0 + self.max_slowdown) - beside_s;
        let beside_j = beside_s * beside_w * f64::from(self.stages);
        let least_j = LowerBound::new(&pipeline, WAITING).energy_j(limit_s) + beside_j;
        1.0 - least_j / default_j
    }

    pub(crate) fn time_s(&self) -> f64 {
        self.now_s
    }

    fn step(&self, plan: &Plan) -> (f64, f64) {
        let step = replay(&self.profile, plan, WAITING).unwrap();
        let changes = plan.most_clock_changes() as f64;
        let held_up_s = self.disturbance.change_s * changes;
        let (beside_s, beside_w) = self.disturbance.beside;
        let stages = f64::from(self.stages);
        let waiting_j = (held_up_s * WAITING.0 + beside_s * beside_w) * stages;
        (step.iteration_time_s + held_up_s + beside_s, step.iteration_energy_j + waiting_j)
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0
    }

    /// By how much the next step is longer than without disturbance.
    fn disturbed(&mut self) -> f64 {
        let Disturbance {
            noise, wandering: (like, sd), neighbour, checkpoint, loading, jump, ..
        } = self.disturbance;
        let (busy, busy_steps, idle_steps) = neighbour;
        self.wandered = like * self.wandered + (1.0 - like * like).sqrt() * sd * self.normal();
        if busy > 0.0 && self.steps >= self.neighbour_until.1 {
            let is_busy = !self.neighbour_until.0;
            let mean = if is_busy { busy_steps } else { idle_steps };
            let for_steps = -mean * (1.0 - self.random.f64()).ln();
            self.neighbour_until = (is_busy, self.steps + 1 + for_steps as u64);
        }
        let now = self.steps;
        let at = |every: u64, length: u64| every > 0 && now % every < length;
        let mut longer = noise * self.normal() + self.wandered;
        longer += if self.neighbour_until.0 { busy } else { 0.0 };
        longer += if at(checkpoint.0, 1) { checkpoint.1 } else { 0.0 };
        longer += if at(loading.0, loading.1) { loading.2 } else { 0.0 };
        longer + if self.steps >= jump.0 { jump.1 } else { 0.0 }
    }

    /// Runs some steps of a plan; time and energy of those that are measured.
    fn run(&mut self, plan: &Plan, length: TrialLength, is_plan: bool) -> Vec<TrialStep> {
        let ((time_s, energy_j), (default_s, _)) = (self.step(plan), self.step(&self.default));
        let (saving, slowdown) = self.truth(plan);
        let is_good = is_plan && saving > 0.002 && slowdown <= self.max_slowdown;
        if is_good && self.first_plan.is_none() {
            self.first_plan = Some(self.steps);
        }
        self.longest = self.longest.max(time_s / default_s);
        let mut measured = Vec::new();
        for step in 0..length.settling_steps + length.steps {
            let longer = self.disturbed();
            let warm = self.disturbance.heat_per_h * self.now_s / 3600.0;
            let took_s = time_s * (1.0 + longer);
            let waited_j = time_s * longer * WAITING.0 * f64::from(self.stages);
            // A refresh more or less at either end, and what varies by itself.
            let late =
                self.disturbance.refresh_s / took_s * (self.random.f64() - self.random.f64());
            let scatter = 0.5 * self.disturbance.noise * self.normal();
            let used_j = (energy_j * (1.0 + warm) + waited_j) * (1.0 + late + scatter);
            self.lost_s += time_s - default_s;
            self.now_s += took_s;
            self.steps += 1;
            if step >= length.settling_steps {
                let energy_j =
                    Some(self.energy.unwrap_or(used_j)).filter(|j| *j >= 0.0 || j.is_nan());
                measured.push(TrialStep { time_s: took_s, energy_j });
            }
        }
        self.last = is_plan.then(|| plan.clone());
        measured
    }

    fn uniform(&self, mhz: Mhz) -> Plan {
        let mut plan = self.default.clone();
        let each = plan.stages.iter_mut().flat_map(|stage| &mut stage.instructions);
        each.for_each(|planned| planned.frequency_mhz = mhz);
        plan
    }

    fn trial(&mut self, run: &TrialRun, length: TrialLength) -> RecordedTrial {
        let (plan, is_plan) = match run {
            TrialRun::Plan { table, .. } => (at_clocks_of(&self.default, table), true),
            TrialRun::DefaultClocks => (self.default.clone(), false),
            other => panic!("asked to run {other:?}"),
        };
        let steps = self.run(&plan, length, is_plan);
        let stages: Vec<Stage> = (0..self.stages).map(Stage).collect();
        let ranks: Vec<_> = stages
            .iter()
            .map(|stage| self.recorded(&plan, *stage, is_plan, length.steps))
            .collect();
        let trial = TrialResult {
            plan: None,
            first_step: self.steps,
            steps,
            ranks: stages.into_iter().map(rank).collect(),
        };
        RecordedTrial { trial, ranks }
    }

    fn recorded(&mut self, plan: &Plan, stage: Stage, is_plan: bool, steps: u32) -> RecordedRank {
        let timeline = Timeline::new(&self.profile, plan).unwrap();
        let mut kinds: Vec<(Instruction, Mhz, u64, f64, f64)> = Vec::new();
        for span in &timeline.stages[stage.index()] {
            let (kind, mhz) = (span.instruction, span.frequency);
            match kinds.iter_mut().find(|one| (one.0, one.1) == (kind, mhz)) {
                Some(one) => one.2 += 1,
                None => kinds.push((kind, mhz, 1, span.end_s - span.start_s, span.energy_j)),
            }
        }
        let rows = kinds.into_iter().map(|(instruction, mhz, count, time_s, energy_j)| {
            let count = count * u64::from(steps);
            let scatter = self.disturbance.noise / (count as f64).sqrt();
            let time_s = time_s * (1.0 + scatter * self.normal());
            let error = self.disturbance.kind_error / f64::from(steps).sqrt();
            let energy_j = energy_j * (1.0 + error * self.normal());
            TrialRow {
                instruction,
                chunk: Chunk(0),
                mhz: is_plan.then_some(mhz),
                observed_mhz: Some(f64::from(mhz.0)),
                count,
                time_mean_s: time_s,
                time_sd_s: self.disturbance.noise * time_s,
                time_median_s: time_s,
                energy_mean_j: Some(energy_j),
                energy_median_j: Some(energy_j),
                energy_sd_j: Some(error * energy_j * (count as f64).sqrt()),
                throttled: None,
                left_out: LeftOut::default(),
            }
        });
        RecordedRank {
            rank: Rank(stage.0.into()),
            readings: 100,
            stray_readings: 0,
            rows: rows.collect(),
            waits: self.waits(),
        }
    }

    /// A single stage waits for no other.
    fn waits(&self) -> Vec<WaitPower> {
        let wait =
            WaitPower { mhz: None, count: 10, time_s: 1.0, power_w: WAITING.0, power_error_w: 0.5 };
        if self.stages > 1 { vec![wait] } else { Vec::new() }
    }

    /// A sweep as the agent makes it, down to where the energy of every instruction has risen five times.
    fn sweep(&mut self, settings: SweepSettings) {
        let SweepSettings { steps, settling_steps, stride_mhz, .. } = settings;
        let mut csv =
            "stage,instruction,frequency,time,energy,count,time_sd,energy_sd\n".to_owned();
        let mut rises = vec![(f64::INFINITY, 0); 2 * usize::from(self.stages)];
        for mhz in CLOCKS.rev().step_by((stride_mhz.0 as usize).max(APART)) {
            let plan = self.uniform(Mhz(mhz));
            self.run(&plan, TrialLength { settling_steps, steps }, false);
            for stage in (0..self.stages).map(Stage) {
                for row in self.recorded(&plan, stage, true, steps).rows {
                    let (name, energy_j) = (row.instruction.name(), row.energy_median_j.unwrap());
                    let (time_s, count) = (row.time_median_s, row.count);
                    csv += &format!(
                        "{stage},{name},{mhz},{time_s},{energy_j},{count},{},{}\n",
                        row.time_sd_s,
                        row.energy_sd_j.unwrap()
                    );
                    let place = 2 * stage.index() + usize::from(name == "backward");
                    let (last_j, rose) = rises[place];
                    let again = if energy_j > last_j || rose >= 5 { rose + 1 } else { 0 };
                    rises[place] = (energy_j, again);
                }
            }
            if rises.iter().all(|(_, rose)| *rose >= 5) {
                break;
            }
        }
        self.swept = Some(csv);
    }

    fn key(&self) -> ProfileKey {
        ProfileKey {
            uid: Uid(1000),
            model: "j".parse().unwrap(),
            gpus: "A100".to_owned(),
            partition: format!("pp{}-dp1-tp1-mb{}", self.stages, self.default.num_microbatches),
        }
    }

    fn stored(&self) -> StoredProfile {
        StoredProfile { key: self.key(), measured_unix_s: 9, bytes: 9 }
    }
}

fn gpu_of(stage: Stage) -> GpuUuid {
    format!("GPU-{stage}").parse().unwrap()
}

fn rank(stage: Stage) -> TrialRank {
    TrialRank {
        rank: Rank(stage.0.into()),
        stage,
        dp_rank: DpRank(0),
        tp_rank: TpRank(0),
        gpu_uuid: gpu_of(stage),
        gpu_model: "A100".to_owned(),
        time_s: 1.0,
        energy_j: None,
        mismatched_steps: 0,
    }
}

impl Bench for World {
    async fn agent(
        &mut self,
        request: AgentRequest,
        _: Option<Duration>,
    ) -> Result<AgentResponse, BenchError> {
        Ok(match request {
            AgentRequest::Record { .. } if self.steps >= self.ends_at => {
                let code = pfo_protocol::RefusalCode::Revoked;
                return Err(pfo_protocol::Refusal::new(code, "job j has ended", "").into());
            }
            AgentRequest::Record { run, length, .. } => {
                AgentResponse::Recorded(Box::new(self.trial(&run, length)))
            }
            AgentRequest::Samples(_) => AgentResponse::Samples(None),
            AgentRequest::OrderRead(_) => {
                AgentResponse::Order(order_of(&self.profile, &self.default))
            }
            AgentRequest::RecordingEnd { keep, .. } => {
                self.kept = self.last.take().filter(|_| keep);
                AgentResponse::RecordingEnded(keep.then(|| pfo_protocol::PlanStatus {
                    number: 9,
                    label: "kept".to_owned(),
                    predicted_time_s: None,
                    predicted_energy_j: None,
                    suspended: None,
                    power_limits_w: Vec::new(),
                }))
            }
            AgentRequest::SweepAttend(order) => {
                self.sweep(order.settings);
                AgentResponse::Reused(self.stored())
            }
            AgentRequest::Profiles if self.is_known => AgentResponse::Profiles(vec![self.stored()]),
            AgentRequest::Profiles => AgentResponse::Profiles(Vec::new()),
            AgentRequest::ProfileRead(_) => {
                let csv = self.swept.clone().unwrap().into_bytes();
                AgentResponse::Profile { profile: self.stored(), csv }
            }
            AgentRequest::Status => AgentResponse::Status(Box::new(AgentStatus {
                version: "0.2.0".to_owned(),
                pid: Pid(845),
                uptime_s: 9.0,
                pfod_problem: None,
                jobs: Vec::new(),
                config: ConfigStatus::default(),
                ledger_problem: None,
            })),
            AgentRequest::P2pPowers => AgentResponse::P2pPowers(Vec::new()),
            AgentRequest::Calibrations => AgentResponse::Calibrations(Vec::new()),
            AgentRequest::Sweeps => AgentResponse::Sweeps(Vec::new()),
            AgentRequest::Guard { .. } => AgentResponse::Guarded(None),
            other => panic!("asked the agent for {other:?}"),
        })
    }

    async fn pfod(&mut self, request: Request) -> Result<Response, BenchError> {
        Ok(match request {
            Request::Status => {
                let golden = include_str!("../../../ctl/tests/golden/status.json");
                let mut status: Status = serde_json::from_str(golden).unwrap();
                status.jobs.clear();
                Response::Status(Box::new(status))
            }
            Request::PolicyExplain { .. } => Response::Policy(Vec::new()),
            Request::SmClocks(_) => Response::SmClocks(CLOCKS.step_by(APART).map(Mhz).collect()),
            other => panic!("asked pfod for {other:?}"),
        })
    }

    async fn compute<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BenchError> {
        Ok(work())
    }

    fn now(&self) -> Duration {
        Duration::from_secs_f64(self.now_s)
    }

    async fn pause(&mut self, length: Duration) {
        self.now_s += length.as_secs_f64();
    }

    fn show(&mut self, progress: Progress) {
        self.shown.push(progress);
    }

    fn remark(&mut self, line: String) {
        self.remarks.push(line);
    }
}

/// What the ranks of a plan run in a step, one for each stage.
pub(crate) fn order_of(profile: &Profile, plan: &Plan) -> Vec<RankOrder> {
    let ns = |s: f64| (1e9 * s) as u64;
    let ran = |span: &pfo_planner::Span| RanUnit {
        unit: pfo_protocol::Unit::new(span.instruction, span.microbatch.0),
        began_ns: ns(span.start_s),
        ended_ns: ns(span.end_s),
    };
    let timeline = Timeline::new(profile, plan).unwrap();
    let order = |(stage, spans): (u16, &Vec<pfo_planner::Span>)| RankOrder {
        rank: Rank(stage.into()),
        stage: Stage(stage),
        ran: spans.iter().map(ran).collect(),
    };
    (0..).zip(&timeline.stages).map(order).collect()
}

/// A plan at the clocks of a table.
pub(crate) fn at_clocks_of(plan: &Plan, table: &ClockTable) -> Plan {
    let mut plan = plan.clone();
    for (stage, units) in plan.stages.iter_mut().zip(table.stages()) {
        assert_eq!(stage.instructions.len(), units.len());
        for (planned, unit) in stage.instructions.iter_mut().zip(units) {
            assert_eq!(planned.unit(), unit.unit);
            planned.frequency_mhz = unit.mhz;
        }
    }
    plan
}
