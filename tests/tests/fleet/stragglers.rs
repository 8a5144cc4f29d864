//! Stragglers in a training over four nodes: all of it takes their time.

use super::cluster::JOB;
use super::slow_node::{SLOW, make_slow, setup};
use super::staged::{Staged, frontier, pfoctl};

/// The node at which stragglers are asked for.
const ASKED: usize = 1;

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
    other.until_is("the straggler on another node", &Some(1.3), || whole().straggler);
    pfoctl(other, &["job", "straggler", JOB, "--clear", "--wait"]);
    staged.assert_all_run("own.json");

    // One that the agents find, on a node that has no frontier.
    pfoctl(asked, &["job", "straggler", JOB, "--auto"]);
    let answered_by = || whole().answered_by;
    other.until_is("who answers", &Some("node-b".to_owned()), answered_by);
    make_slow(&staged.nodes[SLOW], true);
    staged.until_all_run(|label| label.ends_with(", replanned"));
    make_slow(&staged.nodes[SLOW], false);
    staged.assert_all_run("own.json");
    staged.training.stop();
}
