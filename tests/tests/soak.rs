//! Random kills under load: many more than a table has cells, for an hour of a quiet machine.

use std::collections::HashSet;
use std::env;

use nix::sys::signal::Signal;
use pfo_protocol::{Pid, SweepState, SweepStatus};
use pfo_tests::{
    BootedJob, BootedNode, Debian, MICROBATCHES, Program, STAGES, TestPlan, USERS, assert_free,
};

const JOBS: [&str; 4] = ["first", "second", "third", "swept"];

/// The job that is swept all the time; the others run on plans.
const SWEPT: usize = 3;

/// How many kills, and the number that all randomness follows from.
fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

fn start(node: &BootedNode, number: usize) -> BootedJob<'_> {
    let job = BootedJob::start(node, JOBS[number], USERS[number], number * STAGES as usize);
    if number == SWEPT {
        keep_sweeping(node);
    } else {
        job.take_up(&TestPlan::distinct(STAGES, MICROBATCHES, 600 + 30 * number as u32));
    }
    job
}

/// Starts a sweep where none is under way. One that is continues by itself after every kill.
fn keep_sweeping(node: &BootedNode) {
    node.until("the job is swept", || match node.sweep(JOBS[SWEPT]) {
        Ok(SweepStatus { state: SweepState::Running | SweepState::Waiting { .. }, .. }) => Ok(()),
        other => {
            let start = format!("pfoctl profile start {} --steps 1 --stride 90", JOBS[SWEPT]);
            node.debian.run(&start);
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

#[test]
#[ignore = "takes an hour: make soak"]
fn random_kills_leave_no_lock_and_fail_no_trainer() {
    let Some(node) = BootedNode::boot(Debian::Bookworm, "16xA40") else { return };
    let (kills, seed) = (number("PFO_SOAK_KILLS", 1000), number("PFO_SOAK_SEED", 1));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut jobs: Vec<_> = (0..JOBS.len()).map(|number| Some(start(&node, number))).collect();
    let mut daemons = HashSet::new();
    for kill in 1..=kills {
        let victim = random.u32(..12);
        let number = random.usize(..JOBS.len());
        let signal = [Signal::SIGKILL, Signal::SIGABRT, Signal::SIGTERM][random.usize(..3)];
        if victim < 7 {
            let program = if victim < 4 { Program::Pfod } else { Program::PfoAgent };
            let daemon = node.main_pid(program);
            daemons.insert((program, daemon));
            node.signal(daemon, signal);
        } else if victim < 10 {
            let job = jobs[number].take().expect("every job runs");
            let ranks = node.until("the job's ranks", || job.ranks());
            if let Some(rank) = ranks.get(random.usize(..STAGES as usize)) {
                node.signal(*rank, signal);
            }
            job.clear_away();
            assert_free(&node.machine, number * STAGES as usize..(number + 1) * STAGES as usize);
            jobs[number] = Some(start(&node, number));
        } else if let Some(job) = &jobs[number] {
            let mut swap = job.begin_swap("--default-clocks --at-step 1000000000 --wait");
            let found = node.debian.run("sleep 0.1; pgrep -x pfoctl").stdout;
            found.lines().for_each(|pid| node.signal(Pid(pid.parse().unwrap()), Signal::SIGKILL));
            swap.wait().unwrap();
        }
        assert_accounted_for(&node);
        if kill % 25 == 0 {
            keep_sweeping(&node);
            eprintln!("{kill} of {kills} kills, {} daemons", daemons.len());
        }
    }
    node.debian.run(&format!("pfoctl profile stop {}", JOBS[SWEPT])).printed();
    for job in jobs.into_iter().flatten() {
        node.until("every rank has its lease", || match job.ranks()?.len() {
            found if found == STAGES as usize => Ok(()),
            found => Err(format!("{found} have")),
        });
        job.stop();
    }
    node.until("the ledger names no lock", || match node.ledger_entries() {
        0 => Ok(()),
        entries => Err(format!("{entries} entries")),
    });
    assert_free(&node.machine, 0..node.machine.gpu_count());
}
