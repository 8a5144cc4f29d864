//! Panics of pfod, which builds for development have at jobs of certain names: each ends the session
//! or the request that it came in, and nothing else.

use pfo::ProblemCode;
use pfo_protocol::{
    ClientMessage, DaemonMessage, JobSelector, RefusalCode, Request, Response, SwapTarget,
};
use pfo_tests::{Client, Identity, Node, Rank, TestPlan, control::job, say_skipped};

/// Whose ranks make pfod panic as soon as they have a clock.
const IN_RANK: &str = "panics-in-rank";

/// Which makes pfod panic in each request about it.
const IN_REQUEST: &str = "panics-in-request";

const OTHER: &str = "other";

/// Whether the programs under test are built for development.
fn has_panics() -> bool {
    if !cfg!(debug_assertions) {
        say_skipped("a release does not panic at the names of jobs");
    }
    cfg!(debug_assertions)
}

fn plan() -> TestPlan {
    TestPlan::distinct(2, 3, 600)
}

/// A rank on the GPU of its number that trains on a plan.
fn on_plan(node: &Node, job: &str, rank: u32) -> Rank {
    let opened = Rank::open(node, job, rank, 2, 3);
    node.take_up(job, &plan());
    opened.session.step_begin();
    opened.instruction(0);
    opened
}

/// Waits for the journal's entry about a panic that names all of this.
fn until_logged(node: &Node, named: &[String]) {
    node.until("the journal says whose it was", || {
        let log = node.log();
        let all_in = |line: &&str| named.iter().all(|name| line.contains(name.as_str()));
        let found = log.lines().filter(|line| line.contains("panicked at")).find(all_in);
        found.map(drop).ok_or(log.clone())
    });
}

#[test]
fn a_panic_in_a_ranks_thread_ends_only_its_session_and_restores_its_clocks() {
    if !has_panics() {
        return;
    }
    let mut node = Node::start();
    let daemon = node.daemon().process.pid();
    let other = on_plan(&node, OTHER, 0);
    let session = node.rank(OTHER, 0).session;
    let rank = on_plan(&node, IN_RANK, 1);
    node.until("the rank is told", || match rank.session.problem() {
        Some(problem) if problem.code == ProblemCode::Refused(RefusalCode::Internal) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let (uid, pid, gpu) = (Identity::own().uid, std::process::id(), node.machine.uuid(1));
    until_logged(
        &node,
        &[format!("uid={uid}"), format!("pid={pid}"), gpu.to_string(), IN_RANK.into()],
    );
    node.until_is("its clock", &None, || node.machine.sm_lock(1));
    assert_eq!(node.machine.sm_lock(0), Some(plan().clocks(0)[1]));
    // It has another session by now, or soon, whose memory clock is locked.
    drop(rank);
    node.until_is("the ledger", &1, || node.ledger_entries());
    other.instruction(1);
    node.until_is("the other's next clock", &Some(plan().clocks(0)[2]), || node.machine.sm_lock(0));
    assert_eq!(node.rank(OTHER, 0).session, session);
    assert_eq!(other.session.counters().reconnects, 0);
    assert_eq!((node.daemon().process.pid(), node.daemon().process.ended()), (daemon, None));
}

#[test]
fn the_gpu_of_a_rank_whose_thread_panicked_is_free_for_others() {
    if !has_panics() {
        return;
    }
    let node = Node::start();
    let rank = on_plan(&node, IN_RANK, 1);
    node.until_so("its session has ended", || rank.session.problem().is_some());
    drop(rank);
    let next = on_plan(&node, OTHER, 1);
    node.until_is("its clock", &Some(plan().clocks(1)[1]), || node.machine.sm_lock(1));
    drop(next);
    node.until_is("the ledger", &0, || node.ledger_entries());
    assert_eq!(node.machine.sm_lock(1), None);
}

#[test]
fn a_panic_in_a_request_is_refused_and_its_connection_goes_on() {
    if !has_panics() {
        return;
    }
    let mut node = Node::start();
    let other = on_plan(&node, OTHER, 0);
    let mut client = Client::connect(&node.socket());
    let mut ask = |request| {
        client.say(&ClientMessage::Request(request));
        match client.answer().unwrap() {
            DaemonMessage::Response(response) => response,
            other => panic!("{other:?}"),
        }
    };
    let swap = |job: JobSelector| {
        let target = SwapTarget::DefaultClocks;
        Request::PlanSwap { job, target, at_step: None, after: None, wait: false }
    };
    // One is served on the thread of the runtime, the other on one of those that may block.
    for request in [swap(job(IN_REQUEST)), Request::PlanRead(job(IN_REQUEST))] {
        let asked = format!("{request:?}");
        match ask(request) {
            Response::Refused(refusal) => {
                assert_eq!(refusal.code, RefusalCode::Internal, "{refusal}");
            }
            other => panic!("{asked}: {other:?}"),
        }
    }
    assert!(matches!(ask(Request::Status), Response::Status(_)));
    let (uid, pid) = (Identity::own().uid, std::process::id());
    until_logged(&node, &[format!("uid={uid}"), format!("pid={pid}")]);
    assert_eq!(other.session.counters().reconnects, 0);
    assert_eq!(node.daemon().process.ended(), None);
}
