//! A training whose stages are on a node each.

use std::path::PathBuf;
use std::process::Command;

use pfo_protocol::FleetJob;
use pfo_tests::programs::program;
use pfo_tests::{
    EtcdCluster, EtcdSetup, Identity, Link, Node, Ran, Setup, Training, kept_plan, true_profile,
    wait,
};
use serde_json::Value;

use super::cluster::{JOB, NODES, PATIENCE, start_node_with};

pub(crate) const MICROBATCHES: u32 = 4;
pub(crate) const TIME_SCALE: &str = "0.05";

/// A training whose stages are on a node each.
pub(crate) struct Staged {
    pub(crate) training: Training,
    pub(crate) nodes: Vec<Node>,
    pub(crate) store: EtcdCluster,
}

impl Staged {
    /// With a set-up of each node, by its number. None, which is said, where etcd is not installed.
    pub(crate) fn start_with(setup: impl Fn(usize) -> Setup) -> Option<Self> {
        Self::start_over(&EtcdSetup::default(), setup, None)
    }

    /// The same with some etcd, and one node behind a link.
    pub(crate) fn start_over(
        etcd: &EtcdSetup,
        setup: impl Fn(usize) -> Setup,
        link: Option<(usize, &Link)>,
    ) -> Option<Self> {
        let store = EtcdCluster::start(etcd)?;
        let nodes = NODES.iter().enumerate();
        let node = |(number, name): (usize, &&str)| {
            let link = link.filter(|(behind, _)| *behind == number).map(|(_, link)| link);
            start_node_with(&setup(number), name, &store, link)
        };
        let nodes: Vec<_> = nodes.map(node).collect();
        let training = train(&nodes, 0, &[]);
        Some(Self { training, nodes, store })
    }

    /// The same after its scheduler has requeued the training.
    pub(crate) fn requeued(self) -> Self {
        self.training.stop();
        Self { training: train(&self.nodes, 1, &[]), ..self }
    }

    /// The same without a node, which is gone with everything on it. Its stage is on the one after it.
    pub(crate) fn requeued_without(mut self, gone: usize) -> Self {
        self.training.stop();
        drop(self.nodes.remove(gone));
        Self { training: train(&self.nodes, 1, &[]), ..self }
    }

    /// The whole job as a node sees it.
    pub(crate) fn whole(&self, node: usize) -> FleetJob {
        self.nodes[node].find_watched(JOB).and_then(|job| job.fleet).unwrap()
    }

    /// Tunes, asked on some node; returns the report of what was kept.
    pub(crate) fn tune(&self, node: usize, arguments: &[&str]) -> Value {
        tune(&self.nodes[node], arguments)
    }

    /// Every node runs a plan, and the same one.
    pub(crate) fn assert_all_run(&self, label: &str) {
        self.until_all_run(|run| run == label);
    }

    /// Waits until every node runs such a plan.
    pub(crate) fn until_all_run(&self, is_so: impl Fn(&str) -> bool) {
        until_nodes_run(&self.nodes, is_so);
    }
}

/// Starts the training after `runs_before` restarts by its scheduler, with more options, and waits until
/// every node has the whole job. Of fewer nodes than stages, the second one has those that are left over.
pub(crate) fn train(nodes: &[Node], runs_before: usize, more: &[&str]) -> Training {
    let left_over = NODES.len() - nodes.len();
    let node_of = |stage: usize| match stage {
        0 => 0,
        _ => (stage - stage.min(left_over + 1)) + 1,
    };
    let paths = |of: &dyn Fn(&Node) -> PathBuf| {
        let paths = (0..NODES.len()).map(|stage| of(&nodes[node_of(stage)]).display().to_string());
        paths.collect::<Vec<_>>().join(",")
    };
    let state = paths(&|node| node.machine.state().to_owned());
    let (socket, microbatches) = (paths(&Node::socket), MICROBATCHES.to_string());
    let options = ["--state", &state, "--socket", &socket, "--time-scale", TIME_SCALE];
    let options = [&options[..], &["--microbatches", &microbatches], more].concat();
    let restarts = runs_before.to_string();
    let environment = [("SLURM_JOB_ID", "77"), ("SLURM_RESTART_COUNT", &*restarts)];
    let user = Identity::own();
    // Each has a log of its own.
    let at = &nodes[runs_before % nodes.len()];
    let training = Training::start_in(at, JOB, &user, (0, &environment), &options);
    for node in nodes {
        wait::until_within(PATIENCE, || {
            let job = node.find_watched(JOB).and_then(|job| job.fleet).ok_or_else(String::new)?;
            let is_there = job.nodes.len() == nodes.len() && job.problem.is_none();
            let steps = node.job(JOB).ranks.iter().all(|rank| rank.step >= Some(1));
            if is_there && steps { Ok(()) } else { Err(format!("{job:?}")) }
        })
        .unwrap_or_else(|job| panic!("a node does not have the whole job: {job}"));
    }
    training
}

/// The frontier of the training, and a plan of it that is slower than the fastest one, as files of a node.
pub(crate) fn frontier(node: &Node, slower: &str) -> [String; 2] {
    let run = |command: &mut Command| drop(Ran::from(command.output().unwrap()).printed());
    let profile = node.plan_file("profile.csv", true_profile(TIME_SCALE).as_bytes());
    let in_directory = |name: &str| node.directory().join(name).display().to_string();
    let (frontier, own) = (in_directory("f.frontier"), in_directory("own.json"));
    let microbatches = MICROBATCHES.to_string();
    let mut optimize = Command::new(program("pfoctl"));
    optimize.args(["plan", "optimize", &profile, "--microbatches", &microbatches]);
    run(optimize.args(["--p2p-power", "70", "-o", &frontier]));
    let mut export = Command::new(program("pfoctl"));
    run(export.args(["plan", "export", &frontier, "--deadline", slower, "-o", &own]));
    [frontier, own]
}

/// Tunes the training, asked on a node; returns the report of what was kept.
pub(crate) fn tune(node: &Node, arguments: &[&str]) -> Value {
    tuned(node, &[&["tune", JOB, "--set", "rounds=4", "--json"], arguments].concat())
}

/// The same with the plans of another system.
pub(crate) fn compare(node: &Node, arguments: &[&str]) -> Value {
    tuned(node, &[&["compare", "tune", JOB, "--rounds", "4", "--json"], arguments].concat())
}

fn tuned(node: &Node, command: &[&str]) -> Value {
    let report = node.pfoctl(&Identity::own(), command).tune_report();
    kept_plan(&report);
    report
}

/// Waits until each of the nodes runs such a plan.
pub(crate) fn until_nodes_run(nodes: &[Node], is_so: impl Fn(&str) -> bool) {
    for node in nodes {
        let runs = || node.job(JOB).plan.map(|plan| plan.label);
        let run = wait::until_within(PATIENCE, || match runs() {
            Some(run) if is_so(&run) => Ok(()),
            other => Err(other),
        });
        run.unwrap_or_else(|other| panic!("a node runs {other:?}"));
    }
}

/// What `pfoctl` prints on a node.
pub(crate) fn pfoctl(node: &Node, arguments: &[&str]) -> String {
    node.pfoctl(&Identity::own(), arguments).printed()
}
