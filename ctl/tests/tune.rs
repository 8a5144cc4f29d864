//! `pfoctl tune` against a job that takes what the replay of its plan says, or some more.

use std::fs;
use std::sync::{Arc, Mutex};

use crate::fake_daemon::{FakeDaemon, no_jobs};
use crate::pfoctl::Bench;
use crate::ran::Ran;
use pfo_planner::{
    Plan, Prediction, Profile, StagePlan, Timeline, Watts, at_highest_clocks, replay,
};
use pfo_protocol::{
    AgentRequest, AgentResponse, AgentStatus, Chunk, ClockTable, DpRank, GpuUuid, LeftOut, Mhz,
    Pid, PlanStatus, ProfileKey, RanUnit, Rank, RankOrder, RecordedRank, RecordedTrial, Request,
    Response, Stage, StoredProfile, SweepEnd, SweepOrder, SweepSettings, SweepState, SweepStatus,
    TpRank, TrialLength, TrialRank, TrialResult, TrialRow, TrialRun, TrialStep, Uid, Unit,
    WaitPower,
};

/// What a GPU of the job draws while it waits.
const P2P_POWER: Watts = Watts(90.0);

/// A job of two stages and six microbatches.
struct Job {
    profile: Profile,
    csv: Vec<u8>,
    stored: Option<Stored>,
    /// The plan that gives the order, at the highest clocks.
    default: Plan,
    overhead: Overhead,
    /// What it ran in trials, in order; what it was left with in the end.
    ran: Arc<Mutex<Vec<Option<Plan>>>>,
    /// The power limits that it ran under, in order.
    limits: Arc<Mutex<Vec<Vec<u32>>>>,
    kept: Arc<Mutex<Option<bool>>>,
}

/// What a plan takes beside its replay.
#[derive(Clone, Copy, Default)]
struct Overhead {
    /// As a share of the time of a step.
    time: f64,
    /// Of each change to another clock, as a share of the energy of a step.
    energy_of_change: f64,
}

impl From<f64> for Overhead {
    fn from(time: f64) -> Self {
        Self { time, ..Self::default() }
    }
}

/// Whether the agent has the job's profile.
#[derive(Clone, Copy, Debug)]
enum Stored {
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
    }
}

impl Job {
    fn new(bench: &Bench, overhead: Overhead, stored: Option<Stored>) -> Self {
        let csv = fs::read(bench.path("profile.csv")).unwrap();
        let profile = Profile::from_csv(csv.as_slice()).unwrap();
        bench.frontier("order", 4);
        bench.done(&["plan", "export", "order", "--deadline", "fastest", "-o", "order.json"]);
        let plan = Plan::from_json(&fs::read(bench.path("order.json")).unwrap()).unwrap();
        let default = at_highest_clocks(&profile, &plan).unwrap();
        let (ran, limits, kept) = Default::default();
        Self { profile, csv, stored, default, overhead, ran, limits, kept }
    }

    fn pfod(&self, request: &Request) -> Response {
        match request {
            Request::Trial { run, length, .. } => {
                Response::Trial(Box::new(self.trial(run, *length).trial))
            }
            Request::Status => gpus_of_the_job(),
            Request::PolicyExplain { .. } => Response::Policy(Vec::new()),
            Request::PowerLimits(_) => Response::PowerLimits { lowest_w: 110, highest_w: 300 },
            Request::TrialsEnd { keep, .. } => Response::TrialsEnded(self.ended(*keep)),
            other => panic!("asked pfod for {other:?}"),
        }
    }

    fn agent(&self, request: &AgentRequest) -> AgentResponse {
        match request {
            AgentRequest::Record { run, length, .. } => {
                AgentResponse::Recorded(Box::new(self.trial(run, *length)))
            }
            AgentRequest::Samples(_) => AgentResponse::Samples(None),
            AgentRequest::OrderRead(_) => AgentResponse::Order(self.order()),
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
            })),
            AgentRequest::P2pPowers => AgentResponse::P2pPowers(Vec::new()),
            AgentRequest::Calibrations => AgentResponse::Calibrations(Vec::new()),
            AgentRequest::Sweeps => {
                AgentResponse::Sweeps(vec![sweep(SweepState::Paused { why: None })])
            }
            AgentRequest::ProfileRead(selector) => {
                assert_eq!(selector.partition.as_deref(), Some("pp2-dp1-tp1-mb6"));
                AgentResponse::Profile { profile: stored(), csv: self.csv.clone() }
            }
            other => panic!("asked the agent for {other:?}"),
        }
    }

    /// What the ranks ran in a step, one for each stage.
    fn order(&self) -> Vec<RankOrder> {
        let ns = |s: f64| (1e9 * s) as u64;
        let ran = |span: &pfo_planner::Span| RanUnit {
            unit: Unit::new(span.instruction, span.microbatch.0),
            began_ns: ns(span.start_s),
            ended_ns: ns(span.end_s),
        };
        let timeline = Timeline::new(&self.profile, &self.default).unwrap();
        let order = |(stage, spans): (u16, &Vec<pfo_planner::Span>)| RankOrder {
            rank: Rank(stage.into()),
            stage: Stage(stage),
            ran: spans.iter().map(ran).collect(),
        };
        (0..).zip(&timeline.stages).map(order).collect()
    }

    fn ended(&self, keep: bool) -> Option<PlanStatus> {
        *self.kept.lock().unwrap() = Some(keep);
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
        let mut plan = self.default.clone();
        for (stage, units) in plan.stages.iter_mut().zip(table.stages()) {
            assert_eq!(stage.instructions.len(), units.len());
            for (planned, unit) in stage.instructions.iter_mut().zip(units) {
                assert_eq!(planned.unit(), unit.unit);
                planned.frequency_mhz = unit.mhz;
            }
        }
        plan.predicted = table.predicted().map(|predicted| Prediction {
            iteration_time_s: predicted.time_s,
            iteration_energy_j: predicted.energy_j,
        });
        plan
    }

    fn trial(&self, run: &TrialRun, length: TrialLength) -> RecordedTrial {
        let plan = match run {
            TrialRun::Plan { table, .. } => Some(self.planned(table)),
            TrialRun::DefaultClocks => None,
            TrialRun::PowerLimits { limits_w, .. } => return self.limited_trial(limits_w, length),
            other => panic!("asked to run {other:?}"),
        };
        self.ran.lock().unwrap().push(plan.clone());
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
    fn limited_trial(&self, limits_w: &[u32], length: TrialLength) -> RecordedTrial {
        self.limits.lock().unwrap().push(limits_w.to_vec());
        let mut recorded = self.trial(&TrialRun::DefaultClocks, length);
        self.ran.lock().unwrap().pop();
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

/// The status of the daemon that has the job's GPUs.
fn gpus_of_the_job() -> Response {
    let Response::Status(mut status) = no_jobs() else { unreachable!() };
    for (gpu, stage) in status.gpus.iter_mut().zip([Stage(0), Stage(1)]) {
        gpu.uuid = gpu_of(stage);
    }
    Response::Status(status)
}

struct Tuned {
    ran: Ran,
    /// What ran in trials, none at default clocks.
    plans: Vec<Option<Plan>>,
    /// The power limits of the others.
    limits: Vec<Vec<u32>>,
    kept: Option<bool>,
}

fn tune(overhead: impl Into<Overhead>, arguments: &[&str]) -> Tuned {
    tune_with(None, overhead, &[&["--profile", "profile.csv"], arguments].concat())
}

fn tune_with(stored: Option<Stored>, overhead: impl Into<Overhead>, arguments: &[&str]) -> Tuned {
    tune_on(true, stored, overhead, arguments)
}

fn tune_on(
    has_agent: bool,
    stored: Option<Stored>,
    overhead: impl Into<Overhead>,
    arguments: &[&str],
) -> Tuned {
    let bench = Bench::new();
    let job = Job::new(&bench, overhead.into(), stored);
    let (ran, kept) = (Arc::clone(&job.ran), Arc::clone(&job.kept));
    let limits = Arc::clone(&job.limits);
    let job = Arc::new(job);
    let agents = Arc::clone(&job);
    let pfod = FakeDaemon::answering(move |request| job.pfod(request));
    let daemon = match has_agent {
        true => pfod.with_agent(move |request| agents.agent(request)),
        false => pfod,
    };
    let tune = ["tune", "j", "--steps", "2"];
    let mut command = daemon.pfoctl(&[&tune[..], arguments].concat());
    let tuned = Ran::of(command.current_dir(bench.path(".")));
    let plans = ran.lock().unwrap().clone();
    let kept = *kept.lock().unwrap();
    let limits = limits.lock().unwrap().clone();
    Tuned { ran: tuned, plans, limits, kept }
}

#[test]
fn a_plan_that_keeps_its_promise_is_kept_and_its_saving_reported() {
    let Tuned { ran, plans, kept, .. } = tune(0.0, &["--max-slowdown", "4.6%", "--json"]);
    assert_eq!((ran.code, kept), (Some(0), Some(true)), "{ran:?}");
    let report = ran.json();
    let tried = report["tried"].as_array().unwrap();
    assert_eq!(tried.len(), 1, "{report}");
    assert_eq!(tried[0]["verdict"], "kept");
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    assert!((number(&report["p2p_power"]["watts"]) - 90.0).abs() < 1e-9, "{report}");
    assert_eq!(report["p2p_power"]["origin"], "waits");
    let slowdown = &tried[0]["slowdown"];
    assert!(number(&slowdown["high"]) <= 0.05 && number(&slowdown["low"]) >= 0.0, "{report}");
    let saving = number(&tried[0]["saving"]["estimate"]);
    assert!(saving > 0.02, "{report}");
    // A baseline to plan with, default clocks and the plan in turns, and the plan to stay.
    let turns: Vec<bool> = plans.iter().map(Option::is_some).collect();
    assert_eq!(turns, [false, false, true, true, false, false, true, true, false, true]);
}

#[test]
fn where_changes_cost_what_no_replay_knows_a_plan_without_them_is_tried_too_and_the_better_one_kept()
 {
    for (energy_of_change, kept) in [(0.0, "pfo 1"), (0.01, "pfo 1 per stage")] {
        let overhead = Overhead { energy_of_change, ..Overhead::default() };
        let Tuned { ran, .. } = tune(overhead, &["--max-slowdown", "4.6%", "--json"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let report = ran.json();
        let saving = |tried: &serde_json::Value| tried["saving"]["estimate"].as_f64().unwrap();
        let tried = report["tried"].as_array().unwrap();
        let best = tried.iter().max_by(|a, b| saving(a).total_cmp(&saving(b))).unwrap();
        assert_eq!(best["verdict"], "kept", "{report}");
        assert_eq!(best["plan"], kept, "{report}");
        let mut others = tried.iter().filter(|tried| tried["plan"] != kept);
        let outdone = ["saves-less", "saves-nothing"];
        assert!(others.all(|tried| outdone.iter().any(|it| tried["verdict"] == *it)), "{report}");
    }
}

#[test]
fn without_an_agent_a_job_is_tuned_if_everything_that_it_would_measure_is_given() {
    let given = ["--profile", "profile.csv", "--max-slowdown", "5%"];
    let Tuned { ran, .. } = tune_on(false, None, 0.0, &given);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("cannot reach pfo-agent"), "{ran:?}");
    let given = [&given[..], &["--microbatches", "6", "--p2p-power", "90"]].concat();
    let Tuned { ran, kept, .. } = tune_on(false, None, 0.0, &given);
    assert_eq!((ran.code, kept), (Some(0), Some(true)), "{ran:?}");
    let zeus = ["--policy", "zeus-global", "--max-slowdown", "30%"];
    let Tuned { ran, kept, .. } = tune_on(false, None, 0.0, &zeus);
    assert_eq!((ran.code, kept), (Some(0), Some(true)), "{ran:?}");
}

#[test]
fn without_a_file_the_stored_profile_is_taken_or_one_is_measured_first() {
    for (stored, origin) in [(Stored::Already, "stored"), (Stored::AfterASweep, "measured")] {
        let Tuned { ran, .. } = tune_with(Some(stored), 0.0, &["--max-slowdown", "5%", "--json"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let report = ran.json();
        assert_eq!(report["profile_origin"], origin, "{report}");
        assert!(report["profile"].as_str().unwrap().contains("pp2-dp1-tp1-mb6"), "{report}");
        let reused = matches!(stored, Stored::AfterASweep).then_some(1);
        assert_eq!(report["profile_clocks_reused"].as_u64(), reused, "{report}");
    }
}

#[test]
fn plans_that_are_too_slow_give_way_to_faster_ones_and_in_the_end_to_default_clocks() {
    let Tuned { ran, plans, kept, .. } = tune(0.03, &["--max-slowdown", "5%"]);
    assert_eq!((ran.code, kept), (Some(0), Some(true)), "{ran:?}");
    let time_s = |plan: &Plan| plan.predicted.unwrap().iteration_time_s;
    let mut tried: Vec<f64> = plans.iter().flatten().map(time_s).collect();
    tried.dedup();
    // In between, what changes of clocks cost is learned, and is in the predictions from then on.
    assert!(tried.len() > 1 && tried.last() < tried.first(), "{tried:?}");
    assert!(ran.stdout.contains("too slow") && ran.stdout.contains("kept"), "{ran:?}");

    let Tuned { ran, kept, .. } = tune(0.08, &["--max-slowdown", "5%"]);
    assert_eq!((ran.code, kept), (Some(5), Some(false)), "{ran:?}");
    assert!(ran.stderr.contains("job j is at default clocks"), "{ran:?}");
}

#[test]
fn other_policies_look_for_their_clocks_on_the_job_and_are_proved_like_ours() {
    for policy in [
        &["--policy", "envpipe"][..],
        &["--policy", "envpipe", "--reconfigure", "greedy"],
        &["--policy", "zeus-global", "--knob", "clock"],
        &["--policy", "zeus-per-stage", "--knob", "clock"],
    ] {
        let arguments = [policy, &["--max-slowdown", "100%", "--json"]].concat();
        let Tuned { ran, plans, .. } = tune(0.0, &arguments);
        assert!(matches!(ran.code, Some(0 | 5)), "{policy:?}: {ran:?}");
        let report = ran.json();
        let searched = report["search_trials"].as_u64().unwrap() as usize;
        assert!(searched >= 4, "{policy:?}: {report}");
        let last_searched = plans[searched].as_ref().unwrap();
        assert!(plans[1..=searched].iter().all(Option::is_some), "{policy:?}");
        assert_eq!(plans[0], None);
        assert_eq!(report["tried"].as_array().unwrap().len(), 1, "{policy:?}: {report}");
        if policy[1] == "envpipe" {
            assert_eq!(plans.iter().flatten().last(), Some(last_searched));
        }
    }
}

#[test]
fn zeus_looks_among_power_limits_without_a_profile_and_what_it_finds_is_proved_and_kept() {
    let tune = |policy: &str| {
        let arguments = ["--policy", policy, "--max-slowdown", "30%", "--json"];
        let Tuned { ran, plans, limits, kept } = tune_with(None, 0.0, &arguments);
        assert_eq!((ran.code, kept), (Some(0), Some(true)), "{ran:?}");
        assert!(plans.iter().all(Option::is_none), "{policy} ran a plan");
        let report = ran.json();
        assert!(report.get("profile").is_none(), "{report}");
        let searched = report["searched"].as_array().unwrap();
        let listed: Vec<Vec<u32>> = searched
            .iter()
            .map(|trial| serde_json::from_value(trial["power_limits_w"].clone()).unwrap())
            .collect();
        assert_eq!(listed[..], limits[..listed.len()], "{report}");
        assert_eq!(report["search_trials"], listed.len() as u64);
        (
            listed,
            limits.last().unwrap().clone(),
            report["tried"][0]["plan"].as_str().unwrap().into(),
        )
    };
    let (searched, kept, label): (_, _, String) = tune("zeus-global");
    let falling = [300, 275, 250, 225, 200, 175, 150, 125];
    assert_eq!(searched, falling.map(|limit| vec![limit; 2]));
    // As low as costs no time.
    assert_eq!((kept, label.as_str()), (vec![200, 200], "zeus-global (200 W)"));
    let (searched, _, label): (_, Vec<u32>, String) = tune("zeus-per-stage");
    assert!(searched.iter().any(|limits| limits[0] != limits[1]), "{searched:?}");
    assert!(label.starts_with("zeus-per-stage ("), "{label}");
}

#[test]
fn zeus_asks_for_a_node_that_has_gpus_of_the_job() {
    let job = Job::new(&Bench::new(), Overhead::default(), None);
    let daemon = FakeDaemon::answering(move |request| match request {
        Request::Status => no_jobs(),
        other => job.pfod(other),
    });
    let ran = daemon.run(&["tune", "j", "--policy", "zeus-global", "--max-slowdown", "30%"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let (what, remedy) = ("none of its GPUs is on this node", "on one of the job's nodes");
    assert!(ran.stderr.contains(what) && ran.stderr.contains(remedy), "{ran:?}");
}

#[test]
fn the_step_between_power_limits_is_as_given_and_those_that_are_too_slow_are_not_chosen() {
    let chosen = |max_slowdown: &str| {
        let zeus = ["--policy", "zeus-global", "--power-step-w", "90", "--zeus-eta", "1"];
        let arguments = [&zeus[..], &["--max-slowdown", max_slowdown]].concat();
        let Tuned { ran, limits, kept, .. } = tune_with(None, 0.0, &arguments);
        assert_eq!((ran.code, kept), (Some(0), Some(true)), "{ran:?}");
        assert_eq!(limits[..3], [[300, 300], [210, 210], [120, 120]]);
        let listed = "Policy zeus-global over power limits, found in 3 trials.";
        assert!(ran.stdout.contains(listed), "{ran:?}");
        let chosen = limits[3][0];
        assert!(limits[3..].iter().all(|limits| limits == &[chosen, chosen]), "{limits:?}");
        assert!(ran.stdout.contains(&format!("zeus-global ({chosen} W)")), "{ran:?}");
        chosen
    };
    assert_eq!(chosen("1%"), 210);
    assert_eq!(chosen("50%"), 120);
}
