//! Sessions, plans and measurements as large, as wrong and as short as they can be.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use pfo_protocol::{
    ClientMessage, ClockTable, Event, LeaseTarget, Mark, Mhz, Request, SwapTarget, TrialLength,
    TrialRun, Uid,
};

use super::{Target, answer, frame, request};
use crate::client::{devices_in, hello, send_with};
use crate::plan::TestPlan;

/// Instructions of a plan that a person may keep, nearly.
const MOST_INSTRUCTIONS: u32 = 95_000;

fn send_step(stream: &mut impl Write, sequence: &mut u64, step: u64) -> io::Result<()> {
    for mark in [Mark::StepBegin(step), Mark::StepEnd(step)] {
        let client_ns = fastrand::choice([0, 1, fastrand::u64(..), u64::MAX]).unwrap_or(0);
        let event = Event { sequence: *sequence, client_ns, mark };
        stream.write_all(&frame(&ClientMessage::Event(event))?)?;
        *sequence += 1;
    }
    Ok(())
}

pub(super) fn join(target: &Target) -> io::Result<()> {
    let names =
        [target.victim.job.as_str(), "a/b", "-%@=,:+.", &"n".repeat(128)].map(str::to_owned);
    let name = fastrand::choice(names).unwrap_or_default();
    let mut hello = hello(&name, 0, 1, target.gpu()?);
    let any = |number: &mut u32| {
        if fastrand::u8(..3) == 0 {
            *number = fastrand::choice([0, 1, 2, 4096, u32::MAX]).unwrap_or(0);
        }
    };
    let position = &mut hello.position;
    any(&mut position.rank.0);
    any(&mut position.pp_degree);
    any(&mut position.dp_degree);
    any(&mut position.tp_degree);
    hello.next_step = fastrand::choice([0, u64::MAX, fastrand::u64(..)]).unwrap_or(0);
    let mut stream = target.connect()?;
    let devices = devices_in(&target.devices);
    let devices = if fastrand::bool() { &devices[..] } else { &[] };
    send_with(&stream, &frame(&ClientMessage::Hello(hello))?, devices)?;
    if fastrand::bool() {
        answer(&stream)?;
    }
    let (mut sequence, mut step) = (0, 0);
    for _ in 0..fastrand::u32(..50) {
        send_step(&mut stream, &mut sequence, step)?;
        step = fastrand::choice([step + 1, 0, u64::MAX]).unwrap_or(0);
    }
    Ok(())
}

pub(super) fn plans(target: &Target) -> io::Result<()> {
    let (_session, job) = target.begin_own()?;
    let control = target.connect()?;
    control.set_read_timeout(Some(Duration::from_secs(10)))?;
    for instructions in [MOST_INSTRUCTIONS, 1000, 2 * MOST_INSTRUCTIONS, 1] {
        let table =
            ClockTable::from(&TestPlan::new(1, instructions, |_, at| 900 + 15 * (at as u32 % 40)));
        let load = Request::PlanLoad { job: job.clone(), label: "p".repeat(64), table };
        request(&control, load)?;
        let target = SwapTarget::Loaded;
        request(
            &control,
            Request::PlanSwap { job: job.clone(), target, at_step: None, after: None, wait: false },
        )?;
        request(&control, Request::PlanRead(job.clone()))?;
    }
    Ok(())
}

pub(super) fn measure(target: &Target) -> io::Result<()> {
    let (mut session, job) = target.begin_own()?;
    let mut control = target.connect()?;
    let run = match fastrand::u8(..4) {
        0 => TrialRun::DefaultClocks,
        1 => TrialRun::Uniform(Mhz(fastrand::u32(..3000))),
        2 => TrialRun::PowerLimits { label: "l".into(), limits_w: vec![fastrand::u32(..1000)] },
        _ => TrialRun::Uniform(Mhz(210)),
    };
    let steps = fastrand::choice([1, 5, 50_000]).unwrap_or(1);
    let length = TrialLength { settling_steps: 1, steps };
    let trial = Request::Trial { job: job.clone(), run, length, after: None };
    control.write_all(&frame(&ClientMessage::Request(trial))?)?;
    let mut sequence = 0;
    for step in 0..20 {
        send_step(&mut session, &mut sequence, step)?;
        sleep(Duration::from_millis(2));
    }
    if fastrand::bool() {
        answer(&control)?;
        request(&control, Request::TrialsEnd { job, keep: fastrand::bool() })?;
    }
    Ok(())
}

pub(super) fn administer(target: &Target) -> io::Result<()> {
    let victim = &target.victim;
    let by_name = || pfo_protocol::JobSelector { uid: None, ..victim.clone() };
    let control = target.connect()?;
    let swap = |job| Request::PlanSwap {
        job,
        target: SwapTarget::DefaultClocks,
        at_step: None,
        after: None,
        wait: false,
    };
    let run = TrialRun::Uniform(Mhz(210));
    let length = TrialLength { settling_steps: 1, steps: 10 };
    let requests = [
        Request::ClocksReset { gpu: None, all: true },
        Request::ClocksReset { gpu: Some(target.gpu()?), all: false },
        Request::Reload,
        Request::Drain { reason: "mine".into(), release_driver: true },
        Request::Undrain,
        Request::LeaseRevoke(LeaseTarget::Job(victim.clone())),
        Request::LeaseRevoke(LeaseTarget::Job(by_name())),
        Request::LeaseRevoke(LeaseTarget::Gpu(target.gpu()?)),
        Request::LeaseAllow(LeaseTarget::Job(victim.clone())),
        swap(victim.clone()),
        swap(by_name()),
        Request::PlanRead(victim.clone()),
        Request::Trial { job: victim.clone(), run, length, after: None },
        Request::TrialsEnd { job: victim.clone(), keep: false },
        Request::OnBehalf { uid: Uid(0), pid: None, administrator: true },
        Request::WatchJobs,
        Request::Tap { job: victim.clone(), counters: true },
        Request::PolicyExplain { who: None, gpu: None },
        Request::Leases,
    ];
    for asked in requests {
        request(&control, asked)?;
    }
    Ok(())
}

/// Processes that are killed in the middle of what they do.
pub(super) fn die(target: &Target) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(target.arguments()).args(["join", "plans", "measure", "pass"]);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
    sleep(Duration::from_millis(fastrand::u64(10..400)));
    child.kill()?;
    child.wait().map(drop)
}
