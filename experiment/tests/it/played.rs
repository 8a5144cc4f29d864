//! A job that is played: it takes what the replay of its plan says, or some more, in tokio's paused time.

use std::time::Duration;

use pfo_experiment::{Bench, BenchError, Progress};
use pfo_planner::{
    Deadline, Due, Frontier, Options, Pipeline, Plan, Prediction, Profile, Schedule, StagePlan,
    Timeline, Watts, at_highest_clocks, replay,
};
use pfo_protocol::{
    AgentRequest, AgentResponse, AgentStatus, Chunk, ClockTable, ConfigStatus, DpRank,
    FrontierStatus, GpuUuid, GuardStatus, LeftOut, Mhz, Pid, PlanStatus, ProfileKey, Rank,
    RecordedRank, RecordedTrial, Refusal, RefusalCode, Request, Response, Stage, Status,
    StoredProfile, SweepEnd, SweepOrder, SweepSettings, SweepState, SweepStatus, TpRank,
    TrialLength, TrialRank, TrialResult, TrialRow, TrialRun, TrialStep, Uid, WaitPower,
};
use tokio::time::{Instant, sleep};

use crate::world::{at_clocks_of, order_of};

/// What a GPU of the job draws while it waits.
const P2P_POWER: Watts = Watts(90.0);

/// Two stages, the second one heavier, four clocks each.
pub(crate) const PROFILE: &str = "\
stage,instruction,frequency,time,energy
0,forward,1400,0.050,20
0,forward,1390,0.056,17
0,forward,1380,0.068,15.5
0,forward,1370,0.080,15
0,backward,1400,0.100,41
0,backward,1390,0.110,36
0,backward,1380,0.130,33
0,backward,1370,0.160,32
1,forward,1400,0.060,25
1,forward,1390,0.066,22
1,forward,1380,0.080,20
1,forward,1370,0.100,19
1,backward,1400,0.120,50
1,backward,1390,0.133,45
1,backward,1380,0.155,41
1,backward,1370,0.190,40
";

/// A job of two stages and six microbatches.
pub(crate) struct Job {
    profile: Profile,
    pub(crate) stored: Option<Stored>,
    /// The plan that gives the order, at the highest clocks.
    default: Plan,
    pub(crate) overhead: Overhead,
    /// What it ran in trials, in order; what it was left with in the end.
    pub(crate) ran: Vec<Option<Plan>>,
    /// The power limits that it ran under, in order.
    pub(crate) limits: Vec<Vec<u32>>,
    pub(crate) kept: Option<bool>,
    /// Whether this node has its GPUs.
    pub(crate) has_gpus: bool,
    /// Trials from which on a daemon is away, and for how many requests.
    pub(crate) away: Option<(usize, u32)>,
    pub(crate) remarks: Vec<String>,
    pub(crate) shown: Vec<Progress>,
    began: Instant,
}

/// What a plan takes beside its replay.
#[derive(Clone, Copy, Default)]
pub(crate) struct Overhead {
    /// As a share of the time of a step.
    pub(crate) time: f64,
    /// Of each change to another clock, as a share of the energy of a step.
    pub(crate) energy_of_change: f64,
}

impl From<f64> for Overhead {
    fn from(time: f64) -> Self {
        Self { time, ..Self::default() }
    }
}

/// Whether the agent has the job's profile.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored {
    Already,
    AfterASweep,
}

fn key() -> ProfileKey {
    ProfileKey {
        uid: Uid(1000),
        model: "j".parse().unwrap(),
        gpus: "A40".to_owned(),
        partition: "pp2-dp1-tp1-mb6".to_owned(),
    }
}

fn stored() -> StoredProfile {
    StoredProfile { key: key(), measured_unix_s: 9, bytes: 9 }
}

fn sweep(state: SweepState) -> SweepStatus {
    SweepStatus {
        job: "j".parse().unwrap(),
        profile: key(),
        settings: SweepSettings {
            steps: 1,
            settling_steps: 1,
            stride_mhz: Mhz(1),
            min_mhz: Mhz(0),
            max_slowdown: None,
        },
        state,
        mhz: None,
        measured: 1,
        clocks: 2,
        remark: None,
        step_time_s: None,
        default_step_time_s: None,
        remaining_s: None,
        not_in_force: false,
    }
}

impl Job {
    pub(crate) fn new(overhead: impl Into<Overhead>) -> Self {
        let profile = Profile::from_csv(PROFILE.as_bytes()).unwrap();
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 6).unwrap();
        let options = Options { plans: 4, ..Options::default() };
        let frontier = Frontier::optimize(&pipeline, Watts(400.0), options, &|_| {}).unwrap();
        let fastest = Due::AtMost(frontier.seconds(Deadline::Fastest));
        let default = at_highest_clocks(&profile, &frontier.plan_for(fastest).unwrap()).unwrap();
        Self {
            profile,
            stored: None,
            default,
            overhead: overhead.into(),
            ran: Vec::new(),
            limits: Vec::new(),
            kept: None,
            has_gpus: true,
            away: None,
            remarks: Vec::new(),
            shown: Vec::new(),
            began: Instant::now(),
        }
    }

    fn answer_of_pfod(&mut self, request: &Request) -> Response {
        match request {
            Request::Status => Response::Status(Box::new(self.status())),
            Request::PolicyExplain { .. } => Response::Policy(Vec::new()),
            Request::PowerLimits(_) => Response::PowerLimits { lowest_w: 110, highest_w: 300 },
            other => panic!("asked pfod for {other:?}"),
        }
    }

    fn answer_of_agent(&mut self, request: &AgentRequest) -> AgentResponse {
        match request {
            AgentRequest::Record { run, length, .. } => {
                AgentResponse::Recorded(Box::new(self.trial(run, *length)))
            }
            AgentRequest::Samples(_) => AgentResponse::Samples(None),
            AgentRequest::OrderRead(_) => {
                AgentResponse::Order(order_of(&self.profile, &self.default))
            }
            AgentRequest::RecordingEnd { keep, .. } => {
                AgentResponse::RecordingEnded(self.ended(*keep))
            }
            AgentRequest::SweepAttend(SweepOrder { reuse: true, .. }) => match &self.stored {
                Some(Stored::Already) => AgentResponse::Reused(stored()),
                Some(Stored::AfterASweep) => {
                    let end = SweepState::Ended(SweepEnd::LowestClock);
                    AgentResponse::Sweep(Box::new(sweep(end)))
                }
                None => panic!("asked for a profile"),
            },
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
            AgentRequest::Sweeps => {
                AgentResponse::Sweeps(vec![sweep(SweepState::Paused { why: None })])
            }
            AgentRequest::ProfileRead(selector) => {
                assert_eq!(selector.partition.as_deref(), Some("pp2-dp1-tp1-mb6"));
                AgentResponse::Profile { profile: stored(), csv: PROFILE.into() }
            }
            AgentRequest::Guard { max_slowdown, .. } => {
                let max_slowdown = max_slowdown.unwrap();
                AgentResponse::Guarded(Some(GuardStatus { max_slowdown, ..GuardStatus::default() }))
            }
            AgentRequest::FrontierLoad { label, frontier, .. } => {
                let plans = Frontier::from_bytes(frontier).unwrap().points().len() as u32;
                let (label, auto) = (label.clone(), false);
                let (fastest_s, slowest_s) = (1.0, 2.0);
                let of_none = FrontierStatus::default();
                let loaded = FrontierStatus { label, plans, fastest_s, slowest_s, auto, ..of_none };
                AgentResponse::Frontier(loaded)
            }
            other => panic!("asked the agent for {other:?}"),
        }
    }

    fn ended(&mut self, keep: bool) -> Option<PlanStatus> {
        self.kept = Some(keep);
        keep.then(|| PlanStatus {
            number: 9,
            label: "kept".to_owned(),
            predicted_time_s: None,
            predicted_energy_j: None,
            suspended: None,
            power_limits_w: Vec::new(),
        })
    }

    /// The default plan at the clocks of a table.
    fn planned(&self, table: &ClockTable) -> Plan {
        let mut plan = at_clocks_of(&self.default, table);
        plan.predicted = table.predicted().map(|predicted| Prediction {
            iteration_time_s: predicted.time_s,
            iteration_energy_j: predicted.energy_j,
        });
        plan
    }

    fn trial(&mut self, run: &TrialRun, length: TrialLength) -> RecordedTrial {
        let plan = match run {
            TrialRun::Plan { table, .. } => Some(self.planned(table)),
            TrialRun::DefaultClocks => None,
            TrialRun::PowerLimits { limits_w, .. } => return self.limited_trial(limits_w, length),
            other => panic!("asked to run {other:?}"),
        };
        self.ran.push(plan.clone());
        let time = plan.as_ref().map_or(1.0, |_| 1.0 + self.overhead.time);
        let energy = 1.0 + self.overhead.energy_of_change * plan.as_ref().map_or(0.0, changes);
        let is_default = plan.is_none();
        let plan = plan.unwrap_or_else(|| self.default.clone());
        let step = replay(&self.profile, &plan, P2P_POWER).unwrap();
        let step = TrialStep {
            time_s: step.iteration_time_s * time,
            energy_j: Some(step.iteration_energy_j * energy),
        };
        let steps = vec![step; length.steps as usize];
        let stages = [Stage(0), Stage(1)];
        let ranks = stages.map(rank).into();
        RecordedTrial {
            trial: TrialResult { plan: None, first_step: 7, steps, ranks },
            ranks: stages.map(|stage| self.recorded(&plan, stage, is_default, length.steps)).into(),
        }
    }

    /// Below 200 W everything takes longer, and the less power the less energy.
    fn limited_trial(&mut self, limits_w: &[u32], length: TrialLength) -> RecordedTrial {
        self.limits.push(limits_w.to_vec());
        let mut recorded = self.trial(&TrialRun::DefaultClocks, length);
        self.ran.pop();
        let slower = |limit_w: u32| f64::from(200_u32.saturating_sub(limit_w)) / 200.0 + 1.0;
        let slowest = limits_w.iter().copied().map(slower).fold(1.0, f64::max);
        let share = f64::from(limits_w.iter().sum::<u32>()) / 600.0;
        for step in &mut recorded.trial.steps {
            step.time_s *= slowest;
            step.energy_j = step.energy_j.map(|energy_j| energy_j * share);
        }
        for (rank, limit_w) in recorded.ranks.iter_mut().zip(limits_w) {
            rank.rows.iter_mut().for_each(|row| row.time_mean_s *= slower(*limit_w));
        }
        recorded
    }

    fn recorded(&self, plan: &Plan, stage: Stage, is_default: bool, steps: u32) -> RecordedRank {
        let timeline = Timeline::new(&self.profile, plan).unwrap();
        let row = |span: &pfo_planner::Span| TrialRow {
            instruction: span.instruction,
            chunk: Chunk(0),
            mhz: (!is_default).then_some(span.frequency),
            observed_mhz: None,
            count: steps.into(),
            time_mean_s: span.end_s - span.start_s,
            time_sd_s: 0.0,
            time_median_s: span.end_s - span.start_s,
            energy_mean_j: Some(span.energy_j),
            energy_median_j: Some(span.energy_j),
            energy_sd_j: None,
            throttled: None,
            left_out: LeftOut::default(),
        };
        RecordedRank {
            rank: Rank(stage.0.into()),
            readings: 100,
            stray_readings: 0,
            rows: timeline.stages[stage.index()].iter().map(row).collect(),
            waits: vec![WaitPower {
                mhz: None,
                count: 10,
                time_s: 1.0,
                power_w: P2P_POWER.0,
                power_error_w: 0.5,
            }],
        }
    }
}

/// How often a step changes to another clock.
fn changes(plan: &Plan) -> f64 {
    let of_stage = |stage: &StagePlan| {
        let clocks = stage.instructions.iter().map(|planned| planned.frequency_mhz);
        clocks.clone().zip(clocks.skip(1)).filter(|(one, next)| one != next).count()
    };
    plan.stages.iter().map(of_stage).sum::<usize>() as f64
}

fn rank(stage: Stage) -> TrialRank {
    TrialRank {
        rank: Rank(stage.0.into()),
        stage,
        dp_rank: DpRank(0),
        tp_rank: TpRank(0),
        gpu_uuid: gpu_of(stage),
        gpu_model: "A40".to_owned(),
        time_s: 1.0,
        energy_j: None,
        mismatched_steps: 0,
    }
}

fn gpu_of(stage: Stage) -> GpuUuid {
    format!("GPU-{stage}").parse().unwrap()
}

impl Job {
    /// The status of the daemon that has the job's GPUs.
    fn status(&self) -> Status {
        let golden = include_str!("../../../ctl/tests/golden/status.json");
        let mut status: Status = serde_json::from_str(golden).unwrap();
        status.jobs.clear();
        for (gpu, stage) in status.gpus.iter_mut().zip([Stage(0), Stage(1)]) {
            if self.has_gpus {
                gpu.uuid = gpu_of(stage);
            }
        }
        status
    }

    /// Whether a daemon is away just now.
    fn is_away(&mut self) -> bool {
        match &mut self.away {
            Some((trials, requests)) if self.ran.len() >= *trials && *requests > 0 => {
                *requests -= 1;
                true
            }
            _ => false,
        }
    }
}

fn away() -> BenchError {
    Refusal::new(RefusalCode::ShuttingDown, "pfod does not answer", "").into()
}

impl Bench for Job {
    async fn agent(
        &mut self,
        request: AgentRequest,
        _: Option<Duration>,
    ) -> Result<AgentResponse, BenchError> {
        if self.is_away() {
            return Err(away());
        }
        let answer = self.answer_of_agent(&request);
        if let AgentResponse::Recorded(trial) = &answer {
            let took_s: f64 = trial.trial.steps.iter().map(|step| step.time_s).sum();
            sleep(Duration::from_secs_f64(took_s)).await;
        }
        Ok(answer)
    }

    async fn pfod(&mut self, request: Request) -> Result<Response, BenchError> {
        if self.is_away() {
            return Err(away());
        }
        Ok(self.answer_of_pfod(&request))
    }

    async fn compute<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BenchError> {
        Ok(work())
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    async fn pause(&mut self, length: Duration) {
        sleep(length).await;
    }

    fn show(&mut self, progress: Progress) {
        self.shown.push(progress);
    }

    fn remark(&mut self, line: String) {
        self.remarks.push(line);
    }
}
