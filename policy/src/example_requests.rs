//! Requests for tests, here and in the daemon.

use pfo_protocol::{
    ClockTable, Instruction, JobSelector, LeaseTarget, Mhz, Pid, PlannedUnit, Request, SettleTimes,
    SwapTarget, TrialLength, TrialRun, Uid, Unit, User,
};

pub(crate) const OWNER: Option<Uid> = Some(Uid(1000));

pub(crate) fn job() -> JobSelector {
    JobSelector { job: "j".parse().unwrap(), uid: OWNER }
}

fn table() -> ClockTable {
    let unit = Unit::new(Instruction::Forward, 0);
    ClockTable::new(1, None, vec![vec![PlannedUnit { unit, mhz: Mhz(900), wait_mhz: None }]])
        .unwrap()
}

pub(crate) fn requests_that_look() -> Vec<Request> {
    let gpu = || "GPU-1".parse().unwrap();
    vec![
        Request::Gpus,
        Request::Status,
        Request::Leases,
        Request::Jobs,
        Request::SmClocks(gpu()),
        Request::PowerLimits(gpu()),
        Request::PlanRead(job()),
        Request::PolicyExplain { who: None, gpu: Some(gpu()) },
    ]
}

pub(crate) fn requests_that_change_a_job() -> Vec<Request> {
    let length = TrialLength { settling_steps: 1, steps: 1 };
    let swap =
        |target| Request::PlanSwap { job: job(), target, at_step: None, after: None, wait: true };
    let trial = |run| Request::Trial { job: job(), run, length, after: None };
    let label = String::new;
    vec![
        Request::PlanLoad { job: job(), label: label(), table: table() },
        Request::PlanCheck { job: job(), label: label(), table: table() },
        swap(SwapTarget::Loaded),
        swap(SwapTarget::Previous),
        swap(SwapTarget::DefaultClocks),
        swap(SwapTarget::Uniform(Mhz(900))),
        swap(SwapTarget::Replicas(vec![Mhz(900), Mhz(885)])),
        swap(SwapTarget::PowerLimits { label: label(), limits_w: vec![200] }),
        swap(SwapTarget::Table { label: label(), table: table() }),
        Request::PlanSwapHere {
            job: job(),
            target: SwapTarget::DefaultClocks,
            at_step: None,
            wait: true,
        },
        trial(TrialRun::DefaultClocks),
        trial(TrialRun::Plan { label: label(), table: table() }),
        trial(TrialRun::Uniform(Mhz(900))),
        trial(TrialRun::Replicas(vec![Mhz(900), Mhz(885)])),
        trial(TrialRun::PowerLimits { label: label(), limits_w: vec![200] }),
        trial(TrialRun::FreeMemory),
        Request::TrialsEnd { job: job(), keep: true },
        Request::TrialsEnd { job: job(), keep: false },
    ]
}

pub(crate) fn requests_for_administrators() -> Vec<Request> {
    let gpu = || "GPU-1".parse().unwrap();
    let of_gpu = || LeaseTarget::Gpu(gpu());
    let of_job = || LeaseTarget::Job(job());
    let who = Some(User { uid: Uid(7), groups: Vec::new(), cgroup: None });
    vec![
        Request::PolicyExplain { who, gpu: None },
        Request::Reload,
        Request::Undrain,
        Request::Drain { reason: "x".into(), release_driver: false },
        Request::Grant { uid: Uid(7), gpus: vec![gpu()], until_unix_s: Some(1) },
        Request::GrantRevoke { uid: None, gpus: vec![gpu()] },
        Request::LedgerAcknowledge,
        Request::ClocksReset { gpu: None, all: false },
        Request::ClocksReset { gpu: Some(gpu()), all: true },
        Request::LeaseRevoke(of_job()),
        Request::LeaseAllow(of_job()),
        Request::LeaseRevoke(of_gpu()),
        Request::LeaseAllow(of_gpu()),
    ]
}

pub(crate) fn requests_of_the_agent() -> Vec<Request> {
    let tap = |counters| Request::Tap { job: job(), counters };
    let on_behalf = |administrator| {
        let (uid, pid) = (Uid::ROOT, Some(Pid(1)));
        Request::OnBehalf { uid, pid, administrator }
    };
    let settle = Request::SettleTimes {
        gpu: "GPU-1".parse().unwrap(),
        times: SettleTimes::always(15_000_000),
    };
    let cap = Request::PowerCap { gpu: "GPU-1".parse().unwrap(), limit_w: Some(200) };
    vec![Request::WatchJobs, settle, cap, tap(false), tap(true), on_behalf(false), on_behalf(true)]
}
