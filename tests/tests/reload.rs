//! Another configuration while sessions run.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::sys::signal::Signal;
use pfo::ProblemCode;
use pfo_protocol::{
    ClosingReason, DaemonMessage, GpuName, RefusalCode, Request, Response, SwapTarget,
};
use pfo_tests::{
    Client, Identity, Node, Rank, ServiceManager, Setup, TestPlan, assert_printed, hello,
    needs_root, programs,
};

const JOB: &str = "job";

/// A rank whose GPU pfo has locked at 900 MHz.
fn locked_rank(node: &Node) -> Rank {
    let rank = Rank::open(node, JOB, 0, 1, 2);
    node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
    rank.session.step_begin();
    node.until_is("the lock", &Some(900), || node.machine.sm_lock(0));
    rank
}

fn edit(node: &Node, from: &str, to: &str) {
    let text = fs::read_to_string(node.config()).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text}");
    fs::write(node.config(), text.replace(from, to)).unwrap();
}

fn append(node: &Node, rules: &str) {
    let text = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), text + rules).unwrap();
}

/// Has the daemon reload on a signal, and waits until it has.
fn hang_up(node: &mut Node) {
    let before = node.log().len();
    node.daemon().process.signal(Signal::SIGHUP);
    node.until_so("the file is in force", || node.log()[before..].contains("in force"));
}

#[test]
fn a_session_has_the_new_bounds_from_its_next_step_on() {
    let mut node = Node::start();
    let rank = locked_rank(&node);
    let before = node.rank(JOB, 0);
    edit(&node, "max_mhz = 10000", "max_mhz = 1200");
    hang_up(&mut node);
    assert_eq!(node.machine.sm_lock(0), Some(900));
    // The second instruction first: the rest of the step runs at the highest clock, still the old one.
    rank.begin(1);
    node.until_is("the lock", &Some(1740), || node.machine.sm_lock(0));
    rank.session.step_begin();
    rank.begin(1);
    node.until_is("the lock", &Some(1200), || node.machine.sm_lock(0));
    let after = node.rank(JOB, 0);
    assert_eq!((after.session, after.plan), (before.session, before.plan));
    let refusal = node.load(JOB, &TestPlan::new(1, 2, |_, _| 1215)).unwrap_err();
    assert_printed!(refusal);
    assert_eq!(rank.session.problem(), None);
}

#[test]
fn a_plan_that_the_new_bounds_do_not_allow_is_suspended_with_the_reason() {
    let mut node = Node::start();
    let rank = locked_rank(&node);
    append(&node, "[[rule]]\nmax_mhz = 600\n");
    hang_up(&mut node);
    let why = node.job(JOB).plan.unwrap().suspended.unwrap();
    assert_printed!(why);
    rank.session.step_begin();
    node.until_is("the lock", &None, || node.machine.sm_lock(0));
    assert_eq!(node.swap(JOB, SwapTarget::Previous).map(|swapped| swapped.plan), Ok(None));
    assert_eq!(rank.session.problem(), None);
}

#[test]
fn a_session_that_is_no_longer_allowed_ends_and_its_clocks_are_restored() {
    let mut node = Node::start();
    let rank = locked_rank(&node);
    let gpu = GpuName::Uuid(node.machine.uuid(1));
    let mut other = Client::connect(&node.socket());
    other.open(hello("other", 0, 1, gpu)).unwrap();
    append(&node, "[[rule]]\ngpus = [0, 1]\nallow = false\n");
    hang_up(&mut node);
    node.assert_only_locked(&[]);
    match other.answer() {
        Ok(DaemonMessage::Closing(closing)) => {
            assert_eq!(closing.reason, ClosingReason::Revoked);
            assert_printed!(closing.message);
        }
        answer => panic!("{answer:?}"),
    }
    // The trainer trains on, and asks again in vain.
    node.until_is("the refusal", &Some(ProblemCode::Refused(RefusalCode::NotAuthorized)), || {
        rank.step();
        rank.session.problem().map(|problem| problem.code)
    });
    edit(&node, "allow = false", "allow = true");
    hang_up(&mut node);
    node.until_is("the session opens by itself", &None, || rank.session.problem());
}

#[test]
fn a_wrong_file_is_refused_with_its_place_and_changes_nothing() {
    let mut node = Node::start();
    let _rank = locked_rank(&node);
    append(&node, "[[rule]]\nallow = false\nno_such_key = 1\n");
    let line = fs::read_to_string(node.config()).unwrap().lines().count();
    let said =
        format!("{}, line {line}, column 1: unknown field `no_such_key`", node.config().display());
    node.daemon().process.signal(Signal::SIGHUP);
    let refused = |node: &Node| node.status().daemon.config.refused;
    let why = node.until("status says so", || refused(&node).ok_or("it does not".to_owned()));
    assert!(why.starts_with(&said), "{why}");
    node.until_logged(&said);
    let ran = node.pfoctl(&Identity::own(), &["status"]);
    assert!(ran.stdout.contains(&said), "{ran:?}");
    assert_eq!((node.status().daemon.sessions, node.machine.sm_lock(0)), (1, Some(900)));
    fs::remove_file(node.config()).unwrap();
    node.daemon().process.signal(Signal::SIGHUP);
    let unread = |why: String| why.starts_with("cannot read");
    node.until_so("status says so", || refused(&node).is_some_and(unread));
    assert_eq!(node.status().daemon.sessions, 1);
}

#[test]
fn a_file_that_others_can_write_is_named_and_changes_nothing() {
    needs_root!();
    let mut node = Node::start();
    append(&node, "[[rule]]\nallow = false\n");
    fs::set_permissions(node.config(), Permissions::from_mode(0o666)).unwrap();
    let refused = |node: &Node| node.status().daemon.config.refused;
    let said = format!("others can write {}", node.config().display());
    assert!(refused(&node).unwrap().starts_with(&said), "before it is read again");
    node.daemon().process.signal(Signal::SIGHUP);
    node.until_so("the journal says so", || node.log().contains(&said));
    let _rank = locked_rank(&node);
    fs::set_permissions(node.config(), Permissions::from_mode(0o644)).unwrap();
    hang_up(&mut node);
    assert_eq!(refused(&node), None);
}

#[test]
fn only_an_administrator_may_reload_and_hears_what_came_of_it() {
    needs_root!();
    let node = Node::start();
    let _rank = locked_rank(&node);
    let ledger = format!("{:?}", node.ledger().display().to_string());
    edit(&node, &ledger, "\"/somewhere/else\"");
    append(&node, "[[rule]]\nallow = false\n");
    let by_trainer = node.pfoctl(&Identity::trainer(), &["reload"]);
    assert_eq!(node.status().daemon.sessions, 1);
    let by_administrator = node.pfoctl(&Identity::administrator(), &["reload"]);
    node.until_is("sessions", &0, || node.status().daemon.sessions);
    node.assert_only_locked(&[]);
    // Asked again, there is nothing left to end, and the restart is still due.
    let Ok(Response::Reloaded(again)) = node.control().ask(Request::Reload) else { panic!() };
    assert_eq!((again.ended, again.suspended), (vec![], vec![]));
    assert_eq!(again.config.restart_needed_for, ["paths.ledger"]);

    append(&node, "oops");
    let of_wrong_file = node.pfoctl(&Identity::administrator(), &["reload"]);
    assert_printed!(by_trainer, by_administrator, of_wrong_file);
}

#[test]
fn systemd_hears_of_each_reload_and_why_a_file_is_refused() {
    let mut node = Node::create(&Setup::default());
    let systemd = ServiceManager::start(&mut node);
    append(&node, "oops");
    for refused in [true, false] {
        let before = systemd.said(&node).len();
        node.daemon().process.signal(Signal::SIGHUP);
        let ready = |text: &String| text.contains("READY=1");
        node.until_so("READY", || systemd.said(&node)[before..].iter().any(ready));
        let said = systemd.said(&node)[before..].to_vec();
        let begin = said.iter().position(|text| text.starts_with("RELOADING=1\n")).unwrap();
        let end = said.iter().position(ready).unwrap();
        let refuses = said[end].contains("\nSTATUS=configuration refused: ");
        assert!(begin < end && refuses == refused, "{said:?}");
        let since = said[begin].split_once("MONOTONIC_USEC=").unwrap().1;
        assert!(since.trim().parse::<u64>().unwrap() > 0, "{said:?}");
        let text = fs::read_to_string(node.config()).unwrap();
        fs::write(node.config(), text.replace("oops", "")).unwrap();
    }
}

#[test]
fn a_new_idle_limit_holds_for_running_sessions() {
    let rules = "[[rule]]\nrequire_device = false\n";
    let mut node = Node::start_with(&Setup { idle_limit_s: 60, rules, ..Setup::default() });
    let mut client = Client::connect(&node.socket());
    client.pass_devices_of("/no/devices".as_ref());
    client.open(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0)))).unwrap();
    edit(&node, "idle_limit_s = 60", "idle_limit_s = 1");
    hang_up(&mut node);
    client.tell(pfo_protocol::Mark::StepBegin(0));
    match client.answer() {
        Ok(DaemonMessage::Closing(closing)) => assert_eq!(closing.reason, ClosingReason::Idle),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_configuration_that_names_nobody_of_this_node_is_refused() {
    needs_root!();
    let node = Node::start_with(&Setup::without_agent());
    let _rank = locked_rank(&node);
    append(&node, "[[rule]]\nusers = ['no-such-user']\nallow = false\n[[rule]]\nallow = false\n");
    assert_printed!(node.pfoctl(&Identity::administrator(), &["reload"]));
    assert_eq!(node.status().daemon.sessions, 1, "the former rules are in force");
    let mut check = Command::new(programs::program("pfod"));
    let checked = check.arg("--check-config").arg("--config").arg(node.config()).output().unwrap();
    let said = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(78), "{said}");
    assert!(said.contains("user no-such-user (line "), "{said}");
}

#[test]
fn a_file_that_was_changed_and_not_read_is_said_to_be_newer_until_it_is() {
    needs_root!();
    let node = Node::start_with(&Setup::without_agent());
    assert!(!node.status().daemon.config.outdated);
    append(&node, "[[rule]]\nallow = false\n");
    assert!(node.status().daemon.config.outdated);
    let newer = "is newer than what is in force";
    for (command, part) in [("status", "Needs attention"), ("doctor", "warning configuration")] {
        let said = node.pfoctl(&Identity::administrator(), &[command]).stdout;
        let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(part) && flat.contains(newer), "{command}: {said}");
    }
    assert_eq!(node.pfoctl(&Identity::administrator(), &["reload"]).code, Some(0));
    assert!(!node.status().daemon.config.outdated);
}
