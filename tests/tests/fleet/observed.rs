//! A job over four nodes, one of which only observes, or whose driver refuses what it is asked for.

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

#[test]
fn a_swap_is_not_in_force_where_the_driver_of_another_node_refuses_or_ignores_it() {
    let Some(staged) = Staged::start_with(|_| Setup::default()) else { return };
    let [asked, other] = [&staged.nodes[0], &staged.nodes[2]];
    let [_, plan] = frontier(asked, "1.15x");
    let swap = ["plan", "swap", JOB, &plan, "--wait"];
    for (kind, why) in [("no-permission", "permission"), ("ignored", "although pfod has locked")] {
        other.machine.fault("nvmlDeviceSetGpuLockedClocks", kind, None);
        let ran = asked.pfoctl(&Identity::own(), &swap);
        assert_eq!(ran.code, Some(1), "{kind}: {ran:?}");
        assert!(ran.stdout.contains("late: node node-c: rank "), "{kind}: {ran:?}");
        assert!(ran.stdout.contains(why), "{kind}: {ran:?}");
        let attention = asked.pfoctl(&Identity::own(), &["status"]).printed();
        assert!(attention.contains("node-c"), "{attention}");
        other.machine.clear_faults();
    }
    let back = asked.pfoctl(&Identity::own(), &["plan", "swap", JOB, "--default-clocks", "--wait"]);
    assert!(back.stdout.contains("on 4 of 4 nodes"), "{back:?}");
    assert!(!back.stdout.contains(": rank "), "no GPU differs any more: {back:?}");
    staged.training.stop();
}

#[test]
fn a_gpu_that_keeps_refusing_its_clock_does_not_keep_the_job_from_what_a_user_asks_for() {
    let Some(staged) = Staged::start_with(|_| Setup::default()) else { return };
    let [asked, other] = [&staged.nodes[0], &staged.nodes[2]];
    let [_, plan] = frontier(asked, "1.15x");
    other.machine.fault("nvmlDeviceSetGpuLockedClocks", "no-permission", None);
    // The second swap is to what the job runs already.
    for _ in 0..2 {
        let ran = asked.pfoctl(&Identity::own(), &["plan", "swap", JOB, &plan, "--wait"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stdout.contains("late: node node-c: rank "), "{ran:?}");
    }
    // Nothing is measured meanwhile, wherever somebody asks for it.
    for node in [other, asked] {
        let ran = node.pfoctl(&Identity::own(), &["profile", "start", JOB, "--wait"]);
        assert_eq!(ran.code, Some(7), "{ran:?}");
        assert!(ran.stderr.contains("permission"), "{ran:?}");
    }
    let back = asked.pfoctl(&Identity::own(), &["plan", "swap", JOB, "--default-clocks", "--wait"]);
    assert_eq!(back.code, Some(0), "{back:?}");
    assert!(back.stdout.contains("on 4 of 4 nodes"), "{back:?}");
    staged.training.stop();
}
