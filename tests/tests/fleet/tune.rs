//! `pfoctl tune` of a training over four nodes: it saves what the simulator's tables say, on all of them.

use pfo_planner::{LowerBound, Pipeline, Policy, Profile, Schedule, Watts};
use pfo_tests::{EtcdCluster, EtcdSetup, Identity, Node, Training, kept_plan, true_profile, wait};
use serde_json::Value;

use super::cluster::{JOB, NODES, PATIENCE, STAGES, start_node};

const MICROBATCHES: u32 = 4;
const P2P_POWER: Watts = Watts(70.38);
const TIME_SCALE: &str = "0.05";

/// A training whose stages are on a node each.
struct Bench {
    training: Training,
    nodes: Vec<Node>,
    _store: EtcdCluster,
}

impl Bench {
    /// None, which is said, where etcd is not installed.
    fn start() -> Option<Self> {
        let store = EtcdCluster::start(&EtcdSetup::default())?;
        let nodes: Vec<_> = NODES.iter().map(|name| start_node(name, &store, None)).collect();
        let paths = |of: &dyn Fn(&Node) -> std::path::PathBuf| {
            let paths = nodes.iter().map(|node| of(node).display().to_string());
            paths.collect::<Vec<_>>().join(",")
        };
        let state = paths(&|node| node.machine.state().to_owned());
        let (socket, microbatches) = (paths(&Node::socket), MICROBATCHES.to_string());
        let options = ["--state", &state, "--socket", &socket, "--time-scale", TIME_SCALE];
        let options = [&options[..], &["--microbatches", &microbatches]].concat();
        let training = Training::start(&nodes[0], JOB, &Identity::own(), &options);
        for node in &nodes {
            wait::until_ok("every node has the whole job", || {
                let job =
                    node.find_watched(JOB).and_then(|job| job.fleet).ok_or_else(String::new)?;
                let is_there = job.nodes.len() == NODES.len() && job.problem.is_none();
                let steps = node.job(JOB).ranks.iter().all(|rank| rank.step >= Some(1));
                if is_there && steps { Ok(()) } else { Err(format!("{job:?}")) }
            });
        }
        Some(Self { training, nodes, _store: store })
    }

    /// Tunes, asked on some node; returns the report of what was kept.
    fn tune(&self, node: usize, arguments: &[&str]) -> Value {
        let tune = [&["tune", JOB, "--rounds", "2", "--json"], arguments].concat();
        let ran = self.nodes[node].pfoctl(&Identity::own(), &tune);
        // On a busy machine step times may scatter too much for certainty.
        assert!(matches!(ran.code, Some(0 | 6)), "{ran:?}");
        ran.json()
    }

    /// Every node runs a plan, and the same one.
    fn assert_all_run(&self, label: &Value) {
        for node in &self.nodes {
            let runs = || node.job(JOB).plan.map(|plan| Value::from(plan.label));
            let run = wait::until_within(PATIENCE, || match runs() {
                Some(run) if run == *label => Ok(()),
                other => Err(other),
            });
            run.unwrap_or_else(|other| panic!("{other:?} instead of {label}"));
        }
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_job_over_four_nodes_saves_what_is_possible_within_the_slowdown_asked_for() {
    const MAX_SLOWDOWN: f64 = 0.04;
    let Some(bench) = Bench::start() else { return };
    let csv = true_profile(TIME_SCALE);
    let file = bench.nodes[1].plan_file("profile.csv", csv.as_bytes());
    let (microbatches, power) = (MICROBATCHES.to_string(), P2P_POWER.0.to_string());
    let given = ["--profile", &file, "--microbatches", &microbatches, "--p2p-power", &power];
    let report = bench.tune(1, &[&given[..], &["--max-slowdown", "4%"]].concat());
    let kept = kept_plan(&report);
    assert!(number(&kept["slowdown"]["estimate"]) <= MAX_SLOWDOWN, "{report}");
    let profile = Profile::from_csv(csv.as_bytes()).unwrap();
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, MICROBATCHES).unwrap();
    let all_max = Policy::AllMax.outcome(&pipeline, P2P_POWER, &|_| {}).unwrap();
    let all_max = all_max.plans[0].predicted.unwrap();
    // The energy is that of all nodes.
    let default_j = number(&report["default_clocks"]["iteration_energy_j"]);
    assert!((default_j / all_max.iteration_energy_j - 1.0).abs() < 0.15, "{report}");
    let predicted_s = number(&kept["predicted_time_s"]);
    let least_j = LowerBound::new(&pipeline, P2P_POWER).energy_j(predicted_s);
    let possible = 1.0 - least_j / all_max.iteration_energy_j;
    let saving = &kept["saving"];
    assert!(number(&saving["high"]) > possible - 0.01, "not {possible}: {report}");
    assert!(number(&saving["low"]) < possible + 0.01, "not {possible}: {report}");
    assert!((number(&saving["estimate"]) - possible).abs() < 0.03, "not {possible}: {report}");
    let why = report["unguarded"].as_str().unwrap_or_default();
    assert!(why.contains("has ranks on other nodes"), "{report}");
    bench.assert_all_run(&report["kept"]["label"]);
    bench.training.stop();
}

#[test]
fn a_job_over_four_nodes_is_swept_and_tuned_with_one_command() {
    let Some(bench) = Bench::start() else { return };
    let short = ["--max-slowdown", "50%", "--sweep-stride", "350", "--sweep-steps", "2"];
    let report = bench.tune(0, &short);
    assert_eq!(report["profile_origin"], "measured", "{report}");
    let power_w = number(&report["p2p_power"]["watts"]);
    assert!((power_w / P2P_POWER.0 - 1.0).abs() < 0.1, "{report}");
    let kept = kept_plan(&report);
    assert!(number(&kept["saving"]["low"]) > 0.0, "{report}");
    bench.assert_all_run(&report["kept"]["label"]);
    // The profile has the rows of every stage.
    let profiles = bench.nodes[0].pfoctl(&Identity::own(), &["profile", "export", JOB]).printed();
    let has = |stage: u32| profiles.lines().any(|row| row.starts_with(&format!("{stage},")));
    assert!((0..STAGES).all(has), "{profiles}");
    let ran = bench.nodes[3].pfoctl(&Identity::own(), &["plan", "rollback", JOB, "--wait"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    bench.training.stop();
}
