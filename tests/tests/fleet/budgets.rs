//! One power budget for all nodes: a job over four of them and jobs of single ones stay below it, by the
//! counters of the simulated GPUs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_tests::{
    EtcdSetup, Identity, Link, MachineSetup, Node, Setup, Training, needs_root, true_frontier, wait,
};
use serde_json::Value;

use super::cluster::{JOB, NODES, PATIENCE};
use super::staged::{Staged, TIME_SCALE, frontier};

/// The node with the frontier of the job over all of them.
const PLANNED: usize = 1;

/// A job on one node, and that.
pub(crate) const LOCAL: &str = "local";
pub(crate) const AT: usize = 0;

/// What counters of nine seconds may be off by their refreshes, with one more for a correction.
pub(crate) const ROOM: f64 = 1.02;

/// Of how many bytes with this number the secret of the administrator's key is made, and what nodes list.
pub(crate) const KEY: u8 = 7;
macro_rules! listed_key {
    () => {
        "keys = [\"tests:ea4a6c63e29c520abef5507b132ec5f9954776aebebe7b92421eea691446d22c\"]\n"
    };
}
pub(crate) use listed_key;

/// A GPU for the stage of the job over all nodes, and four others.
pub(crate) fn setup(_: usize) -> Setup {
    Setup {
        machine: MachineSetup { gpus: "5xA40", ..MachineSetup::default() },
        agent_rules: concat!(
            "[budget]\nevery_s = 1\nsite_w_per_gpu = 10\nfleet = true\n",
            listed_key!()
        ),
        ..Setup::default()
    }
}

/// A file with a key, which is the administrator's alone.
pub(crate) fn key_file(node: &Node, number: u8) -> String {
    let secret = format!("{number:02x}").repeat(32);
    let content =
        format!("format = \"pfo-budget-key/1\"\nname = \"tests\"\nsecret = \"{secret}\"\n");
    let path = node.plan_file(&format!("key-{number}"), content.as_bytes());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let uid = Identity::administrator().uid.0;
    if uid != Identity::own().uid.0 {
        chown(&path, Some(uid), None).unwrap();
    }
    path
}

/// The watts of the sites of all GPUs.
pub(crate) const SITES_W: f64 = 10.0 * 5.0 * 4.0;

/// A training of the node's GPUs that the job over all nodes does not have, with a frontier.
pub(crate) fn local(node: &Node, number: usize, job: &str) -> Training {
    let gpus: Vec<String> =
        (0..5).filter(|gpu| *gpu != number).map(|gpu| gpu.to_string()).collect();
    let options = ["--time-scale", TIME_SCALE, "--gpus", &gpus.join(",")];
    let training = Training::start(node, job, &Identity::own(), &options);
    training.until_leased(node);
    training.until_step(node, 2);
    training
}

/// Loads a frontier for the job over all nodes, and starts another job that has one.
pub(crate) fn beside_the_whole(nodes: &[Node]) -> Training {
    let [whole, _] = frontier(&nodes[PLANNED], "1.2x");
    load(&nodes[PLANNED], JOB, &whole);
    let other = local(&nodes[AT], AT, LOCAL);
    load(&nodes[AT], LOCAL, &true_frontier(&nodes[AT], TIME_SCALE));
    other
}

pub(crate) fn load(node: &Node, job: &str, frontier: &str) {
    let _ = node.pfoctl(&Identity::own(), &["plan", "load", job, frontier]).printed();
}

/// What an administrator does, who signs what is of the fleet.
pub(crate) fn admin(node: &Node, arguments: &[&str]) -> String {
    let key = key_file(node, KEY);
    let is_signed = arguments.iter().any(|argument| argument.starts_with("fleet"));
    let signing = if is_signed { &["--key", &key][..] } else { &[] };
    node.pfoctl(&Identity::administrator(), &[arguments, signing].concat()).printed()
}

pub(crate) fn status(node: &Node) -> Value {
    node.pfoctl(&Identity::administrator(), &["budget", "status", "--json"]).json()
}

/// What all GPUs of all nodes drew for a while, and their sites, in watts.
pub(crate) fn drawn_w(nodes: &[Node], seconds: f64) -> f64 {
    let counted_j = || {
        let of_node = |node: &Node| {
            (0..node.machine.gpu_count()).map(|gpu| node.machine.energy_j(gpu)).sum::<f64>()
        };
        nodes.iter().map(of_node).sum::<f64>()
    };
    let (began, before_j) = (Instant::now(), counted_j());
    sleep(Duration::from_secs_f64(seconds));
    SITES_W + (counted_j() - before_j) / began.elapsed().as_secs_f64()
}

/// Waits until less is drawn than this, and checks that it stays so.
pub(crate) fn until_below(nodes: &[Node], budget_w: f64) -> f64 {
    let began = Instant::now();
    let below = wait::until_within(PATIENCE, || match drawn_w(nodes, 1.0) {
        drawn_w if drawn_w < budget_w => Ok(()),
        drawn_w => Err(drawn_w),
    });
    below.unwrap_or_else(|drawn_w| panic!("{drawn_w} W of {budget_w} W: {}", status(&nodes[0])));
    let took_s = began.elapsed().as_secs_f64();
    let drawn_w = drawn_w(nodes, 8.0);
    assert!(drawn_w < ROOM * budget_w, "{drawn_w} W of {budget_w} W: {}", status(&nodes[0]));
    println!("below {budget_w:.0} W after {took_s:.1} s: {drawn_w:.0} W for 8 s");
    took_s
}

pub(crate) fn label(node: &Node, job: &str) -> Option<String> {
    node.job(job).plan.map(|plan| plan.label)
}

pub(crate) fn is_slowed(node: &Node, job: &str) -> bool {
    label(node, job).is_some_and(|label| label.contains(" in budget ") || label.contains("all at"))
}

/// Waits until every node says the same of a job.
pub(crate) fn until_said_alike(nodes: &[Node], job: &str) {
    let said = |node: &Node| {
        let explain = ["budget", "explain", job, "--json"];
        let ran = node.pfoctl(&Identity::administrator(), &explain).json();
        let of = |of: &str| ran[of].to_string();
        // What it gives up may be that of the decision before.
        let given_w = ran["given_w"].as_f64().unwrap_or_default();
        (["job", "scope", "steering", "weight", "reason"].map(of), given_w)
    };
    let alike = wait::until_within(PATIENCE, || {
        let all: Vec<_> = nodes.iter().map(said).collect();
        let (first, first_w) = all[0].clone();
        let is_alike = |(said, given_w): &([String; 5], f64)| {
            *said == first && (given_w - first_w).abs() <= 0.1 * first_w.max(100.0)
        };
        if all.iter().all(is_alike) { Ok((first, first_w)) } else { Err(all) }
    });
    let (said, given_w) = alike.unwrap_or_else(|all| panic!("{all:?}"));
    println!("every node says of {job}: {said:?}, {given_w:.0} W given up");
}

/// The node that decides, as its journal says.
fn decider(nodes: &[Node], except: Option<usize>) -> usize {
    let decides = |number: &usize| {
        let log = nodes[*number].agent_log();
        let began = log.rfind("this node decides for the power budgets");
        let ended = log.rfind("another node decides for the power budgets");
        Some(*number) != except && began.is_some() && began > ended
    };
    let found = wait::until_within(PATIENCE, || (0..nodes.len()).find(decides).ok_or(()));
    found.unwrap_or_else(|()| panic!("nobody decides: {}", nodes[0].agent_log()))
}

/// The GPUs of a node that a power limit below their own holds.
pub(crate) fn limited(node: &Node) -> usize {
    let machine = &node.machine;
    (0..machine.gpu_count())
        .filter(|gpu| machine.power_limit_w(*gpu) < machine.default_power_limit_w(*gpu))
        .count()
}

#[test]
fn all_nodes_stay_below_one_budget_whoever_decides_and_run_their_own_again_without_it() {
    needs_root!();
    let Some(mut staged) = Staged::start_with(setup) else { return };
    let other = beside_the_whole(&staged.nodes);
    let full_w = drawn_w(&staged.nodes, 3.0);
    let budget_w = SITES_W + 0.88 * (full_w - SITES_W);

    let user =
        staged.nodes[2].pfoctl(&Identity::trainer(), &["budget", "set", "1kW", "--for", "fleet"]);
    assert!(user.stderr.contains("may not set power budgets"), "{user:?}");
    let set = ["budget", "set", &format!("{budget_w:.0}W"), "--for", "fleet"];
    let said = admin(&staged.nodes[2], &set);
    assert!(said.contains("fleet"), "{said}");
    until_below(&staged.nodes, budget_w);
    assert!(is_slowed(&staged.nodes[AT], LOCAL) || is_slowed(&staged.nodes[AT], JOB));
    for job in [JOB, LOCAL] {
        until_said_alike(&staged.nodes, job);
    }
    // Dear enough that both have to give.
    let less_w = SITES_W + 0.8 * (full_w - SITES_W);
    let less = ["budget", "set", &format!("{less_w:.0}W"), "--for", "fleet"];
    let _ = admin(&staged.nodes[3], &less);
    until_below(&staged.nodes, less_w);
    staged.until_all_run(|label| label.contains(" in budget "));
    assert!(is_slowed(&staged.nodes[AT], LOCAL), "{}", status(&staged.nodes[AT]));

    let killed = decider(&staged.nodes, None);
    staged.nodes[killed].kill_agent();
    let next = decider(&staged.nodes, Some(killed));
    println!("{} decided, then {}", NODES[killed], NODES[next]);
    until_below(&staged.nodes, less_w);
    staged.nodes[killed].start_agent();
    until_below(&staged.nodes, less_w);
    until_said_alike(&staged.nodes, JOB);

    let _ = admin(&staged.nodes[(next + 1) % NODES.len()], &["budget", "clear", "--for", "fleet"]);
    for node in &staged.nodes {
        let own = wait::until_within(PATIENCE, || match label(node, JOB) {
            None => Ok(()),
            other => Err(other),
        });
        own.unwrap_or_else(|label| panic!("it runs {label:?} without a budget"));
        node.until_is("GPUs with a power limit", &0, || limited(node));
    }
    staged.nodes[AT].until_is("default clocks", &None, || label(&staged.nodes[AT], LOCAL));
    assert_eq!(status(&staged.nodes[0])["budgets"].as_array().unwrap().len(), 0);
    other.stop();
    staged.training.stop();
}

/// The node behind the link.
const BEHIND: usize = 3;

#[test]
fn a_node_that_is_cut_off_keeps_its_share_and_the_sum_stays_below_the_budget() {
    needs_root!();
    let Some(link) = Link::create() else { return };
    let etcd = EtcdSetup { address: Some(link.address()), ..EtcdSetup::default() };
    let Some(staged) = Staged::start_over(&etcd, setup, Some((BEHIND, &link))) else { return };
    let nodes = &staged.nodes;
    let other = beside_the_whole(nodes);
    let full_w = drawn_w(nodes, 3.0);
    let budget_w = SITES_W + 0.85 * (full_w - SITES_W);
    let _ = admin(&nodes[0], &["budget", "set", &format!("{budget_w:.0}W"), "--for", "fleet"]);
    until_below(nodes, budget_w);

    link.cut();
    nodes[0].until_so("the others name it", || {
        let problem = status(&nodes[0])["budgets"][0]["problem"].clone();
        problem.as_str().is_some_and(|why| why.contains(NODES[BEHIND]))
    });
    nodes[BEHIND].until_so("it knows of its share", || {
        let problem = status(&nodes[BEHIND])["budgets"][0]["problem"].clone();
        problem.as_str().is_some_and(|why| why.contains("share"))
    });
    until_below(nodes, budget_w);
    // Nobody else hears of a job that arrives there.
    let one = ["--time-scale", TIME_SCALE, "--gpus", "0", "--stages", "1"];
    let mut arrived = Training::start(&nodes[BEHIND], "arrived", &Identity::own(), &one);
    nodes[BEHIND].until_so("power limits hold it", || limited(&nodes[BEHIND]) > 0);
    until_below(nodes, budget_w);

    link.mend();
    nodes[0].until_so("nobody is missed", || status(&nodes[0])["budgets"][0]["problem"].is_null());
    until_below(nodes, budget_w);
    let _ = admin(&nodes[BEHIND], &["budget", "clear", "--for", "fleet"]);
    for node in nodes {
        node.until_is("GPUs with a power limit", &0, || limited(node));
        node.until_is("default clocks", &None, || label(node, JOB));
    }
    arrived.process.kill();
    other.stop();
    staged.training.stop();
}
