//! Every way in which a session can end, and that it leaves nothing locked and nothing else touched.

use std::time::Duration;

use nix::sys::signal::Signal;
use pfo_protocol::{ClientMessage, Event, GpuName, Mark};
use pfo_tests::{
    Bindings, Client, Daemon, FOREIGN_MHZ, Identity, MICROBATCHES, MachineSetup, Node, Rank, Relay,
    STAGES, Setup, TestPlan, Training, hello, process,
};

const JOB: &str = "job";

/// The GPU that no trainer uses, and another tool has locked before the daemon came.
const FOREIGN: usize = 4;

/// What must be left when everything of pfo is undone.
const LEFT: [(usize, u32); 1] = [(FOREIGN, FOREIGN_MHZ)];

fn plan() -> TestPlan {
    TestPlan::distinct(STAGES, MICROBATCHES, 600)
}

/// A node with a lock of another tool, on which a training runs on a plan.
fn node_in_training(idle_limit_s: u64) -> (Node, Training) {
    let machine = MachineSetup { gpus: "5xA40", ..MachineSetup::default() };
    let mut node = Node::create(&Setup { machine, idle_limit_s, ..Setup::default() });
    node.lock_by_another_tool(FOREIGN);
    node.start_daemon();
    let training = Training::start_on_plan(&node, JOB, &Identity::trainer(), &plan());
    assert_eq!(node.ledger_entries(), STAGES as usize);
    (node, training)
}

/// Checks that the locks of a training are still there, although nobody is left to hold them.
fn assert_still_locked(node: &Node) {
    assert_eq!(node.ledger_entries(), STAGES as usize);
    let locks: Vec<_> = (0..STAGES as usize).map(|gpu| node.machine.sm_lock(gpu)).collect();
    for (gpu, lock) in locks.iter().enumerate() {
        let mhz = lock.expect("a lock outlives its daemon");
        assert!(plan().clocks(gpu as u32).contains(&mhz), "GPU {gpu} is locked at {mhz} MHz");
    }
    if let Some(bindings) = Bindings::on(&node.machine) {
        let clocks = |reading: pfo_tests::Reading| Some(reading.sm_mhz);
        let seen: Vec<_> = bindings.read().into_iter().map(clocks).collect();
        assert_eq!(seen[..STAGES as usize], locks);
    }
}

/// A session of another process, on the node's last GPU, that has a clock locked.
fn relay_with_lock(node: &Node, relay: &mut Relay, rank: u32, stages: u32, mhz: u32) {
    let gpu = GpuName::Uuid(node.machine.uuid(rank as usize));
    relay.say(&ClientMessage::Hello(hello(JOB, rank, stages, gpu)));
    relay.answer();
    let event = Event { sequence: 0, client_ns: 0, mark: Mark::StepBegin(0) };
    relay.say(&ClientMessage::Event(event));
    node.until_is("the relay's lock", &Some(mhz), || node.machine.sm_lock(rank as usize));
}

#[test]
fn trainers_that_are_killed_leave_nothing_locked() {
    let (node, mut training) = node_in_training(60);
    training.signal_ranks(&node, Signal::SIGKILL);
    node.assert_only_locked(&LEFT);
    assert!(!training.wait().0.success());
}

#[test]
fn a_rank_that_is_killed_leaves_the_locks_of_the_others_alone() {
    let node = Node::start();
    let plan = TestPlan::new(4, 2, |stage, _| 600 + 15 * stage);
    let ranks: Vec<_> = (0..3).map(|rank| Rank::open(&node, JOB, rank, 4, 2)).collect();
    node.take_up(JOB, &plan);
    let mut relay = Relay::connect(&node, &Identity::own());
    ranks.iter().for_each(Rank::step);
    relay_with_lock(&node, &mut relay, 3, 4, 645);
    node.machine.assert_locks_are(&[(0, 600), (1, 615), (2, 630), (3, 645)]);
    relay.kill();
    node.machine.assert_locks_are(&[(0, 600), (1, 615), (2, 630)]);
    node.until_is("entries of the ledger", &3, || node.ledger_entries());
    // The others continue.
    ranks.iter().for_each(Rank::step);
    node.until_is("ranks in step 1", &3, || {
        node.job(JOB).ranks.iter().filter(|rank| rank.step == Some(1)).count()
    });
    drop(ranks);
    node.assert_only_locked(&[]);
}

#[test]
fn a_killed_trainer_leaves_nothing_locked_through_a_child_with_the_socket() {
    let node = Node::start();
    let mut relay = Relay::connect_with_child(&node);
    let keeper = Rank::open(&node, JOB, 0, 2, 2);
    node.take_up(JOB, &TestPlan::new(2, 2, |_, _| 900));
    relay_with_lock(&node, &mut relay, 1, 2, 900);
    relay.kill();
    node.until_is("the lock of the killed trainer", &None, || node.machine.sm_lock(1));
    let child = relay.left_behind().unwrap();
    assert!(nix::sys::signal::kill(child, None).is_ok(), "the child has ended as well");
    drop(keeper);
    node.assert_only_locked(&[]);
}

#[test]
fn a_goodbye_and_a_socket_that_is_just_closed_both_leave_nothing_locked() {
    let node = Node::start();
    let mut orderly = Client::connect(&node.socket());
    let mut abrupt = Client::connect(&node.socket());
    for (rank, client) in [(0, &mut orderly), (1, &mut abrupt)] {
        let gpu = GpuName::Uuid(node.machine.uuid(rank as usize));
        client.open(hello(JOB, rank, 2, gpu)).unwrap();
    }
    node.take_up(JOB, &TestPlan::new(2, 2, |_, _| 900));
    orderly.tell(Mark::StepBegin(0));
    abrupt.tell(Mark::StepBegin(0));
    node.until_is("locks", &2, || {
        (0..2).filter(|gpu| node.machine.sm_lock(*gpu) == Some(900)).count()
    });
    orderly.say(&ClientMessage::Goodbye);
    orderly.assert_ended();
    drop(abrupt);
    node.assert_only_locked(&[]);
}

#[test]
fn a_daemon_that_stops_leaves_nothing_locked_and_training_continues() {
    let (mut node, training) = node_in_training(60);
    assert!(node.daemon.take().unwrap().stop().success());
    node.assert_only_locked(&LEFT);
    let report = training.stop();
    let code = &report["ranks"][0]["problem"]["code"];
    assert!(code == 150 || code == 101, "{report}");
}

#[test]
fn the_locks_of_a_killed_daemon_are_undone_by_its_successor() {
    let (mut node, mut training) = node_in_training(60);
    let ranks = training.ranks(&node);
    node.kill_daemon();
    // The launcher would end the others itself as soon as it sees that one has ended.
    training.process.signal(Signal::SIGSTOP);
    for (pid, _) in ranks {
        process::send(pid, Signal::SIGKILL);
    }
    training.process.signal(Signal::SIGCONT);
    training.wait();
    assert_still_locked(&node);
    node.start_daemon();
    node.assert_only_locked(&LEFT);
}

#[test]
fn restore_only_undoes_the_locks_of_a_killed_daemon_and_serves_nobody() {
    let (mut node, training) = node_in_training(60);
    node.kill_daemon();
    assert_eq!(node.ledger_entries(), STAGES as usize);
    let mut restoring = Daemon::start(&node, &["--restore-only"]);
    assert!(restoring.process.wait().success());
    node.assert_only_locked(&LEFT);
    assert!(std::os::unix::net::UnixStream::connect(node.socket()).is_err());
    training.stop();
}

#[test]
fn a_trainer_stopped_past_the_idle_limit_gets_its_locks_back_later() {
    let (node, training) = node_in_training(1);
    training.signal_ranks(&node, Signal::SIGSTOP);
    node.assert_only_locked(&LEFT);
    assert_eq!(node.status().daemon.sessions, STAGES);
    for pid in (0..STAGES as usize).flat_map(|gpu| node.machine.processes(gpu)) {
        process::send(pid, Signal::SIGCONT);
    }
    training.until_leased(&node);
    node.until_is("GPUs that are locked again", &(STAGES as usize), || {
        (0..STAGES as usize).filter(|gpu| node.machine.sm_lock(*gpu).is_some()).count()
    });
    training.stop();
    node.assert_only_locked(&LEFT);
}

#[test]
fn a_rank_that_is_silent_past_the_idle_limit_is_told_so() {
    let rules = "[[rule]]\nrequire_device = false\n";
    let node = Node::start_with(&Setup { idle_limit_s: 1, rules, ..Setup::default() });
    let mut client = Client::connect(&node.socket());
    client.pass_devices_of("/no/devices".as_ref());
    let gpu = GpuName::Uuid(node.machine.uuid(0));
    let welcome = client.open(hello(JOB, 0, 1, gpu)).unwrap();
    assert_eq!(welcome.idle_limit_ms, 1000);
    client.be_patient_for(Duration::from_secs(20));
    let answer = client.answer().unwrap();
    let pfo_protocol::DaemonMessage::Closing(closing) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(closing.reason, pfo_protocol::ClosingReason::Idle);
    client.assert_ended();
    node.assert_only_locked(&[]);
}
