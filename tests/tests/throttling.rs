//! GPUs that something other than pfo holds back.

use std::time::Duration;

use nvidia_ml::units::Milliwatts;
use pfo_tests::{Node, Rank, TestPlan};

/// `pfod` looks every 5 s.
const LOOKED_AGAIN: Duration = Duration::from_secs(6);

#[test]
fn a_gpu_that_runs_below_its_lock_is_reported_once() {
    let node = Node::start();
    let ranks = Rank::open_all(&node, "job", 2, 2);
    node.take_up("job", &TestPlan::new(2, 2, |_, _| 1500));
    ranks.iter().for_each(|rank| rank.session.step_begin());
    let _work = [0, 1].map(|gpu| {
        node.until_is("the lock", &Some(1500), || node.machine.sm_lock(gpu));
        node.machine.compute(gpu)
    });
    node.machine.gpu(1).cap_power(Some(Milliwatts(150_000))).unwrap();
    let found =
        || node.log().lines().filter(|line| line.contains("below its lock at 1500 MHz")).count();
    node.until_is("the entry", &1, found);
    let log = node.log();
    let line = log.lines().find(|line| line.contains("below its lock at 1500 MHz")).unwrap();
    assert!(line.contains(": sw_power_cap"), "{line}");
    assert!(line.contains(node.machine.uuid(1).as_str()), "{line}");
    // It looks again and again; meanwhile the GPU has run at its lock.
    node.machine.gpu(1).cap_power(None).unwrap();
    std::thread::sleep(LOOKED_AGAIN);
    node.machine.gpu(1).cap_power(Some(Milliwatts(150_000))).unwrap();
    std::thread::sleep(LOOKED_AGAIN);
    assert_eq!(found(), 1);
}
