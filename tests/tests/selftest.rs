//! `pfoctl selftest` on simulated GPUs: what it finds, and that it leaves nothing behind.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvidia_ml::machine::MachinePlan;
use pfo_tests::{Identity, MachineSetup, Node, Ran, Rank, Setup, assert_printed, honest, programs};

const LOCKS: [&str; 6] = [
    "lock-accepted",
    "set-call",
    "clock-follows",
    "restored-after-goodbye",
    "restored-after-cut",
    "power-limit-unchanged",
];

fn node(gpus: &'static str, ideal: bool) -> Node {
    let made = if ideal { |plan| plan } else { honest };
    let machine = MachineSetup { gpus, made, ..MachineSetup::default() };
    Node::start_with(&Setup { machine, ..Setup::without_agent() })
}

/// A node on which locks take long enough to be interrupted.
fn slow_node() -> Node {
    let machine = MachineSetup { gpus: "1xA40", settle_ms: 1000, ..MachineSetup::default() };
    Node::start_with(&Setup { machine, ..Setup::without_agent() })
}

fn begin(node: &Node, arguments: &[&str]) -> Child {
    let mut command = Command::new(programs::program_for_all("pfoctl", node.directory()));
    command
        .args(["selftest", "--nvml"])
        .arg(node.machine.library())
        .args(arguments)
        .env("PFO_SIM_STATE", node.machine.state())
        .env("PFO_DEVICES", node.machine.devices())
        .env("PFO_SOCKET", node.socket())
        .env("PFO_ADMIN_SOCKET", node.admin_socket())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Identity::own().assume(&mut command).spawn().unwrap()
}

fn run(node: &Node, arguments: &[&str]) -> Ran {
    begin(node, arguments).wait_with_output().unwrap().into()
}

/// Result and what was seen, by GPU and check.
type Found = BTreeMap<(u64, String), (String, String)>;

fn found(ran: &Ran) -> Found {
    let mut found = Found::new();
    let report = ran.json();
    for gpu in report["gpus"].as_array().unwrap() {
        for check in gpu["checks"].as_array().unwrap() {
            let text = |key: &str| check[key].as_str().unwrap().to_owned();
            let key = (gpu["gpu"].as_u64().unwrap(), text("check"));
            assert!(!text("promise").is_empty(), "{check}");
            let twice = found.insert(key, (text("result"), text("seen")));
            assert!(twice.is_none(), "{check} is there twice: {report}");
        }
    }
    found
}

fn of<'f>(found: &'f Found, gpu: u64, check: &str) -> (&'f str, &'f str) {
    let (result, seen) =
        found.get(&(gpu, check.to_owned())).unwrap_or_else(|| panic!("{gpu} {check}: {found:?}"));
    (result, seen)
}

fn assert_nothing_is_left(node: &Node) {
    node.until_is("open sessions", &0, || node.status().daemon.sessions);
    node.until_is("entries of the ledger", &0, || node.ledger_entries());
    for gpu in 0..node.machine.gpu_count() {
        node.until_is("a lock", &None, || node.machine.sm_lock(gpu));
        node.until_is("a memory lock", &None, || node.machine.memory_lock(gpu));
        assert_eq!(node.machine.power_limit_w(gpu), node.machine.default_power_limit_w(gpu));
    }
}

#[test]
fn every_promise_holds_on_ideal_gpus_and_the_report_names_nobody() {
    let node = node("1xA40,1xA100", true);
    let file = node.directory().join("report.md");
    let ran = run(&node, &["--set", "--json", "-o", file.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let all = found(&ran);
    assert_eq!(all.len(), 2 * (10 + LOCKS.len()), "{all:?}");
    for (check, (result, seen)) in &all {
        assert_eq!(result, "pass", "{check:?}: {seen}");
    }
    for gpu in 0..2 {
        let locked = node.machine.clocks_set(gpu);
        assert!(locked.len() >= 4, "three clocks and one: {locked:?}");
        let listed = of(&all, gpu as u64, "lock-accepted").1.to_owned();
        assert!(listed.split(" MHz").next().unwrap().split(", ").count() == 3, "{listed}");
    }
    assert_nothing_is_left(&node);
    let report = fs::read_to_string(file).unwrap();
    assert!(report.contains("| NVIDIA A40 | 580.95.05 | "), "{report}");
    for text in [&report, &ran.stdout] {
        for gpu in 0..2 {
            assert!(!text.contains(node.machine.uuid(gpu).as_str()), "{text}");
        }
        for name in [node.directory().to_str().unwrap(), "pfo-selftest", "GPU-", "00000000:"] {
            assert!(!text.contains(name), "{name}: {text}");
        }
    }
}

#[test]
fn nothing_fails_on_gpus_that_are_as_real_ones() {
    let machine = MachineSetup {
        gpus: "1xA100,1xH100,1xV100",
        set_latency_ms: 12,
        settle_ms: 5,
        made: |plan| MachinePlan { ideal: false, ..plan },
    };
    let node = Node::start_with(&Setup { machine, ..Setup::without_agent() });
    let ran = run(&node, &["--set", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let all = found(&ran);
    assert_eq!(all.len(), 3 * (10 + LOCKS.len()), "{all:?}");
    for ((gpu, check), (result, seen)) in &all {
        assert!(result == "pass" || !LOCKS.contains(&check.as_str()), "{gpu} {check}: {seen}");
        if check == "supported-clocks" {
            assert_eq!(result, "pass", "{gpu}: {seen}");
            assert_eq!(seen.ends_with("as pfod lists them"), *gpu == 2, "{gpu}: {seen}");
        }
    }
    assert_nothing_is_left(&node);
}

#[test]
fn without_set_nothing_is_locked_and_the_table_is_for_people() {
    let node = node("1xA40", true);
    let ran = run(&node, &[]);
    let calls = node.machine.calls(0);
    assert!(calls.is_empty(), "{calls:?}");
    let printed = ran.printed();
    for said in ["GPU 0: NVIDIA A40\n", "Promise", "energy is counted", "pass"] {
        assert!(printed.contains(said), "{said}: {printed}");
    }
    assert!(!printed.contains("lock is accepted"), "{printed}");
}

#[test]
fn without_pfod_the_reads_are_done_and_the_rest_is_said_not_to_be_checked() {
    let mut node = node("1xA40", true);
    node.kill_daemon();
    let ran = run(&node, &["--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(of(&found(&ran), 0, "energy-counter").0, "pass");
    assert_eq!(
        of(&found(&ran), 0, "pfod-agrees"),
        ("unknown", "not checked: pfod does not answer")
    );
    let ran = run(&node, &["--json", "--set"]);
    assert_eq!(ran.code, Some(3), "what was asked for was not done: {ran:?}");
    let seen = "not checked: pfod does not answer";
    assert_eq!(of(&found(&ran), 0, "lock-accepted"), ("unknown", seen));
}

#[test]
fn without_a_driver_the_report_says_so() {
    let node = node("1xA40", true);
    fs::remove_file(node.machine.library()).unwrap();
    let ran = run(&node, &["--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.json()["checks"][0]["result"], "fail", "{ran:?}");
}

#[test]
fn a_gpu_without_an_energy_counter_or_throttle_counters_is_not_known_to_keep_those_promises() {
    let node = node("1xA40", true);
    node.machine.fault("nvmlDeviceGetTotalEnergyConsumption", "not-supported", Some(0));
    node.machine.fault("nvmlDeviceGetFieldValues", "not-supported", Some(0));
    let ran = run(&node, &["--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let all = found(&ran);
    for check in ["energy-counter", "energy-and-power", "throttle-counters"] {
        assert_eq!(of(&all, 0, check).0, "unknown", "{all:?}");
    }
}

#[test]
fn a_lock_that_the_driver_refuses_fails() {
    let node = node("1xA40", true);
    node.machine.fault("nvmlDeviceSetGpuLockedClocks", "no-permission", Some(0));
    let ran = run(&node, &["--json", "--set"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(of(&found(&ran), 0, "lock-accepted").0, "fail", "{ran:?}");
    assert!(!ran.stdout.contains(node.machine.uuid(0).as_str()), "{ran:?}");
    node.machine.clear_faults();
    assert_nothing_is_left(&node);
}

#[test]
fn a_lock_that_the_driver_does_not_end_fails() {
    let node = node("1xA40", true);
    node.machine.fault("nvmlDeviceResetGpuLockedClocks", "unknown", Some(0));
    let ran = run(&node, &["--json", "--set"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let all = found(&ran);
    assert_eq!(of(&all, 0, "clock-follows").0, "pass", "{all:?}");
    assert_eq!(of(&all, 0, "restored-after-goodbye").0, "fail", "{all:?}");
    assert!(!ran.stdout.contains(node.machine.uuid(0).as_str()), "{ran:?}");
    node.machine.clear_faults();
    assert_nothing_is_left(&node);
}

#[test]
fn a_clock_that_does_not_follow_is_no_pass() {
    // Longer than a clock is waited for.
    let slow = MachineSetup { gpus: "1xA40", settle_ms: 10_000, ..MachineSetup::default() };
    let node = Node::start_with(&Setup { machine: slow, ..Setup::without_agent() });
    let ran = run(&node, &["--json", "--set"]);
    let all = found(&ran);
    assert_eq!(of(&all, 0, "lock-accepted").0, "pass", "{all:?}");
    let (result, seen) = of(&all, 0, "clock-follows");
    assert_eq!(result, "unknown", "{seen}");
    assert_eq!(of(&all, 0, "restored-after-goodbye").0, "unknown", "{all:?}");
    assert_nothing_is_left(&node);
}

#[test]
fn a_gpu_that_somebody_uses_is_skipped_and_named() {
    let node = node("3xA40", true);
    let rank = Rank::open(&node, "training", 0, 1, 2);
    node.until_is("sessions", &1, || node.status().daemon.sessions);
    let _work = node.machine.compute(1);
    let ran = run(&node, &["--json", "--set"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let all = found(&ran);
    assert_eq!(of(&all, 0, "lock-accepted"), ("unknown", "not checked: a job leases it"));
    assert_eq!(of(&all, 1, "lock-accepted"), ("unknown", "not checked: something computes on it"));
    assert_eq!(of(&all, 2, "restored-after-cut").0, "pass");
    for gpu in 0..2 {
        let calls = node.machine.calls(gpu);
        assert!(calls.is_empty(), "GPU {gpu}: {calls:?}");
    }
    assert_printed!(ran.stderr);
    assert!(!ran.stdout.contains("training"), "{ran:?}");
    // One that is named is locked while something computes on it, but never one that is leased.
    let ran = run(&node, &["--json", "--set", "--gpu", "0", "--gpu", "1"]);
    let all = found(&ran);
    assert_eq!(of(&all, 0, "lock-accepted"), ("unknown", "not checked: a job leases it"));
    assert_eq!(of(&all, 1, "restored-after-cut").0, "pass", "{all:?}");
    assert!(all.keys().all(|(gpu, _)| *gpu < 2), "{all:?}");
    drop(rank);
    assert_nothing_is_left(&node);
}

#[test]
fn a_gpu_that_mig_splits_is_never_locked() {
    let node = node("1xA100", true);
    node.machine.gpu(0).set_mig(true).unwrap();
    let ran = run(&node, &["--json", "--set", "--gpu", "0"]);
    assert_eq!(of(&found(&ran), 0, "lock-accepted"), ("unknown", "not checked: MIG splits it"));
    assert!(node.machine.calls(0).is_empty());
}

#[test]
fn a_gpu_that_hangs_is_reported_and_the_others_are_checked() {
    let node = node("2xA40", true);
    node.machine.fault("nvmlDeviceGetClockInfo", "hang", Some(0));
    let ran = run(&node, &["--json", "--set"]);
    node.machine.clear_faults();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let all = found(&ran);
    assert_eq!(of(&all, 0, "answers"), ("fail", "no answer within 10 s"));
    assert_eq!(of(&all, 0, "names").0, "pass", "what was found before stays: {all:?}");
    assert_eq!(of(&all, 1, "answers").0, "pass");
    assert_eq!(of(&all, 1, "restored-after-goodbye").0, "pass", "{all:?}");
    assert_nothing_is_left(&node);
}

#[test]
fn a_gpu_that_does_not_even_say_its_name_keeps_its_index_and_so_do_the_others() {
    let node = node("2xA40", true);
    node.machine.fault("nvmlDeviceGetName", "gpu-is-lost", Some(0));
    for (named, code) in [("0", 1), ("1", 0)] {
        let ran = run(&node, &["--json", "--gpu", named]);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(found(&ran).keys().all(|(gpu, _)| gpu.to_string() == named), "{ran:?}");
    }
    let ran = run(&node, &["--json", "--gpu", node.machine.uuid(1).as_str()]);
    assert!(found(&ran).keys().all(|(gpu, _)| *gpu == 1), "{ran:?}");
    let ran = run(&node, &["--gpu", "2"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
}

#[test]
fn a_pfod_that_dies_in_the_middle_is_reported_and_its_successor_restores() {
    let mut node = slow_node();
    let child = begin(&node, &["--json", "--set"]);
    node.until_so("a lock", || node.machine.sm_lock(0).is_some());
    node.kill_daemon();
    let ran: Ran = child.wait_with_output().unwrap().into();
    let all = found(&ran);
    let unchecked = "not checked: the connection to pfod failed";
    assert!(all.values().any(|(_, seen)| seen == unchecked), "{ran:?}");
    assert!(!all.contains_key(&(0, "restored-after-cut".to_owned())), "{ran:?}");
    node.start_daemon();
    assert_nothing_is_left(&node);
}

#[test]
fn whatever_ends_it_in_the_middle_nothing_stays_locked() {
    let node = slow_node();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mut child = begin(&node, &["--set"]);
        node.until_so("a lock", || node.machine.sm_lock(0).is_some());
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        assert!(!child.wait().unwrap().success());
        assert_nothing_is_left(&node);
    }
}
