//! A job that its scheduler has requeued: the same name and nodes, and another run.

use std::fs;

use pfo_protocol::FleetOutcome;
use pfo_tests::{Identity, Setup, wait};

use super::cluster::{JOB, NODES, PATIENCE};
use super::staged::{Staged, frontier, train};

#[test]
fn a_requeued_job_shares_no_swap_with_its_former_self_and_changes_as_a_whole() {
    let Some(staged) = Staged::start_with(|_| Setup::default()) else { return };
    let swap = |staged: &Staged, node: usize, to: &str| {
        let swap = ["plan", "swap", JOB, to, "--wait", "--json"];
        staged.nodes[node].pfoctl(&Identity::own(), &swap).json()
    };
    let [_, own] = frontier(&staged.nodes[1], "1.15x");
    for (number, to) in (1..).zip([&*own, "--default-clocks", &*own]) {
        assert_eq!(swap(&staged, 1, to)["number"], number);
    }
    staged.assert_all_run("own.json");

    // The nodes go on with what they ran. What they agree on is counted anew.
    let staged = staged.requeued();
    let numbers = (0..NODES.len()).map(|node| staged.whole(node).swap.map(|swap| swap.number));
    assert!(numbers.into_iter().all(|number| number.is_none_or(|number| number == 1)));
    staged.assert_all_run("own.json");
    let first = swap(&staged, 2, "--default-clocks")["number"].as_u64().unwrap();
    assert!(first <= 2, "{first}");
    until_at_default_clocks(&staged);
    assert_eq!(swap(&staged, 3, &own)["number"], first + 1);
    staged.assert_all_run("own.json");
    staged.training.stop();
}

fn until_at_default_clocks(staged: &Staged) {
    for node in &staged.nodes {
        let runs = || node.job(JOB).plan.map(|plan| plan.label);
        wait::until_within(PATIENCE, || runs().map_or(Ok(()), Err)).unwrap();
    }
}

#[test]
fn who_waits_for_a_swap_of_a_job_that_is_requeued_meanwhile_is_told_so() {
    let Some(staged) = Staged::start_with(|_| Setup::default()) else { return };
    let [_, plan] = frontier(&staged.nodes[1], "1.15x");
    let step = staged.nodes[1].job(JOB).ranks.iter().filter_map(|rank| rank.step).max().unwrap();
    let step = (step + 40).to_string();
    let swap = ["plan", "swap", JOB, &plan, "--at-step", &step, "--wait"];
    let waiting = staged.nodes[1].begin_pfoctl(&Identity::own(), &swap);
    let outcome = || staged.whole(1).swap.map(|swap| swap.outcome);
    let is_committed = || (outcome() == Some(FleetOutcome::Committed)).then_some(());
    wait::until_within(PATIENCE, || is_committed().ok_or_else(outcome)).unwrap();

    let staged = staged.requeued();
    let told = waiting.wait_with_output().unwrap();
    let error = String::from_utf8(told.stderr).unwrap();
    assert_eq!(told.status.code(), Some(7), "{error}");
    assert!(error.contains("another run of it has begun"), "{error}");
    staged.training.stop();
}

#[test]
fn a_job_that_is_requeued_in_a_trial_does_not_go_on_with_what_was_tried() {
    let Some(staged) = Staged::start_with(|_| Setup::default()) else { return };
    let [_, own] = frontier(&staged.nodes[1], "1.15x");
    let plans = staged.nodes[1].directory().join("plans");
    fs::create_dir(&plans).unwrap();
    fs::copy(own, plans.join("tried.json")).unwrap();
    let csv = plans.join("measured.csv").display().to_string();
    let plans = plans.display().to_string();
    let sweep = ["plan", "sweep", JOB, &plans, "--steps", "60", "-o", &csv];
    let mut asked = staged.nodes[1].begin_pfoctl(&Identity::own(), &sweep);
    staged.assert_all_run("tried.json");

    let Staged { training, nodes, store } = staged;
    training.stop();
    asked.kill().unwrap();
    asked.wait().unwrap();
    let staged = Staged { training: train(&nodes, 1, &[]), nodes, store };
    until_at_default_clocks(&staged);
    staged.training.stop();
}
