//! How the daemon starts, what it starts without, and what it refuses to start with.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::Group;
use pfo_protocol::RefusalCode;
use pfo_tests::{
    Client, Daemon, FOREIGN_MHZ, Node, Ran, Rank, Setup, TestPlan, assert_printed, hello, identity,
    programs,
};

const JOB: &str = "job";

/// A rank whose GPU pfo has locked.
fn locked_rank(node: &Node) -> Rank {
    let rank = Rank::open(node, JOB, 0, 1, 2);
    node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
    rank.session.step_begin();
    node.until_is("the lock", &Some(900), || node.machine.sm_lock(0));
    rank
}

/// Runs a daemon that is not to stay; returns what it said and its exit code.
fn run_to_the_end(node: &Node, arguments: &[&str]) -> Ran {
    let before = node.log().len();
    let mut daemon = Daemon::start(node, arguments);
    let code = daemon.process.wait().code();
    let command = Some(format!("pfod {}", arguments.join(" ")).trim_end().to_owned());
    Ran { command, code, stdout: String::new(), stderr: node.log()[before..].to_owned() }
}

#[test]
fn a_configuration_that_is_right_passes_its_check_and_nothing_starts() {
    let node = Node::create(&Setup::default());
    for (program, config, found) in [
        ("pfod", node.config(), "no error, 0 rules"),
        ("pfo-agent", node.agent_config(), "no error"),
    ] {
        let mut command = Command::new(programs::program(program));
        let checked = command.arg("--check-config").arg("--config").arg(&config).output().unwrap();
        let said = [checked.stdout, checked.stderr].concat();
        let found = format!("{}: {found}\n", config.display());
        assert_eq!((checked.status.code(), said), (Some(0), found.into_bytes()));
    }
    assert!(!node.socket().exists() && !node.ledger().exists());
}

#[test]
fn a_wrong_configuration_is_refused_with_exit_code_78_and_its_line() {
    let node = Node::create(&Setup::default());
    let right = fs::read_to_string(node.config()).unwrap();
    let mut ran = Vec::new();
    for wrong in ["[limits2]\nidle = 1\n", "[driver\n", "\nlibrary = 7\n"] {
        fs::write(node.config(), format!("{wrong}\n{right}")).unwrap();
        ran.extend([&["--check-config"][..], &[]].map(|with| run_to_the_end(&node, with)));
    }
    fs::write(node.config(), right.replace("idle_limit_s = 60", "idle_limit_s = 0")).unwrap();
    let out_of_range = run_to_the_end(&node, &["--check-config"]);
    fs::remove_file(node.config()).unwrap();
    let missing = run_to_the_end(&node, &["--check-config"]);
    ran.extend([out_of_range, missing]);
    assert_printed!(ran.iter().map(Ran::to_string).collect::<Vec<_>>().join("\n"));
}

#[test]
fn only_the_groups_of_the_configuration_can_open_the_sockets() {
    let node = Node::start();
    let (trainers, administrators) = identity::group_names();
    for (socket, group) in [(node.socket(), trainers), (node.admin_socket(), administrators)] {
        let metadata = fs::metadata(&socket).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o660, "{}", socket.display());
        if let Some(group) = Group::from_name(&group).unwrap() {
            assert_eq!(metadata.gid(), group.gid.as_raw(), "{}", socket.display());
        }
    }
}

#[test]
fn a_second_daemon_on_the_same_sockets_refuses_to_start() {
    let node = Node::start();
    let rank = locked_rank(&node);
    let ledger = fs::read(node.ledger()).unwrap();
    assert_printed!(run_to_the_end(&node, &[]));
    assert_eq!(fs::read(node.ledger()).unwrap(), ledger, "it changed the ledger");
    node.machine.assert_locks_are(&[(0, 900)]);
    assert_eq!(rank.session.problem(), None);
    assert_eq!(node.status().daemon.sessions, 1);
    drop(rank);
    node.assert_only_locked(&[]);
}

#[test]
fn restore_only_leaves_alone_what_a_daemon_that_runs_has_locked() {
    let node = Node::start();
    let rank = locked_rank(&node);
    assert_printed!(run_to_the_end(&node, &["--restore-only"]));
    assert_eq!(node.ledger_entries(), 1);
    node.machine.assert_locks_are(&[(0, 900)]);
    drop(rank);
    node.assert_only_locked(&[]);
}

#[test]
fn the_socket_of_a_daemon_that_died_is_replaced() {
    let mut node = Node::start();
    node.kill_daemon();
    assert!(node.socket().exists() && node.admin_socket().exists());
    node.start_daemon();
    let _rank = locked_rank(&node);
}

#[test]
fn a_file_that_is_no_socket_is_not_replaced() {
    let node = Node::create(&Setup::default());
    fs::write(node.socket(), "precious").unwrap();
    assert_printed!(run_to_the_end(&node, &[]));
    assert_eq!(fs::read_to_string(node.socket()).unwrap(), "precious");
}

#[test]
fn a_driver_that_comes_after_the_daemon_is_picked_up() {
    let mut node = Node::without_driver(&Setup::default());
    node.start_daemon();
    let status = node.status();
    assert_eq!((status.daemon.driver, status.gpus.len()), (None, 0));
    assert_printed!(status.daemon.driver_problem.unwrap());
    let gpu = pfo_protocol::GpuName::Uuid(node.machine.uuid(0));
    let refusal = Client::connect(&node.socket()).open(hello(JOB, 0, 1, gpu)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::DriverUnavailable);
    node.machine.install_library();
    node.until_so("the driver is there", || node.status().daemon.driver.is_some());
    assert_eq!(node.status().gpus.len(), 4);
    drop(locked_rank(&node));
    node.assert_only_locked(&[]);
}

#[test]
fn a_driver_that_tells_its_version_late_is_not_read_by_the_numbers_of_an_older_one() {
    let mut node = Node::create(&Setup::without_agent());
    node.machine.fault_once("nvmlSystemGetDriverVersion", "unknown", None);
    node.start_daemon();
    node.until_is("the driver", &Some("580.95.05".into()), || node.status().daemon.driver);
    let refused = "driver 580.95.05 did not tell its version at first";
    assert!(node.log().contains(refused), "{}", node.log());
}

#[test]
fn locks_of_a_predecessor_are_undone_once_the_driver_is_there() {
    let mut node = Node::start();
    node.lock_by_another_tool(2);
    let rank = locked_rank(&node);
    node.kill_daemon();
    drop(rank);
    fs::remove_file(node.machine.library()).unwrap();
    node.start_daemon();
    assert_eq!(node.ledger_entries(), 1);
    assert_eq!(node.machine.sm_lock(0), Some(900));
    node.machine.install_library();
    node.assert_only_locked(&[(2, FOREIGN_MHZ)]);
}

#[test]
fn restore_only_without_a_driver_fails_and_says_what_is_still_locked() {
    let mut node = Node::start();
    drop(locked_rank(&node));
    node.assert_only_locked(&[]);
    let rank = locked_rank(&node);
    node.kill_daemon();
    drop(rank);
    fs::remove_file(node.machine.library()).unwrap();
    let without_driver = run_to_the_end(&node, &["--restore-only"]);
    assert_eq!(node.ledger_entries(), 1);
    node.machine.install_library();
    assert_printed!(without_driver, run_to_the_end(&node, &["--restore-only"]));
    node.assert_only_locked(&[]);
}

#[test]
fn a_ledger_that_cannot_be_read_is_kept_aside_and_the_daemon_serves() {
    let mut node = Node::create(&Setup::default());
    fs::write(node.ledger(), "not a ledger").unwrap();
    node.start_daemon();
    node.until_logged("the ledger was damaged");
    drop(locked_rank(&node));
    node.assert_only_locked(&[]);
    let aside = fs::read_dir(node.directory()).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        (fs::read(&path).ok()? == b"not a ledger").then_some(path)
    });
    assert_eq!(aside.count(), 1);
}

#[test]
fn nothing_is_locked_while_the_ledger_cannot_be_written() {
    let node = Node::start();
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    // Where the next ledger would be written first, there is something in the way.
    let new = node.ledger().with_extension("new");
    fs::create_dir(&new).unwrap();
    node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
    rank.step();
    let problem = node.until("status tells the problem", || {
        node.rank(JOB, 0).problem.ok_or_else(|| "it does not".to_owned())
    });
    assert_printed!(problem);
    assert!(node.machine.clocks_set(0).is_empty());
    assert_eq!(rank.session.problem(), None);
    fs::remove_dir(&new).unwrap();
    drop(rank);
    node.assert_only_locked(&[]);
}

#[test]
fn a_daemon_stops_in_order_on_each_signal_that_asks_it_to() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut node = Node::start();
        let _rank = locked_rank(&node);
        node.daemon().process.signal(signal);
        assert!(node.daemon().process.wait().success());
        node.assert_only_locked(&[]);
    }
}

#[test]
fn a_daemon_stops_while_a_gpu_hangs_and_names_what_is_locked() {
    let mut node = Node::start();
    let rank = locked_rank(&node);
    node.machine.fault("*", "hang", Some(0));
    rank.instruction(0);
    let before = node.log().len();
    node.daemon().process.signal(Signal::SIGTERM);
    // It waits for its sessions for 20 s, then gives up on the one that hangs.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let code = loop {
        if let Some(status) = node.daemon().process.ended() {
            break status.code();
        }
        assert!(std::time::Instant::now() < deadline, "it does not stop");
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    let said = node.log()[before..].to_owned();
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains(node.machine.uuid(0).as_str()), "{said}");
    assert_eq!(node.ledger_entries(), 1);
    node.machine.clear_faults();
    node.daemon = None;
    drop(rank);
    node.start_daemon();
    node.assert_only_locked(&[]);
}
