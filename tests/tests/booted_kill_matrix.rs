//! Trainers, both daemons and `pfoctl` die in every way at every moment, and everything that can break
//! breaks, under a real systemd: no clock stays locked, and no other job notices.
//!
//! A jump of the wall clock is not among it: a container has this machine's. The daemons measure time by
//! `CLOCK_MONOTONIC`, which does not jump, and only show the other.

use std::fs;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use pfo_protocol::{ClientMessage, Event, GpuName, Mark, Pid, Request, SwapTarget};
use pfo_tests::{
    BootedJob, BootedNode, Debian, GROUNDS, MICROBATCHES, PROGRAMS, Program, STAGES, TestPlan,
    USERS, assert_free, control, hello, wait,
};

const SET: &str = "nvmlDeviceSetGpuLockedClocks";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Trainer,
    Daemon(Program),
    Pfoctl,
}

const VICTIMS: [Victim; 4] = [
    Victim::Trainer,
    Victim::Daemon(Program::Pfod),
    Victim::Daemon(Program::PfoAgent),
    Victim::Pfoctl,
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    Signal(Signal),
    /// The connection is closed in one direction only.
    HalfClose,
}

/// When it comes, as the job's calls of the driver go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// Leases are held, nothing is locked yet.
    Before,
    /// A call has not returned.
    During,
    /// Clocks are locked.
    After,
}

const BLOWS: [Blow; 5] = [
    Blow::Signal(Signal::SIGTERM),
    Blow::Signal(Signal::SIGKILL),
    Blow::Signal(Signal::SIGSTOP),
    Blow::Signal(Signal::SIGSEGV),
    Blow::HalfClose,
];

const MOMENTS: [Moment; 3] = [Moment::Before, Moment::During, Moment::After];

/// The job beside the one that dies.
const OTHER: &str = "other";
const GPUS: &str = "8xA40";

/// How long a call takes that something happens in.
const SLOW: &str = "latency:500";

/// A step that no job here comes to.
const FAR: u64 = 1_000_000_000;

fn plan() -> TestPlan {
    TestPlan::distinct(STAGES, MICROBATCHES, 600)
}

/// A name that no job had before: a job that comes back gets its plan back.
fn new_name() -> String {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    format!("job-{}", JOBS.fetch_add(1, Ordering::Relaxed))
}

fn start(node: &BootedNode) -> BootedJob<'_> {
    BootedJob::start(node, &new_name(), USERS[0], 0)
}

/// Waits until a call that locks a clock of the job has not returned.
fn until_calling(node: &BootedNode) {
    node.until("a call of the driver", || {
        let calls = node.machine.calls(0);
        match calls.last() {
            Some(call) if call.returned.is_none() => Ok(()),
            last => Err(format!("{last:?}")),
        }
    });
}

/// Brings a job to a moment.
fn bring_to(node: &BootedNode, job: &BootedJob<'_>, moment: Moment) {
    if moment == Moment::Before {
        return;
    }
    job.take_up(&plan());
    job.until_on(&plan());
    if moment == Moment::During {
        node.machine.fault(SET, SLOW, Some(0));
        until_calling(node);
    }
}

/// Kills one rank, or stops it for good.
fn strike_trainer(node: &BootedNode, signal: Signal, moment: Moment) {
    let job = start(node);
    bring_to(node, &job, moment);
    let rank = job.ranks().unwrap()[0];
    node.signal(rank, signal);
    node.until("it has no lease, or no clock if its process lives", || {
        let is_over = match signal == Signal::SIGSTOP {
            true => node.machine.sm_lock(0).is_none(),
            false => !job.ranks()?.contains(&rank),
        };
        if is_over { Ok(()) } else { Err("it has".into()) }
    });
    node.machine.clear_faults();
    job.clear_away();
}

/// A rank whose process writes no more, and listens until pfod hangs up.
fn half_close_trainer(node: &BootedNode, moment: Moment) {
    let (name, shared) = (new_name(), node.debian.shared());
    let uuid = GpuName::Uuid(node.machine.uuid(0));
    // The swap is for the first step that nobody can have begun.
    let begin = Event { sequence: 0, client_ns: 0, mark: Mark::StepBegin(1) };
    let (hello, begin) =
        (ClientMessage::Hello(hello(&name, 0, STAGES, uuid)), ClientMessage::Event(begin));
    fs::write(shared.join("hello"), hello.to_frame().unwrap()).unwrap();
    fs::write(shared.join("begin"), begin.to_frame().unwrap()).unwrap();
    let go = shared.join("go");
    let _ = fs::remove_file(&go);
    let script = format!(
        "(cat /shared/hello; until [ -e /shared/go ]; do sleep 0.05; done; cat /shared/begin) |
        PFO_DEVICES=/shared/gpus.state.dev \
        {PROGRAMS}/pfo-test-client /run/pfo/pfod.sock --half-close 300 > /dev/null"
    );
    let mut client = node.debian.command(USERS[0], &script).spawn().unwrap();
    node.until("its session", || {
        let jobs = node.status()?.jobs;
        if jobs.iter().any(|job| job.job.as_str() == name) { Ok(()) } else { Err("none".into()) }
    });
    if moment != Moment::Before {
        fs::write(shared.join("plan.json"), plan().to_json()).unwrap();
        node.debian
            .run_as(
                USERS[0],
                &format!("pfoctl plan swap {name} /shared/plan.json --this-node-only"),
            )
            .printed();
    }
    if moment == Moment::During {
        node.machine.fault(SET, SLOW, Some(0));
    }
    fs::write(go, "").unwrap();
    match moment {
        Moment::Before => {}
        Moment::During => until_calling(node),
        Moment::After => node.until("a lock", || match node.machine.sm_lock(0) {
            Some(_) => Ok(()),
            None => Err("none".into()),
        }),
    }
    assert!(client.wait().unwrap().success());
    node.machine.clear_faults();
}

/// A daemon dies and comes back; the job never notices.
fn strike_daemon(node: &BootedNode, program: Program, signal: Signal, moment: Moment) {
    let job = start(node);
    bring_to(node, &job, moment);
    let sessions = job.sessions().unwrap();
    strike(node, program, signal);
    job.until_leased();
    node.machine.clear_faults();
    if moment != Moment::Before {
        job.until_on(&plan());
    }
    if program == Program::PfoAgent {
        assert_eq!(job.sessions().unwrap(), sessions, "pfod noticed the end of the agent");
    }
    job.stop();
}

/// Sends a daemon a signal, and waits until it is back.
fn strike(node: &BootedNode, program: Program, signal: Signal) {
    let former = node.main_pid(program);
    node.signal(former, signal);
    // After SIGTERM, which systemd takes for a wish, the next connection starts it again.
    node.until_back(program, former);
}

/// Waits until the sweep of a job has measured a number of clocks.
fn until_measured(node: &BootedNode, job: &BootedJob<'_>, clocks: u32) {
    let measured = || match node.sweep(job.name())? {
        sweep if sweep.measured >= clocks => Ok(()),
        sweep => Err(format!("{sweep:?}")),
    };
    // The agent measures a clock again where its steps scatter, for much longer.
    wait::until_within(Duration::from_secs(180), measured).unwrap();
}

/// A daemon dies in the middle of a sweep, which continues by itself.
fn strike_in_sweep(node: &BootedNode, program: Program, signal: Signal) {
    let job = start(node);
    node.debian.run(&format!("pfoctl profile start {} --steps 1", job.name())).printed();
    until_measured(node, &job, 1);
    strike(node, program, signal);
    let measured = node.until("its sweep", || Ok(node.sweep(job.name())?.measured));
    until_measured(node, &job, measured + 2);
    node.debian.run(&format!("pfoctl profile stop {}", job.name())).printed();
    let ranks = job.status().unwrap().ranks;
    assert!(ranks.iter().all(|rank| rank.mismatched_steps == 0), "{ranks:?}");
    job.stop();
}

/// Somebody who waits for a swap that is far away dies, or closes its side of the connection; the
/// job continues as before.
fn strike_pfoctl(node: &BootedNode, blow: Blow, moment: Moment) {
    let job = start(node);
    bring_to(node, &job, moment);
    let (mut waiting, program) = match blow {
        Blow::Signal(_) => {
            (job.begin_swap(&format!("--default-clocks --at-step {FAR} --wait")), "pfoctl")
        }
        Blow::HalfClose => (begin_swap_and_half_close(node, &job), "pfo-test-client"),
    };
    node.until("somebody waits for the swap", || match job.status()?.swap_at_step {
        Some(_) => Ok(()),
        None => Err("nobody does".into()),
    });
    let pid = node.debian.run(&format!("pgrep -x {program}")).printed();
    let pid = Pid(pid.trim().parse().unwrap());
    if let Blow::Signal(signal) = blow {
        node.signal(pid, signal);
    }
    node.until("the daemon serves", || node.status().map(drop));
    node.machine.clear_faults();
    if moment != Moment::Before {
        job.until_on(&plan());
    }
    node.signal(pid, Signal::SIGKILL);
    waiting.wait().unwrap();
    job.stop();
}

fn begin_swap_and_half_close(node: &BootedNode, job: &BootedJob<'_>) -> Child {
    let (target, at_step) = (SwapTarget::DefaultClocks, Some(FAR));
    let job = control::job(job.name());
    let request = Request::PlanSwap { job, target, at_step, after: None, wait: true };
    let frame = ClientMessage::Request(request).to_frame().unwrap();
    fs::write(node.debian.shared().join("request"), frame).unwrap();
    let client = format!(
        "exec {PROGRAMS}/pfo-test-client /run/pfo/pfod.sock --half-close 0 \
        < /shared/request > /dev/null"
    );
    node.debian.command(USERS[0], &client).spawn().unwrap()
}

/// What breaks around a job that runs on its plan.
#[derive(Clone, Copy, Debug)]
enum Breakage {
    GpuLost,
    DriverHangs,
    LedgerFull,
    DescriptorsUsedUp,
}

const BREAKAGES: [Breakage; 4] =
    [Breakage::GpuLost, Breakage::DriverHangs, Breakage::LedgerFull, Breakage::DescriptorsUsedUp];

fn shatter(node: &BootedNode, breakage: Breakage) {
    let job = start(node);
    match breakage {
        Breakage::GpuLost => {
            bring_to(node, &job, Moment::After);
            node.machine.fault("*", "gpu-is-lost", Some(0));
            node.until("its session has ended", || match job.ranks()?.len() {
                found if found < STAGES as usize => Ok(()),
                _ => Err("it has not".into()),
            });
            node.machine.clear_faults();
        }
        Breakage::DriverHangs => {
            bring_to(node, &job, Moment::After);
            node.machine.fault(SET, "hang", Some(0));
            until_calling(node);
            // Who hangs with the driver cannot end its session, but costs nobody else anything.
            node.until("the daemon serves", || node.status().map(drop));
            node.machine.clear_faults();
            job.until_on(&plan());
        }
        Breakage::LedgerFull => {
            let filler = node.fill_ledger_disk();
            assert_eq!(job.swap(&plan()).code, Some(7), "no clock is locked without a record");
            node.until("status says why", || {
                let ranks = job.status()?.ranks;
                let mut problems = ranks.iter().filter_map(|rank| rank.problem.as_ref());
                if problems.any(|problem| problem.contains("space")) {
                    return Ok(());
                }
                Err(format!("{ranks:?}"))
            });
            assert_free_of_locks(node, &job);
            drop(filler);
            job.until_on(&plan());
        }
        Breakage::DescriptorsUsedUp => {
            bring_to(node, &job, Moment::After);
            // Connections of an administrator, which no limit of the configuration holds back.
            let crowd =
                format!("{PROGRAMS}/pfo-test-client /run/pfo/admin.sock --beside 300 > /dev/null");
            let mut crowd = node.debian.command("root", &crowd);
            let mut crowd = crowd.stdin(Stdio::piped()).spawn().unwrap();
            node.until("the daemon cannot accept more", || {
                let journal = node.debian.journal("--unit=pfod.service");
                let says_so = journal.contains("cannot accept connections: Too many open files");
                if says_so { Ok(()) } else { Err("it can".into()) }
            });
            job.until_on(&plan());
            drop(crowd.stdin.take());
            crowd.wait().unwrap();
            node.until("the daemon serves", || node.status().map(drop));
        }
    }
    job.stop();
}

/// Without a place in the ledger nothing may be locked.
fn assert_free_of_locks(node: &BootedNode, job: &BootedJob<'_>) {
    let locks: Vec<_> = job.gpus().filter_map(|gpu| node.machine.sm_lock(gpu)).collect();
    assert!(locks.is_empty(), "{locks:?}");
}

/// Checks that nothing of the job is left, and nothing of the other one was touched.
fn assert_only_other_is_left(node: &BootedNode, other: &BootedJob<'_>, others: &TestPlan) {
    node.until("the ledger is the other job's", || match node.ledger_entries() {
        entries if entries == STAGES as usize => Ok(()),
        entries => Err(format!("{entries} entries")),
    });
    assert_free(&node.machine, 0..STAGES as usize);
    other.until_on(others);
    let ranks = other.status().unwrap().ranks;
    assert!(ranks.iter().all(|rank| rank.mismatched_steps == 0), "{ranks:?}");
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn no_breakage_leaves_a_clock_locked_or_disturbs_another_job() {
    let Some(node) = BootedNode::boot(Debian::Trixie, GPUS) else { return };
    let other = BootedJob::start(&node, OTHER, USERS[1], STAGES as usize);
    let others = TestPlan::distinct(STAGES, MICROBATCHES, 1005);
    other.take_up(&others);
    for breakage in BREAKAGES {
        eprintln!("{breakage:?}");
        shatter(&node, breakage);
        assert_only_other_is_left(&node, &other, &others);
    }
    other.stop();
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn no_death_on_any_ground_leaves_a_clock_locked_or_a_daemon_failed() {
    let Some(node) = BootedNode::boot(Debian::Trixie, GPUS) else { return };
    let other = BootedJob::start(&node, OTHER, USERS[1], STAGES as usize);
    let others = TestPlan::distinct(STAGES, MICROBATCHES, 1005);
    other.take_up(&others);
    let job = start(&node);
    job.take_up(&plan());
    for ground in GROUNDS {
        eprintln!("{ground:?}");
        ground.strike(&node, &job, &mut fastrand::Rng::with_seed(1));
        for (job, plan) in [(&job, &plan()), (&other, &others)] {
            job.until_leased();
            job.until_on(plan);
        }
    }
    job.stop();
    assert_only_other_is_left(&node, &other, &others);
    other.stop();
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn no_death_at_any_moment_leaves_a_clock_locked() {
    let Some(node) = BootedNode::boot(Debian::Bookworm, GPUS) else { return };
    let other = BootedJob::start(&node, OTHER, USERS[1], STAGES as usize);
    let others = TestPlan::distinct(STAGES, MICROBATCHES, 1005);
    other.take_up(&others);
    for victim in VICTIMS {
        for blow in BLOWS {
            for moment in MOMENTS {
                eprintln!("{victim:?} {blow:?} {moment:?}");
                match (victim, blow) {
                    (Victim::Trainer, Blow::Signal(signal)) => {
                        strike_trainer(&node, signal, moment);
                    }
                    (Victim::Trainer, Blow::HalfClose) => half_close_trainer(&node, moment),
                    (Victim::Daemon(program), Blow::Signal(signal)) => {
                        strike_daemon(&node, program, signal, moment);
                    }
                    // Its sockets are systemd's, which does not let it close one of them by half.
                    (Victim::Daemon(_), Blow::HalfClose) => continue,
                    (Victim::Pfoctl, blow) => strike_pfoctl(&node, blow, moment),
                }
                assert_only_other_is_left(&node, &other, &others);
            }
        }
    }
    other.stop();
    assert_eq!(node.ledger_entries(), 0);
    assert_free(&node.machine, 0..node.machine.gpu_count());
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn a_sweep_continues_after_the_death_of_pfod() {
    a_sweep_continues_after_the_death_of(Program::Pfod);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn a_sweep_continues_after_the_death_of_the_agent() {
    a_sweep_continues_after_the_death_of(Program::PfoAgent);
}

fn a_sweep_continues_after_the_death_of(program: Program) {
    let Some(node) = BootedNode::boot(Debian::Bookworm, GPUS) else { return };
    let other = BootedJob::start(&node, OTHER, USERS[1], STAGES as usize);
    let others = TestPlan::distinct(STAGES, MICROBATCHES, 1005);
    other.take_up(&others);
    for blow in BLOWS {
        let Blow::Signal(signal) = blow else { continue };
        eprintln!("{program:?} {signal:?}");
        strike_in_sweep(&node, program, signal);
        assert_only_other_is_left(&node, &other, &others);
    }
    other.stop();
}
