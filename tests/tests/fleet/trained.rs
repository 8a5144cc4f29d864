//! A training of two replicas with four stages each, over four nodes or on one.

use std::ops::Range;
use std::path::PathBuf;

use pfo_tests::{
    EtcdCluster, EtcdSetup, Identity, MachineSetup, Node, STAGES, Setup, Training, wait,
};
use serde_json::Value;

use super::cluster::{JOB, NODES, PATIENCE, start_node};
use super::staged::{MICROBATCHES, TIME_SCALE, tune, until_nodes_run};

pub(crate) const REPLICAS: usize = 2;

/// Steps of which the energy is compared.
const COMPARED: u64 = 16;

/// The training, and the nodes that it is on, with two ranks on each of several.
pub(crate) struct Trained {
    pub(crate) training: Training,
    pub(crate) nodes: Vec<Node>,
    _store: Option<EtcdCluster>,
}

impl Trained {
    /// Over four nodes, whose agents share three members of etcd. None, which is said, where etcd is not
    /// installed.
    pub(crate) fn over_nodes() -> Option<Self> {
        let setup = EtcdSetup { members: 3, ..EtcdSetup::default() };
        let store = EtcdCluster::start(&setup)?;
        let nodes = NODES.iter().map(|name| start_node(name, &store, None)).collect();
        let trained = Self::start(nodes, Some(store));
        for node in &trained.nodes {
            wait::until_ok("every node has the whole job", || {
                let job =
                    node.find_watched(JOB).and_then(|job| job.fleet).ok_or_else(String::new)?;
                let is_there = job.nodes.len() == NODES.len() && job.problem.is_none();
                if is_there { Ok(()) } else { Err(format!("{job:?}")) }
            });
        }
        Some(trained)
    }

    /// The same ranks on one node.
    pub(crate) fn on_one_node() -> Self {
        let machine = MachineSetup { gpus: "8xA40", ..MachineSetup::default() };
        let mut node = Node::create(&Setup { machine, ..Setup::default() });
        node.start_daemon();
        node.start_agent();
        Self::start(vec![node], None)
    }

    fn start(nodes: Vec<Node>, store: Option<EtcdCluster>) -> Self {
        let ranks = STAGES as usize * REPLICAS;
        let on_each = ranks / nodes.len();
        let list = |of: &dyn Fn(usize) -> String| (0..ranks).map(of).collect::<Vec<_>>().join(",");
        let of_node = |path: &dyn Fn(&Node) -> PathBuf| {
            list(&|rank| path(&nodes[rank / on_each]).display().to_string())
        };
        let state = of_node(&|node| node.machine.state().to_owned());
        let socket = of_node(&Node::socket);
        let (gpus, replicas) = (list(&|rank| (rank % on_each).to_string()), REPLICAS.to_string());
        let microbatches = MICROBATCHES.to_string();
        let options = [
            ["--state", &state, "--socket", &socket],
            ["--gpus", &gpus, "--replicas", &replicas],
            ["--time-scale", TIME_SCALE, "--microbatches", &microbatches],
        ];
        let training = Training::start(&nodes[0], JOB, &Identity::own(), &options.concat());
        let trained = Self { training, nodes, _store: store };
        trained.until_step(1);
        trained
    }

    /// Waits until every rank has begun a step.
    fn until_step(&self, step: u64) {
        let on_each = STAGES as usize * REPLICAS / self.nodes.len();
        for node in &self.nodes {
            let seen = wait::until_within(PATIENCE, || {
                let ranks = node.find_job(JOB).map(|job| job.ranks).unwrap_or_default();
                let begun = ranks.iter().filter(|rank| rank.step >= Some(step)).count();
                if begun == on_each { Ok(()) } else { Err(format!("{ranks:?}")) }
            });
            seen.unwrap_or_else(|ranks| panic!("no step {step}: {ranks}"));
        }
    }

    /// The step that was begun last.
    fn step(&self) -> u64 {
        let ranks = self.nodes.iter().flat_map(|node| node.job(JOB).ranks);
        ranks.filter_map(|rank| rank.step).max().unwrap_or(0)
    }

    /// Tunes, asked on some node; returns the report of what was kept.
    pub(crate) fn tune(&self, node: usize, arguments: &[&str]) -> Value {
        tune(&self.nodes[node], arguments)
    }

    /// Every node runs a plan, and the same one.
    pub(crate) fn assert_all_run(&self, label: &Value) {
        until_nodes_run(&self.nodes, |run| *label == *run);
    }

    /// Trains until it has been tuned, and some steps more; returns the share of a step's energy that it
    /// saves then, as the counters of the simulated GPUs say, with the report of tuning.
    pub(crate) fn saved_by(self, tune: impl FnOnce(&Self) -> Value) -> (f64, Value) {
        self.until_step(COMPARED + 2);
        let before = self.step();
        let report = tune(&self);
        self.assert_all_run(&report["kept"]["label"]);
        // The swap is over, and so is the step after it.
        let after = self.step() + 3;
        self.until_step(after + COMPARED + 1);
        let trained = self.training.stop();
        let iterations = trained["iterations"].as_array().unwrap();
        let median_j = |steps: Range<u64>| {
            let of = |iteration: &&Value| steps.contains(&iteration["step"].as_u64().unwrap());
            let energies =
                iterations.iter().filter(of).map(|step| step["energy_j"].as_f64().unwrap());
            let mut energies: Vec<f64> = energies.collect();
            energies.sort_by(f64::total_cmp);
            energies[energies.len() / 2]
        };
        let (default_j, kept_j) = (median_j(2..before), median_j(after..after + COMPARED));
        (1.0 - kept_j / default_j, report)
    }
}
