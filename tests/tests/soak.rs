//! Random kills under load, on whole and on broken ground: many more than a table has cells.
//! `PFO_SOAK_ROUNDS` says how many, `PFO_SOAK_SEED` which ones.

use std::collections::BTreeMap;
use std::env;

use nix::sys::signal::Signal;
use pfo_protocol::{Pid, SweepState, SweepStatus};
use pfo_tests::{
    BootedJob, BootedNode, Debian, GROUNDS, MICROBATCHES, Program, STAGES, TestPlan, USERS,
    assert_free,
};

const JOBS: [&str; 4] = ["untouched", "second", "third", "swept"];

/// The job that nothing is done to.
const UNTOUCHED: usize = 0;

/// The job that is swept all the time; the others run on plans.
const SWEPT: usize = 3;

/// How many rounds, and the number that all randomness follows from.
fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

fn plan(number: usize) -> TestPlan {
    TestPlan::distinct(STAGES, MICROBATCHES, 600 + 30 * number as u32)
}

fn start(node: &BootedNode, number: usize) -> BootedJob<'_> {
    let job = BootedJob::start(node, JOBS[number], USERS[number], number * STAGES as usize);
    if number == SWEPT {
        keep_sweeping(node);
    } else {
        job.take_up(&plan(number));
    }
    job
}

/// Starts a sweep where none is under way. One that is continues by itself after every kill, unless
/// its trials were interrupted so often that it waits for its user.
fn keep_sweeping(node: &BootedNode) {
    node.until("the job is swept", || match node.sweep(JOBS[SWEPT]) {
        Ok(SweepStatus { state: SweepState::Running | SweepState::Waiting { .. }, .. }) => Ok(()),
        other => {
            let job = JOBS[SWEPT];
            node.debian.run(&format!(
                "pfoctl profile stop {job}; pfoctl profile start {job} --steps 1 --stride 90"
            ));
            Err(format!("{other:?}"))
        }
    });
}

/// Everything that is locked is a GPU of a job that runs, and is in the ledger.
fn assert_accounted_for(node: &BootedNode) {
    node.until("nothing is locked but what the ledger says", || {
        let locked =
            (0..node.machine.gpu_count()).filter(|gpu| node.machine.sm_lock(*gpu).is_some());
        match (locked.count(), node.ledger_entries()) {
            (locked, entries) if locked <= entries => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

fn kill_a_daemon(node: &BootedNode, random: &mut fastrand::Rng) {
    let program = if random.u32(..7) < 4 { Program::Pfod } else { Program::PfoAgent };
    let daemon = node.main_pid(program);
    node.signal(daemon, any_signal(random));
}

fn any_signal(random: &mut fastrand::Rng) -> Signal {
    [Signal::SIGKILL, Signal::SIGABRT, Signal::SIGTERM][random.usize(..3)]
}

/// Kills a rank, half of the time with a driver that refuses to reset a GPU of it, once. Its job is
/// started again.
fn kill_a_rank<'n>(
    node: &'n BootedNode,
    job: BootedJob<'n>,
    number: usize,
    random: &mut fastrand::Rng,
) -> BootedJob<'n> {
    let ranks = node.until("the job's ranks", || job.ranks());
    if random.bool() {
        let gpu = random.usize(job.gpus());
        node.machine.fault_once("nvmlDeviceResetGpuLockedClocks", "unknown", Some(gpu));
    }
    if let Some(rank) = ranks.get(random.usize(..STAGES as usize)) {
        node.signal(*rank, any_signal(random));
    }
    let gpus = job.gpus();
    job.clear_away();
    assert_free(&node.machine, gpus);
    node.machine.clear_faults();
    start(node, number)
}

/// Kills somebody who waits for a swap that is far away.
fn kill_pfoctl(node: &BootedNode, job: &BootedJob<'_>) {
    let mut swap = job.begin_swap("--default-clocks --at-step 1000000000 --wait");
    let found = node.debian.run("sleep 0.1; pgrep -x pfoctl").stdout;
    found.lines().for_each(|pid| node.signal(Pid(pid.parse().unwrap()), Signal::SIGKILL));
    swap.wait().unwrap();
}

#[test]
#[ignore = "takes hours: make soak"]
fn random_kills_on_any_ground_leave_no_lock_and_fail_no_trainer() {
    let Some(node) = BootedNode::boot(Debian::Bookworm, "16xA40") else { return };
    let (rounds, seed) = (number("PFO_SOAK_ROUNDS", 2000), number("PFO_SOAK_SEED", 1));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut jobs: Vec<_> = (0..JOBS.len()).map(|number| start(&node, number)).collect();
    let mut seen = BTreeMap::<_, u32>::new();
    for round in 1..=rounds {
        let number = random.usize(UNTOUCHED + 1..JOBS.len());
        let ground = GROUNDS[random.usize(..GROUNDS.len())];
        let what = match random.u32(..16) {
            0..6 => {
                kill_a_daemon(&node, &mut random);
                "a daemon died".to_owned()
            }
            6..8 => {
                let job = jobs.remove(number);
                jobs.insert(number, kill_a_rank(&node, job, number, &mut random));
                "a rank died".to_owned()
            }
            8 => {
                kill_pfoctl(&node, &jobs[number]);
                "pfoctl died".to_owned()
            }
            _ => {
                ground.strike(&node, &jobs[number], &mut random);
                jobs.iter().for_each(BootedJob::until_leased);
                jobs[UNTOUCHED].until_on(&plan(UNTOUCHED));
                format!("{ground:?}")
            }
        };
        assert_accounted_for(&node);
        *seen.entry(what).or_default() += 1;
        if round % 25 == 0 {
            keep_sweeping(&node);
            eprintln!("seed {seed}: {round} of {rounds} rounds: {seen:?}");
        }
    }
    node.debian.run(&format!("pfoctl profile stop {}", JOBS[SWEPT])).printed();
    for job in jobs {
        job.until_leased();
        job.stop();
    }
    node.until("the ledger names no lock", || match node.ledger_entries() {
        0 => Ok(()),
        entries => Err(format!("{entries} entries")),
    });
    assert_free(&node.machine, 0..node.machine.gpu_count());
}
