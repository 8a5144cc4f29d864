//! What plans save in a training over four nodes: the ledger of each has the comparisons of the whole job,
//! and the joules of its own node.

use pfo_tests::{Identity, Node, Setup, wait};
use serde_json::Value;

use super::cluster::{JOB, NODES, PATIENCE};
use super::possible::number;
use super::staged::{Staged, frontier, pfoctl};

/// What the ledger of a node has of a plan.
fn savings(node: &Node, label: &str) -> Option<Value> {
    let all = node.pfoctl(&Identity::own(), &["savings", "--by", "plan", "--json"]).json();
    let rows = all["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["plan"] == label)?;
    Some(row["savings"].clone())
}

fn comparisons(node: &Node, label: &str) -> u64 {
    savings(node, label).map_or(0, |savings| savings["comparisons"].as_u64().unwrap())
}

/// The ledger of every node has as many comparisons of a plan.
fn until_compared(staged: &Staged, label: &str, so: impl Fn(u64) -> bool) {
    for (node, name) in staged.nodes.iter().zip(NODES) {
        let seen = wait::until_within(PATIENCE, || match comparisons(node, label) {
            count if so(count) => Ok(()),
            count => Err(count),
        });
        seen.unwrap_or_else(|count| panic!("{name} has {count} comparisons of {label}"));
    }
}

/// Waits until all nodes have measured steps of a plan, or at default clocks.
fn until_measured(staged: &Staged, plan: Option<&str>) {
    let measured = wait::until_within(PATIENCE, || {
        let windows = staged.whole(0).windows;
        let is_there = windows.iter().any(|window| window.plan.as_deref() == plan);
        if is_there { Ok(()) } else { Err(windows) }
    });
    measured.unwrap_or_else(|windows| panic!("nothing of {plan:?}: {windows:?}"));
}

/// A training over four nodes whose plan was compared with default clocks at least twice, on every node
/// as often.
fn compared() -> Option<(Staged, u64)> {
    // Compared more often than in earnest.
    let agent_rules = "[guard]\ndefault_steps_permille = 500\n";
    let staged = Staged::start_with(|_| Setup { agent_rules, ..Setup::default() })?;
    let [_, own] = frontier(&staged.nodes[1], "1.15x");
    until_measured(&staged, None);
    let _ = pfoctl(&staged.nodes[1], &["plan", "swap", JOB, &own, "--guard", "500%", "--wait"]);
    until_compared(&staged, "own.json", |count| count >= 2);
    let _ = pfoctl(&staged.nodes[2], &["plan", "guard", JOB, "--off"]);
    staged.assert_all_run("own.json");
    until_measured(&staged, Some("own.json"));
    let count = comparisons(&staged.nodes[0], "own.json");
    until_compared(&staged, "own.json", |other| other == count);
    Some((staged, count))
}

#[test]
fn comparisons_of_all_nodes_are_in_every_ledger_once() {
    let Some((mut staged, count)) = compared() else { return };
    // Whoever reads the store again counts nothing again.
    for node in [0, 1] {
        staged.nodes[node].kill_agent();
        staged.nodes[node].start_agent();
    }
    staged.assert_all_run("own.json");
    let steps = |node: &Node| number(&savings(node, "own.json").unwrap()["steps"]);
    let before = steps(&staged.nodes[0]);
    staged.nodes[0].until_so("the ledger counts on", || steps(&staged.nodes[0]) > before);
    until_compared(&staged, "own.json", |other| other == count);
    staged.training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn what_the_ledgers_of_all_nodes_saved_is_what_the_job_saves_and_no_joule_is_in_two() {
    let Some((staged, _)) = compared() else { return };
    // The mean of a few steps scatters as their counters do.
    let step = || staged.nodes[0].job(JOB).ranks.iter().filter_map(|rank| rank.step).max();
    let many = step().unwrap() + 40;
    staged.nodes[0].until_so("many steps are measured", || step() >= Some(many));
    let each: Vec<_> = staged.nodes.iter().map(|node| savings(node, "own.json").unwrap()).collect();
    let sum = |of: &dyn Fn(&Value) -> f64| each.iter().map(of).sum::<f64>();
    let step_j = sum(&|node| number(&node["energy_j"]) / number(&node["steps"]));
    let saved = sum(&|node| number(&node["saved"]["estimate_j"]));
    let saved = saved / sum(&|node| number(&node["compared_j"]));
    let windows = staged.whole(0).windows;
    let whole_j = |plan: Option<&str>| {
        let window = windows.iter().rfind(|window| window.plan.as_deref() == plan);
        window.and_then(|window| window.step.energy_j).unwrap()
    };
    let (default_j, plan_j) = (whole_j(None), whole_j(Some("own.json")));
    assert!((step_j / plan_j - 1.0).abs() < 0.05, "{step_j} J, {plan_j} J: {each:?}");
    let really = default_j / plan_j - 1.0;
    assert!((saved - really).abs() < 0.06, "{saved} saved, {really} really: {each:?}");
    for node in &each {
        // No node applies what its own stage saved: that of the first stage is another one's.
        let own = number(&node["saved"]["estimate_j"]) / number(&node["compared_j"]);
        assert!((own - saved).abs() < 0.03, "{own} and {saved}: {each:?}");
    }
    staged.training.stop();
}

#[test]
fn the_month_of_a_fleet_is_what_its_nodes_saved_once() {
    let Some((mut staged, _)) = compared() else { return };
    staged.training.stop();
    for node in &mut staged.nodes {
        node.until_so("the job has ended for the agent", || node.find_watched(JOB).is_none());
        // An agent that begins tells what its node saved.
        node.kill_agent();
        node.start_agent();
    }
    let month = |node: &Node, scope: &[&str]| {
        let arguments = [&["savings", "--by", "user", "--json"], scope].concat();
        node.pfoctl(&Identity::own(), &arguments).json()
    };
    let own_j: Vec<_> = staged
        .nodes
        .iter()
        .map(|node| number(&month(node, &["--since", "1d"])["total"]["energy_j"]))
        .collect();
    let all_j: f64 = own_j.iter().sum();
    let until_told = |node: &Node| {
        let told = wait::until_within(PATIENCE, || {
            let fleet = month(node, &["--fleet"]);
            let nodes = fleet["nodes"].as_array().map_or(0, Vec::len);
            let energy_j = number(&fleet["total"]["energy_j"]);
            let is_all = nodes == NODES.len() && (energy_j / all_j - 1.0).abs() < 1e-9;
            if is_all { Ok(()) } else { Err(fleet) }
        });
        told.unwrap_or_else(|fleet| panic!("not the {all_j} J of all nodes: {fleet}"));
    };
    assert!(own_j.iter().all(|own_j| *own_j > 0.0), "{own_j:?}");
    until_told(&staged.nodes[0]);
    // What is told again counts once, and a node that is gone keeps its months.
    drop(staged.nodes.remove(3));
    for node in 0..2 {
        staged.nodes[node].kill_agent();
        staged.nodes[node].start_agent();
        until_told(&staged.nodes[node]);
    }
}

#[test]
fn what_tune_compares_is_in_the_ledger_of_every_node() {
    let Some(staged) = Staged::start_with(|_| Setup::default()) else { return };
    let short = ["--max-slowdown", "50%", "--set", "sweep_stride=350", "--set", "sweep_steps=2"];
    let report = staged.tune(3, &[&short[..], &["--no-guard"]].concat());
    let label = report["kept"]["label"].as_str().unwrap();
    until_compared(&staged, label, |count| count >= 2);
    let counts: Vec<_> = staged.nodes.iter().map(|node| comparisons(node, label)).collect();
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}: {report}");
    staged.training.stop();
}
