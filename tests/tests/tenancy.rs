//! A lease lasts as long as its proof: a GPU whose holder does not compute on it, while another user does,
//! has another tenant.

use std::process::{Child, Command, Stdio};

use pfo_protocol::{
    ClientMessage, ClosingReason, DaemonMessage, GpuName, Mark, Refusal, RefusalCode, Request,
    Response,
};
use pfo_tests::{
    Client, Identity, MachineSetup, Node, Rank, Relay, Setup, assert_printed, hello, needs_root,
    programs,
};

const JOB: &str = "kept";

fn node() -> Node {
    let machine = MachineSetup { gpus: "1xA40", ..MachineSetup::default() };
    Node::start_with(&Setup { machine, tenant_check_s: 1, ..Setup::without_agent() })
}

fn hello_of(node: &Node) -> ClientMessage {
    ClientMessage::Hello(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0))))
}

/// A former tenant, who has a lease by a descriptor from when the GPU was its own.
fn former_tenant(node: &Node) -> Relay {
    let mut former = Relay::connect(node, &Identity::trainer());
    former.say(&hello_of(node));
    assert!(matches!(former.answer(), DaemonMessage::Welcome(_)));
    former
}

fn refusal(mut relay: Relay, node: &Node) -> Refusal {
    relay.say(&hello_of(node));
    match relay.answer() {
        DaemonMessage::Refusal(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_descriptor_from_before_the_file_was_another_users_proves_nothing() {
    needs_root!();
    let node = node();
    let former = Relay::connect_with_kept(&node, &Identity::trainer());
    node.machine.forbid_device(0, true);
    assert_eq!(refusal(former, &node).code, RefusalCode::NotAuthorized);
    node.assert_only_locked(&[]);
}

#[test]
fn a_lease_ends_when_another_user_computes_on_its_gpu_and_its_holder_does_not() {
    needs_root!();
    let node = node();
    let mut former = former_tenant(&node);
    let _tenant = node.machine.compute(0);
    match former.answer() {
        DaemonMessage::Closing(closing) => {
            assert_eq!(closing.reason, ClosingReason::Revoked);
            assert_printed!(closing.message);
        }
        other => panic!("{other:?}"),
    }
    node.assert_only_locked(&[]);
    let again = Relay::connect(&node, &Identity::trainer());
    assert_printed!(refusal(again, &node));
    // The tenant, who came without pfo, may use it now.
    let _rank = Rank::open(&node, JOB, 0, 1, 2);
}

/// A process that computes on a GPU.
struct Computing(Child);

impl Drop for Computing {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Another user's process that computes on a GPU.
fn other_that_computes(node: &Node, gpu: usize) -> Computing {
    let trainer = programs::program_for_all("pfo-sim-trainer", node.directory());
    let mut command = Command::new(trainer);
    command.args(["compute", "--gpu", &gpu.to_string(), "--state"]).arg(node.machine.state());
    // It ends with its standard input.
    Identity::trainer().assume(command.stdin(Stdio::piped()));
    let before = node.machine.processes(gpu).len();
    let process = Computing(command.spawn().unwrap());
    node.until_is("processes on the GPU", &(before + 1), || node.machine.processes(gpu).len());
    process
}

#[test]
fn a_holder_that_computes_keeps_its_lease_beside_another_user() {
    needs_root!();
    let machine = MachineSetup { gpus: "2xA40", ..MachineSetup::default() };
    let setup = Setup { machine, tenant_check_s: 1, ..Setup::without_agent() };
    let node = Node::start_with(&setup);
    let [mut keeps, mut loses] = [0, 1].map(|_| Client::connect(&node.socket()));
    let _own = node.machine.compute(0);
    let _other = other_that_computes(&node, 0);
    keeps.open(hello(JOB, 0, 2, GpuName::Uuid(node.machine.uuid(0)))).unwrap();
    loses.open(hello(JOB, 1, 2, GpuName::Uuid(node.machine.uuid(1)))).unwrap();
    let _another = other_that_computes(&node, 1);
    // The one that began later has been looked at, and so has the other.
    assert!(matches!(loses.answer(), Ok(DaemonMessage::Closing(_))));
    keeps.tell(Mark::StepBegin(3));
    node.until_is("the step of the one that computes", &Some(3), || node.rank(JOB, 0).step);
}

#[test]
fn an_administrators_grant_says_whose_gpu_it_is_whoever_computes_on_it() {
    needs_root!();
    let node = node();
    let uid = Identity::trainer().uid;
    let gpus = vec![GpuName::Uuid(node.machine.uuid(0))];
    let grant = Request::Grant { uid, gpus, until_unix_s: None };
    assert!(matches!(node.control().ask(grant), Ok(Response::Granted(_))));
    let _other = node.machine.compute(0);
    let _holder = former_tenant(&node);
}
