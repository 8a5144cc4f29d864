//! The frames of administration: requests that change a job, and the answers that a client waits
//! for.

use pfo_protocol::{
    AgentRequest, AgentResponse, ClientMessage, ClockTable, CounterReading, DaemonMessage,
    GpuListing, GpuName, Instruction, JobSelector, LeaseTarget, Mhz, Notice, P2pTarget, Pid,
    PlanStatus, PlannedUnit, Predicted, Rank, Refusal, RefusalCode, Request, Response, SettleTime,
    SettleTimes, StoredProfile, SwapTarget, Swapped, SweepControl, SweepOrder, SweepSettings,
    TapBatch, TapRecord, ThrottledNs, TrialLength, TrialRun, TuneEnd, TuneOrder, TuneState,
    TuneStatus, Uid, Unit, User,
};

use crate::recorded_frames::{Recorded, to_client, to_daemon};

pub(crate) fn frames() -> Vec<Recorded> {
    let mut frames = to_pfod();
    frames.extend(from_pfod());
    frames.extend(to_agent());
    frames.extend(to_agent_for_a_tune());
    frames.extend(from_agent());
    frames
}

fn job() -> JobSelector {
    JobSelector { job: "llama-7b".parse().unwrap(), uid: None }
}

fn job_of_1000() -> JobSelector {
    JobSelector { uid: Some(Uid(1000)), ..job() }
}

/// Two stages of two microbatches.
fn table() -> ClockTable {
    let unit = |instruction, microbatch, mhz| PlannedUnit {
        unit: Unit::new(instruction, microbatch),
        mhz: Mhz(mhz),
        wait_mhz: (microbatch == 1).then_some(Mhz(210)),
    };
    let (forward, backward) = (Instruction::Forward, Instruction::Backward);
    let first = vec![
        unit(forward, 0, 1410),
        unit(forward, 1, 1395),
        unit(backward, 0, 1200),
        unit(backward, 1, 1410),
    ];
    let last = vec![
        unit(forward, 0, 1005),
        unit(backward, 0, 1110),
        unit(forward, 1, 1005),
        unit(backward, 1, 1125),
    ];
    let predicted = Predicted { time_s: 0.75, energy_j: 400.5 };
    ClockTable::new(2, Some(predicted), vec![first, last]).unwrap()
}

fn request(name: &str, meaning: &str, request: Request) -> Recorded {
    to_daemon(name, meaning, ClientMessage::Request(request))
}

fn response(name: &str, meaning: &str, response: Response) -> Recorded {
    to_client(name, meaning, DaemonMessage::Response(response))
}

fn to_pfod() -> Vec<Recorded> {
    [about_plans(), administration(), measuring()].into_iter().flatten().collect()
}

fn label() -> String {
    "plan.json".to_owned()
}

fn about_plans() -> Vec<Recorded> {
    let swap = |target, at_step, after, wait| {
        let job = job();
        Request::PlanSwap { job, target, at_step, after, wait }
    };
    vec![
        request("gpus", "which GPUs the node has", Request::Gpus),
        request("status", "everything that status shows", Request::Status),
        request(
            "plan-load",
            "check this clock table and keep it",
            Request::PlanLoad { job: job(), label: label(), table: table() },
        ),
        request(
            "swap-loaded",
            "run the loaded plan from the next step on, wait",
            swap(SwapTarget::Loaded, None, None, true),
        ),
        request(
            "swap-default",
            "default clocks, at step 100",
            swap(SwapTarget::DefaultClocks, Some(100), None, false),
        ),
        request(
            "swap-after",
            "default clocks, if swap 7 is still the newest one",
            swap(SwapTarget::DefaultClocks, None, Some(7), false),
        ),
        request(
            "swap-table",
            "run this clock table",
            swap(SwapTarget::Table { label: label(), table: table() }, None, None, true),
        ),
        request(
            "swap-here",
            "default clocks on this node alone",
            Request::PlanSwapHere {
                job: job(),
                target: SwapTarget::DefaultClocks,
                at_step: None,
                wait: false,
            },
        ),
        request(
            "plan-read",
            "which clock table user 1000's job runs",
            Request::PlanRead(job_of_1000()),
        ),
        request(
            "plan-check",
            "check this clock table",
            Request::PlanCheck { job: job(), label: label(), table: table() },
        ),
    ]
}

fn administration() -> Vec<Recorded> {
    let gpu = || -> GpuName { "GPU-8d4e1b72-0c93-4f6a-b2e5-7a9c3d5f1e08".parse().unwrap() };
    let who = Some(User { uid: Uid(1000), groups: vec![pfo_protocol::Gid(1000)], cgroup: None });
    vec![
        request(
            "reset",
            "reset the clocks of one GPU",
            Request::ClocksReset { gpu: Some(gpu()), all: false },
        ),
        request("policy", "what user 1000 may lease", Request::PolicyExplain { who, gpu: None }),
        request("reload", "read the configuration again", Request::Reload),
        request("leases", "who holds which GPU", Request::Leases),
        request(
            "drain",
            "end every lease, and release the driver",
            Request::Drain { reason: "a fan is replaced".into(), release_driver: true },
        ),
        request("undrain", "grant leases again", Request::Undrain),
        request(
            "settle_times",
            "take these times for how long the clocks of a GPU take to be in force",
            Request::SettleTimes {
                gpu: "GPU-6f2c0001-8a11-4c6e-9d4e-0123456789a0".parse().unwrap(),
                times: SettleTimes::new(vec![
                    SettleTime { mhz: Mhz(900), us: 21_500 },
                    SettleTime { mhz: Mhz(1410), us: 9_800 },
                ])
                .unwrap(),
            },
        ),
        request(
            "power_cap",
            "keep a leased GPU below 250 W",
            Request::PowerCap {
                gpu: "GPU-6f2c0001-8a11-4c6e-9d4e-0123456789a0".parse().unwrap(),
                limit_w: Some(250),
            },
        ),
        request("acknowledge", "report no more that locks may be lost", Request::LedgerAcknowledge),
        request(
            "grant",
            "give a GPU to user 1000 until a time",
            Request::Grant { uid: Uid(1000), gpus: vec![gpu()], until_unix_s: Some(1_795_368_000) },
        ),
        request(
            "grant-revoke",
            "end all grants of user 1000",
            Request::GrantRevoke { uid: Some(Uid(1000)), gpus: Vec::new() },
        ),
        request(
            "revoke",
            "end the sessions of a job",
            Request::LeaseRevoke(LeaseTarget::Job(job())),
        ),
        request(
            "allow",
            "lift the revocation of a GPU",
            Request::LeaseAllow(LeaseTarget::Gpu(gpu())),
        ),
    ]
}

fn measuring() -> Vec<Recorded> {
    let length = TrialLength { settling_steps: 2, steps: 20 };
    vec![
        request(
            "trial-uniform",
            "measure 20 steps at 1110 MHz after 2 settling steps",
            Request::Trial { job: job(), run: TrialRun::Uniform(Mhz(1110)), length, after: None },
        ),
        request(
            "trial-plan",
            "measure 20 steps under a clock table",
            Request::Trial {
                job: job(),
                run: TrialRun::Plan { label: label(), table: table() },
                length,
                after: Some(3),
            },
        ),
        request(
            "trials-end",
            "end the hold, keep what the last trial ran",
            Request::TrialsEnd { job: job(), keep: true },
        ),
        request("tap", "stream what is seen of a job", Request::Tap { job: job(), counters: true }),
        request(
            "on-behalf",
            "later requests are those of user 1000, process 4242",
            Request::OnBehalf { uid: Uid(1000), pid: Some(Pid(4242)), administrator: false },
        ),
    ]
}

fn plan() -> PlanStatus {
    PlanStatus {
        number: 1,
        label: "plan.json".into(),
        predicted_time_s: Some(0.75),
        predicted_energy_j: Some(400.5),
        suspended: None,
        power_limits_w: Vec::new(),
    }
}

fn from_pfod() -> Vec<Recorded> {
    let refusal =
        Refusal::new(RefusalCode::UnknownJob, "there is no job llama-7b", "see `pfoctl status`");
    let gpu = GpuListing {
        uuid: "GPU-8d4e1b72-0c93-4f6a-b2e5-7a9c3d5f1e08".parse().unwrap(),
        pci_bus_id: "00000000:0B:00.0".parse().unwrap(),
        model: "NVIDIA A100-SXM4-80GB".into(),
    };
    let reading = CounterReading {
        at_ns: 90_000_000_000,
        energy_j: Some(1234.5),
        read_ns: 90_000_400_000,
        sm_clock: Some(Mhz(1110)),
        throttled_ns: ThrottledNs::of([Some(2_500_000_000), Some(0), Some(0), None, None]),
        throttle_reasons: 4,
    };
    let ran = TapRecord::Ran {
        unit: Unit::new(Instruction::Backward, 1),
        began_ns: 90_000_000_000,
        ended_ns: 90_010_000_000,
        asked: Some(Mhz(1110)),
        locked: Some((Mhz(1110), 89_999_000_000)),
        astray: false,
    };
    let records = vec![
        TapRecord::TrialBegan { first_step: 8, steps: 20 },
        TapRecord::StepBegan { step: 8, at_ns: 89_990_000_000, astray: false },
        ran,
        TapRecord::Counter(reading),
        TapRecord::StepEnded { at_ns: 90_020_000_000, astray: false },
        TapRecord::Ended,
    ];
    let swapped = Swapped { plan: Some(plan()), step: 12, ranks: 2, changed: 2 };
    vec![
        response("refused", "a request that is refused", Response::Refused(refusal)),
        response("gpus-answer", "one GPU", Response::Gpus(vec![gpu])),
        response("loaded", "the plan is loaded", Response::Loaded(plan())),
        response("swapped", "both ranks changed at step 12", Response::Swapped(swapped)),
        response("plan-answer", "the clock table that runs", Response::Plan(Some(table()))),
        response("sm-clocks", "the clocks of a GPU", Response::SmClocks(vec![Mhz(210), Mhz(1410)])),
        response("done", "done", Response::Done),
        to_client(
            "tap-batch",
            "one record of each variant, three records lost before",
            DaemonMessage::Tap(TapBatch { rank: Rank(1), lost: 3, records }),
        ),
        to_client("notice", "a job changed", DaemonMessage::Notice(Notice::JobsChanged)),
    ]
}

fn to_agent() -> Vec<Recorded> {
    let request = |name: &str, meaning: &str, request| {
        to_daemon(name, meaning, ClientMessage::AgentRequest(request))
    };
    let length = TrialLength { settling_steps: 2, steps: 20 };
    let settings = SweepSettings {
        steps: 10,
        settling_steps: 1,
        stride_mhz: Mhz(30),
        min_mhz: Mhz(600),
        max_slowdown: Some(0.25),
    };
    let order = SweepOrder { job: job(), model: None, settings, reuse: true };
    vec![
        request("agent-status", "everything about the agent", AgentRequest::Status),
        request(
            "record",
            "measure the instructions of 20 steps at default clocks",
            AgentRequest::Record {
                job: job(),
                run: TrialRun::DefaultClocks,
                length,
                samples: false,
            },
        ),
        request(
            "straggler",
            "a straggler takes 1.25 times as long",
            AgentRequest::Straggler { job: job(), slowdown: Some(1.25), wait: true },
        ),
        request("sweep-start", "sweep a job", AgentRequest::SweepStart(order)),
        request(
            "sweep-pause",
            "pause the sweep of a job",
            AgentRequest::SweepControl { job: job(), control: SweepControl::Pause },
        ),
        request(
            "p2p-set",
            "the P2P-blocking power of a model is 83.64 W",
            AgentRequest::P2pSet {
                target: P2pTarget::Model("NVIDIA A100-SXM4-80GB".into()),
                power_w: Some(83.64),
            },
        ),
        request(
            "fleet-swap",
            "a job over several nodes changes back",
            AgentRequest::FleetSwap {
                job: job(),
                target: SwapTarget::Previous,
                at_step: Some(7),
                max_slowdown: Some(0.01),
                wait: true,
            },
        ),
    ]
}

fn to_agent_for_a_tune() -> Vec<Recorded> {
    let request = |name: &str, meaning: &str, request| {
        to_daemon(name, meaning, ClientMessage::AgentRequest(request))
    };
    vec![
        request(
            "tune-start",
            "tune a job within a slowdown of 1 %",
            AgentRequest::TuneStart(TuneOrder {
                job: job(),
                terms: br#"{"max_slowdown": 0.01}"#.to_vec(),
                profile: None,
                order: None,
            }),
        ),
        request(
            "tune-watch",
            "the next change of the status of a tune",
            AgentRequest::TuneWatch { job: job(), seen: 7 },
        ),
        request("tune-stop", "end the tune of a job", AgentRequest::TuneStop(job())),
        request(
            "frontier-read",
            "the frontier that is loaded for a job",
            AgentRequest::FrontierRead(job()),
        ),
    ]
}

fn from_agent() -> Vec<Recorded> {
    let key = pfo_protocol::ProfileKey {
        uid: Uid(1000),
        model: "llama-7b".parse().unwrap(),
        gpus: "NVIDIA A100-SXM4-80GB".into(),
        partition: "pp2".into(),
    };
    let profile = StoredProfile { key, measured_unix_s: 1_795_330_000, bytes: 4096 };
    let refusal = Refusal::new(RefusalCode::NotAuthorized, "user 1001 does not own the job", "");
    vec![
        to_client(
            "agent-refused",
            "a request that is refused",
            DaemonMessage::AgentResponse(AgentResponse::Refused(refusal)),
        ),
        to_client(
            "reused",
            "a stored profile answers the sweep",
            DaemonMessage::AgentResponse(AgentResponse::Reused(profile)),
        ),
        to_client(
            "tune",
            "a tune that could not continue",
            DaemonMessage::AgentResponse(AgentResponse::Tune(Box::new(tune()))),
        ),
    ]
}

fn tune() -> TuneStatus {
    let refusal = Refusal::new(RefusalCode::UnknownJob, "user 1000 has no job llama-7b", "");
    TuneStatus {
        job: "llama-7b".parse().unwrap(),
        uid: Uid(1000),
        changed: 12,
        state: TuneState::Ended(TuneEnd::Failed(refusal)),
        now: "proving pfo 1, turn 3 of 8".into(),
        done: 0.25,
        remaining_s: Some(95.5),
        saving: None,
        remarks: vec!["pfod does not answer; retrying for up to 5 min 0 s".into()],
    }
}
