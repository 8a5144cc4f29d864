//! What still works when the driver's library, the ledger or the configuration does not.

use std::fs::{self, File};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::libc::O_NONBLOCK;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use pfo_protocol::{GpuName, RefusalCode};
use pfo_tests::{Client, Daemon, Identity, Node, Ran, Rank, TestPlan, hello, programs, wait};

const JOB: &str = "job";

/// Ranks that hold the first GPUs on a plan.
fn ranks_on_plan(node: &Node, count: u32) -> Vec<Rank> {
    let ranks = Rank::open_all(node, JOB, count, 2);
    node.take_up(JOB, &TestPlan::new(count, 2, |_, _| 900));
    ranks.iter().for_each(|rank| rank.session.step_begin());
    for gpu in 0..count as usize {
        node.until_is("the lock", &Some(900), || node.machine.sm_lock(gpu));
    }
    ranks
}

/// A node whose pfod was killed while it had locked its first GPUs.
fn left_locked(count: u32) -> Node {
    let mut node = Node::start();
    let ranks = ranks_on_plan(&node, count);
    node.kill_daemon();
    drop(ranks);
    node
}

/// Runs pfod until it ends by itself; returns its exit code and what it said.
fn restore_only(node: &Node, command: Command) -> (Option<i32>, String) {
    let before = node.log().len();
    let mut daemon = Daemon::start_under(node, command, &["--restore-only"]);
    // It gives up after 20 s.
    let ended = || daemon.process.ended().ok_or("it does not end");
    let code = wait::until_within(Duration::from_secs(60), ended).unwrap().code();
    (code, node.log()[before..].to_owned())
}

/// A command that changes nothing of what it runs.
fn plainly() -> Command {
    Command::new("env")
}

fn doctor(node: &Node) -> String {
    let library = node.machine.library().display().to_string();
    let ran = node.pfoctl(&Identity::administrator(), &["doctor", "--nvml", &library]);
    ran.stdout
}

/// A library that does not return while it is loaded delays no answer and no end, and everything is
/// served and restored when it does.
fn nobody_waits_for_a_library_that_hangs(hang: impl Fn(&Node), release: impl Fn(&Node)) {
    let mut node = left_locked(2);
    hang(&node);
    node.start_daemon_without_driver();
    let pid = node.daemon().process.pid();
    let gpu = || GpuName::Uuid(node.machine.uuid(3));
    // More than there are threads for requests.
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let refusal = Client::connect(&node.socket()).open(hello(JOB, 3, 4, gpu()));
                let refusal = refusal.unwrap_err();
                assert_eq!(refusal.code, RefusalCode::DriverUnavailable);
                assert!(refusal.message.contains("has been loading for"), "{refusal}");
            });
        }
    });
    let status = node.status().daemon;
    assert!(status.driver_problem.unwrap().contains("has been loading for"));
    assert_eq!(status.unrestored.len(), 2, "{:?}", status.unrestored);
    let found = doctor(&node);
    assert!(found.contains("pfod has no driver: the driver has been loading for"), "{found}");

    node.daemon().process.signal(Signal::SIGTERM);
    wait::until(|| node.daemon().process.ended().ok_or("it does not stop")).unwrap();
    assert_eq!(node.ledger_entries(), 2);
    node.daemon = None;
    node.start_daemon_without_driver();
    release(&node);
    node.assert_only_locked(&[]);
    assert_ne!(node.daemon().process.pid(), pid);
    drop(ranks_on_plan(&node, 2));
    node.assert_only_locked(&[]);
}

#[test]
fn nobody_waits_for_a_library_that_hangs_when_it_is_initialised() {
    nobody_waits_for_a_library_that_hangs(
        |node| node.machine.fault("nvmlInit_v2", "hang", None),
        |node| node.machine.clear_faults(),
    );
}

#[test]
fn nobody_waits_for_a_library_whose_file_cannot_be_read() {
    // Who opens it waits for somebody who writes to it.
    let other_name = |node: &Node| node.directory().join("deaf");
    nobody_waits_for_a_library_that_hangs(
        |node| {
            mkfifo(&other_name(node), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
            fs::remove_file(node.machine.library()).unwrap();
            fs::hard_link(other_name(node), node.machine.library()).unwrap();
        },
        |node| {
            let new = node.directory().join("new");
            symlink(programs::library("libnvidia_ml.so"), &new).unwrap();
            fs::rename(&new, node.machine.library()).unwrap();
            // Whoever reads it finds its end, if anybody does.
            for _ in 0..20 {
                let deaf =
                    File::options().write(true).custom_flags(O_NONBLOCK).open(other_name(node));
                drop(deaf);
                thread::sleep(Duration::from_millis(50));
            }
        },
    );
}

#[test]
fn restore_only_ends_while_the_library_hangs_and_names_what_is_locked() {
    let node = left_locked(2);
    node.machine.fault("nvmlInit_v2", "hang", None);
    let (code, said) = restore_only(&node, plainly());
    assert_eq!(code, Some(69), "{said}");
    for gpu in 0..2 {
        assert!(said.contains(node.machine.uuid(gpu).as_str()), "{said}");
    }
    assert!(said.contains("has been loading for"), "{said}");
    assert_eq!(node.ledger_entries(), 2);
}

#[test]
fn restore_only_waits_for_a_library_that_is_slow() {
    let node = left_locked(2);
    node.machine.fault("nvmlInit_v2", "latency:5000", None);
    let (code, said) = restore_only(&node, plainly());
    assert_eq!(code, Some(0), "{said}");
    node.assert_only_locked(&[]);
}

#[test]
fn restore_only_restores_every_gpu_but_the_one_that_hangs() {
    let node = left_locked(4);
    node.machine.fault("nvmlDeviceResetGpuLockedClocks", "hang", Some(0));
    let (code, said) = restore_only(&node, plainly());
    assert_eq!(code, Some(69), "{said}");
    let is_named = |gpu| said.contains(&format!("{} (the driver does not", node.machine.uuid(gpu)));
    assert_eq!([0, 1, 2, 3].map(is_named), [true, false, false, false], "{said}");
    assert_eq!(node.ledger_entries(), 1);
    let locks = [0, 1, 2, 3].map(|gpu| node.machine.sm_lock(gpu));
    assert_eq!(locks, [Some(900), None, None, None]);
}

#[test]
fn a_reset_that_is_refused_once_is_repeated_by_the_next_daemon() {
    let mut node = left_locked(2);
    node.machine.fault_once("nvmlDeviceResetGpuLockedClocks", "unknown", Some(1));
    let (code, said) = restore_only(&node, plainly());
    assert_eq!(code, Some(69), "{said}");
    assert_eq!(node.ledger_entries(), 1);
    node.machine.fault_once("nvmlDeviceResetGpuLockedClocks", "unknown", Some(1));
    node.start_daemon();
    node.assert_only_locked(&[]);
}

#[test]
fn a_loss_is_reported_until_an_administrator_acknowledges_it() {
    let mut node = left_locked(2);
    // The second GPU is not named any more.
    let whole = fs::read_to_string(node.ledger()).unwrap();
    let second = node.machine.uuid(1);
    let first = whole.find(second.as_str()).unwrap();
    let cut = whole.find(node.machine.uuid(0).as_str()).unwrap().max(first) - 1;
    fs::write(node.ledger(), &whole[..cut]).unwrap();
    for _ in 0..2 {
        let (code, said) = restore_only(&node, plainly());
        assert_eq!(code, Some(69), "{said}");
        assert!(said.contains("pfoctl clocks acknowledge"), "{said}");
    }
    let locked = || (0..2).filter(|gpu| node.machine.sm_lock(*gpu).is_some()).count();
    assert_eq!(locked(), 1, "what the file names is restored, and nothing else");
    let pfoctl = |node: &Node, arguments: &[&str]| -> Ran {
        node.pfoctl(&Identity::administrator(), arguments)
    };
    for _ in 0..2 {
        node.start_daemon();
        let said = pfoctl(&node, &["status"]).stdout;
        assert!(said.contains("clocks may be locked that pfod does not know"), "{said}");
        assert!(doctor(&node).contains("clocks may be locked that pfod does not know"));
        node.kill_daemon();
    }
    node.start_daemon();
    pfoctl(&node, &["clocks", "reset", "--all"]).printed();
    node.assert_only_locked(&[]);
    assert!(node.status().daemon.ledger_damage.is_some(), "a reset is no acknowledgement");
    pfoctl(&node, &["clocks", "acknowledge"]).printed();
    assert_eq!(node.status().daemon.ledger_damage, None);
    node.until_logged("acknowledges that the ledger was damaged");
    node.kill_daemon();
    let (code, said) = restore_only(&node, plainly());
    assert_eq!((code, said.as_str()), (Some(0), ""));
    node.start_daemon();
    assert_eq!(node.status().daemon.ledger_damage, None);
}

#[test]
fn a_session_after_a_loss_begins_with_nothing_locked() {
    let mut node = left_locked(1);
    fs::write(node.ledger(), "?").unwrap();
    node.start_daemon();
    assert_eq!(node.machine.sm_lock(0), Some(900), "nothing names it");
    let rank = Rank::open(&node, "another", 0, 1, 2);
    node.until_is("the lock", &None, || node.machine.sm_lock(0));
    drop(rank);
    node.assert_only_locked(&[]);
}

#[test]
fn restore_only_finds_the_ledger_of_the_last_daemon_whatever_the_configuration_says_now() {
    let mut node = Node::create(&pfo_tests::Setup::without_agent());
    let runtime = node.directory().join("runtime");
    fs::create_dir(&runtime).unwrap();
    let managed = || {
        let mut command = plainly();
        command.arg(format!("RUNTIME_DIRECTORY={}", runtime.display()));
        command
    };
    let right = fs::read_to_string(node.config()).unwrap();
    let elsewhere = right.replace("ledger.json", "elsewhere.json");
    for wrong in [format!("{right}\n[driver\n"), elsewhere, String::new()] {
        node.daemon = Some(Daemon::start_under(&node, managed(), &[]));
        node.until_so("it serves", || UnixStream::connect(node.admin_socket()).is_ok());
        node.until_so("it has the driver", || node.status().daemon.driver.is_some());
        let ranks = ranks_on_plan(&node, 1);
        node.kill_daemon();
        drop(ranks);
        if wrong.is_empty() {
            fs::remove_file(node.config()).unwrap();
        } else {
            fs::write(node.config(), wrong).unwrap();
        }
        let (code, said) = restore_only(&node, managed());
        assert_eq!(code, Some(0), "{said}");
        node.assert_only_locked(&[]);
        fs::write(node.config(), &right).unwrap();
    }
}
