//! `systemctl restart` and kills of the daemon under a real systemd while a user trains.

use std::fs;

use pfo_tests::{Container, Debian, TestPlan, UNITS, wait};
use serde_json::{Value, json};

const STAGES: u32 = 4;
const MICROBATCHES: u32 = 3;

/// Every rank with a field of its status.
fn ranks(status: &Value, field: &str) -> Vec<Value> {
    let ranks = status["jobs"][0]["ranks"].as_array();
    ranks.into_iter().flatten().map(|rank| rank[field].clone()).collect()
}

fn until<T>(what: &str, attempt: impl FnMut() -> Result<T, Value>) -> T {
    wait::until(attempt).unwrap_or_else(|last| panic!("never came true: {what}; last: {last}"))
}

/// Has a user train until `systemctl stop training`, which leaves a report.
fn start_training(debian: &Container, user: &str) {
    let script = format!(
        "systemd-run --unit=training --uid={user} --property=KillMode=mixed \
         --property=StandardOutput=file:/tmp/report.json \
         pfo-sim-trainer launch --json --steps 0 --time-scale 0.5 --job job \
         --stages {STAGES} --microbatches {MICROBATCHES}"
    );
    debian.run(&script).printed();
    until("the ranks hold their leases", || {
        let status = debian.pfo_status();
        if ranks(&status, "rank").len() == STAGES as usize { Ok(()) } else { Err(status) }
    });
}

/// Waits until every rank has begun a step of the plan since the daemon of this status.
fn until_on_plan(debian: &Container) -> Value {
    until("every rank runs the plan", || {
        let status = debian.pfo_status();
        let on_plan = ranks(&status, "plan").iter().filter(|plan| **plan == 1).count();
        if on_plan == STAGES as usize { Ok(status) } else { Err(status) }
    })
}

/// Steps that a rank began after `from_ns` and in which no clock of its GPU was set.
fn steps_without_a_call(rank: &Value, gpu: &Value, from_ns: u64) -> usize {
    let calls = gpu["calls"].as_array().unwrap().iter();
    let calls: Vec<_> = calls.map(|call| call["entry_ns"].as_u64().unwrap()).collect();
    let steps = rank["steps"].as_array().unwrap().iter();
    let steps =
        steps.map(|step| (step["begin_ns"].as_u64().unwrap(), step["end_ns"].as_u64().unwrap()));
    steps
        .filter(|(begin, _)| *begin > from_ns)
        .filter(|(begin, end)| !calls.iter().any(|call| (begin..=end).contains(&call)))
        .count()
}

fn no_rank_notices_that_the_daemon_is_another_one(debian: Debian) {
    let Some(debian) = Container::boot(debian) else { return };
    debian.install_pfo("4xA40");
    debian.run("useradd --groups pfo alice").printed();
    let plan = TestPlan::distinct(STAGES, MICROBATCHES, 900);
    fs::write(debian.shared().join("plan.json"), plan.to_json()).unwrap();
    start_training(&debian, "alice");
    debian.run_as("alice", "pfoctl plan swap job /shared/plan.json --wait").printed();
    let before = until_on_plan(&debian);
    let from_ns = debian.run("pfo-sim show --json").json()["now_ns"].as_u64().unwrap();

    let restarts =
        ["systemctl restart pfod", "systemctl kill --kill-whom=main --signal=KILL pfod"].repeat(2);
    for restart in &restarts {
        let status = debian.pfo_status();
        debian.run(restart).printed();
        until("the daemon is another one", || {
            let ran = debian.run("pfoctl status --json");
            let pid = (ran.code == Some(0)).then(|| ran.json()["daemon"]["pid"].clone());
            match pid {
                Some(pid) if pid != status["daemon"]["pid"] => Ok(()),
                other => Err(other.into()),
            }
        });
        let status = until_on_plan(&debian);
        assert_eq!(ranks(&status, "session"), ranks(&before, "session"), "after {restart}");
        assert!(ranks(&status, "mismatched_steps").iter().all(|count| *count == 0), "{status}");
    }

    debian.run("systemctl stop training").printed();
    let report: Value = debian.run("cat /tmp/report.json").json();
    assert_eq!(report["failed_steps"], 0);
    for (rank, gpu) in report["ranks"].as_array().unwrap().iter().zip(debian.simulated_gpus()) {
        assert_eq!(
            (&rank["events"]["reconnects"], &rank["events"]["dropped"]),
            (&0.into(), &0.into())
        );
        let steps = steps_without_a_call(rank, &gpu, from_ns);
        assert!(steps <= restarts.len(), "{steps} steps ran at default clocks");
    }
}

fn the_unit_lets_ranks_be_woken_first_and_revocations_last(debian: Debian) {
    let Some(debian) = Container::boot(debian) else { return };
    debian.install_pfo("4xA40");
    debian.run("useradd --groups pfo alice").printed();
    start_training(&debian, "alice");
    // Earlier kernels have no shorter slices.
    let oldest = "printf '6.12\\n%s\\n' $(uname -r) | sort --version-sort --check";
    if debian.run(oldest).code == Some(0) {
        let slices = "cat /proc/$(systemctl show --property=MainPID --value pfod)/task/*/sched";
        // A real-time policy is refused to control groups by kernels with CONFIG_RT_GROUP_SCHED.
        let is_first = |line: &&str| {
            line.starts_with("se.slice") && line.ends_with(" 100000")
                || line.starts_with("policy") && line.ends_with(" 1")
        };
        let first = || debian.run(slices).printed().lines().filter(is_first).count();
        assert_eq!(first(), 0, "no clock is set without a plan");
        let plan = TestPlan::distinct(STAGES, MICROBATCHES, 900);
        fs::write(debian.shared().join("plan.json"), plan.to_json()).unwrap();
        debian.run_as("alice", "pfoctl plan swap job /shared/plan.json --wait").printed();
        until("a rank is woken first", || if first() > 0 { Ok(()) } else { Err(json!(0)) });
    }
    debian.run_as("alice", "pfoctl lease revoke job").printed();
    debian.run("systemctl restart pfod").printed();
    let listed = debian.run_as("alice", "pfoctl lease list --json").json();
    assert_eq!(listed["revoked"][0]["processes"], STAGES, "{listed}");
    debian.run("systemctl stop training").printed();
    let listed = debian.run("pfoctl lease list --json").json();
    assert_eq!((&listed["revoked"], &listed["leases"]), (&json!([]), &json!([])), "{listed}");
}

fn a_stop_leaves_nothing_locked_and_nothing_kept(debian: Debian) {
    let Some(debian) = Container::boot(debian) else { return };
    debian.install_pfo("4xA40");
    start_training(&debian, "root");
    let kept = || debian.run("systemctl show --property=NFileDescriptorStore pfod").printed();
    assert_eq!(kept(), "NFileDescriptorStore=8\n");
    debian.run(&format!("systemctl stop {UNITS}")).printed();
    assert_eq!(kept(), "NFileDescriptorStore=0\n");
    for gpu in debian.simulated_gpus() {
        assert!(gpu["locked_sm_mhz"].is_null() && gpu["locked_memory_mhz"].is_null(), "{gpu}");
    }
    assert_eq!(debian.run("systemctl is-active training").printed(), "active\n");
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_12_no_rank_notices_that_the_daemon_is_another_one() {
    no_rank_notices_that_the_daemon_is_another_one(Debian::Bookworm);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_13_no_rank_notices_that_the_daemon_is_another_one() {
    no_rank_notices_that_the_daemon_is_another_one(Debian::Trixie);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_12_the_unit_lets_ranks_be_woken_first_and_revocations_last() {
    the_unit_lets_ranks_be_woken_first_and_revocations_last(Debian::Bookworm);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_13_the_unit_lets_ranks_be_woken_first_and_revocations_last() {
    the_unit_lets_ranks_be_woken_first_and_revocations_last(Debian::Trixie);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_12_a_stop_leaves_nothing_locked_and_nothing_kept() {
    a_stop_leaves_nothing_locked_and_nothing_kept(Debian::Bookworm);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_13_a_stop_leaves_nothing_locked_and_nothing_kept() {
    a_stop_leaves_nothing_locked_and_nothing_kept(Debian::Trixie);
}
