//! A job over four nodes, one of which only observes.

use pfo_tests::{Identity, Setup};

use super::cluster::JOB;
use super::staged::{Staged, frontier};

#[test]
fn no_plan_runs_on_all_nodes_if_one_of_them_only_observes() {
    let mode = |node| if node == 2 { "observe" } else { "control" };
    let setup = |node| Setup { mode: mode(node), ..Setup::default() };
    let Some(staged) = Staged::start_with(setup) else { return };
    let [_, plan] = frontier(&staged.nodes[1], "1.15x");
    let swap = ["plan", "swap", JOB, &plan, "--wait"];
    for (code, asked) in [(4, &swap[..]), (1, &["profile", "start", JOB, "--wait"])] {
        let ran = staged.nodes[1].pfoctl(&Identity::own(), asked);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.stderr.contains("its pfod only observes, and sets nothing"), "{ran:?}");
        assert!(ran.stderr.contains("node-c"), "{ran:?}");
    }
    for node in &staged.nodes {
        assert_eq!(node.job(JOB).plan, None);
    }
    staged.training.stop();
}
