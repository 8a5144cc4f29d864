//! Stragglers in a training over four nodes: all of it takes their time.

use nvidia_ml::clock_table::ClockRange;
use nvidia_ml::machine::MachinePlan;
use nvidia_ml::units::Mhz;
use pfo_tests::{Identity, MachineSetup, Node, STAGES, Setup};

use super::cluster::JOB;
use super::staged::{Staged, frontier};

/// The node at which stragglers are asked for, and the one that becomes slow.
const ASKED: usize = 1;
const SLOW: usize = 3;

/// The memory of the slow node's GPUs slows them down by three tenths when it is locked.
fn setup(node: usize) -> Setup {
    let made: fn(MachinePlan) -> MachinePlan = match node {
        SLOW => |plan| MachinePlan { memory_lock_slows_permille: Some(300), ..plan },
        _ => |plan| plan,
    };
    Setup {
        machine: MachineSetup { made, ..MachineSetup::default() },
        // Much, so that no other load on this machine is taken for a slow rank.
        agent_rules: "[watch]\nslow_percent = 18\nsteps = 3\ndrift_percent = 90\n",
        ..Setup::default()
    }
}

fn make_slow(node: &Node, slow: bool) {
    let any = Mhz(1);
    for gpu in 0..STAGES as usize {
        let range = slow.then_some(ClockRange { min: any, max: any });
        node.machine.gpu(gpu).lock_memory_clocks(range).unwrap();
    }
}

fn pfoctl(node: &Node, arguments: &[&str]) -> String {
    node.pfoctl(&Identity::own(), arguments).printed()
}

#[test]
fn a_slow_stage_anywhere_is_answered_on_all_nodes_and_the_plan_of_before_returns() {
    let Some(staged) = Staged::start_with(setup) else { return };
    let [asked, other] = [&staged.nodes[ASKED], &staged.nodes[0]];
    let [frontier, own] = frontier(asked, "1.15x");
    pfoctl(asked, &["plan", "swap", JOB, &own, "--wait"]);
    make_slow(&staged.nodes[SLOW], false);
    pfoctl(asked, &["plan", "load", JOB, &frontier]);

    // One that a user reports while the plan is compared, and that ends from another node.
    pfoctl(other, &["plan", "guard", JOB, "500%"]);
    asked.until_so("the plan is compared", || asked.job(JOB).plan.is_none());
    pfoctl(asked, &["job", "straggler", JOB, "1.3", "--wait"]);
    pfoctl(asked, &["plan", "guard", JOB, "--off"]);
    staged.until_all_run(|label| label.ends_with("at 1.3x"));
    let whole = || staged.whole(0);
    assert_eq!(whole().straggler, Some(1.3));
    pfoctl(other, &["job", "straggler", JOB, "--clear", "--wait"]);
    staged.assert_all_run("own.json");

    // One that the agents find, on a node that has no frontier.
    pfoctl(asked, &["job", "straggler", JOB, "--auto"]);
    assert_eq!(whole().answered_by.as_deref(), Some("node-b"));
    make_slow(&staged.nodes[SLOW], true);
    staged.until_all_run(|label| label.ends_with(", replanned"));
    make_slow(&staged.nodes[SLOW], false);
    staged.assert_all_run("own.json");
    staged.training.stop();
}
