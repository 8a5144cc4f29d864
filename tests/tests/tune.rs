//! `pfoctl tune` and `plan sweep` on a training, with the true tables of the simulator as its profile.

use std::process::Child;

use nvidia_ml::machine::MachinePlan;
use pfo_planner::{LowerBound, Pipeline, Plan, Policy, Profile, Schedule, Watts};
use pfo_tests::{
    Identity, MachineSetup, Node, Ran, STAGES, Setup, Training, honest, kept_plan, profile_of,
    true_profile,
};
use serde_json::Value;

const JOB: &str = "job";
const MICROBATCHES: u32 = 4;
const P2P_POWER: Watts = Watts(70.38);

/// Of instructions long enough that what else the machine does matters little.
const TIME_SCALE: &str = "0.05";

/// A training of unequal stages, and its true profile.
struct Bench {
    node: Node,
    training: Training,
    profile: String,
}

impl Bench {
    fn start() -> Self {
        Self::on(MachineSetup::default(), TIME_SCALE)
    }

    fn on(machine: MachineSetup, time_scale: &str) -> Self {
        Self::with_transfers(machine, time_scale, 0.0)
    }

    fn with_transfers(machine: MachineSetup, time_scale: &str, transfer_ms: f64) -> Self {
        let node = Node::start_with(&Setup { machine, ..Setup::default() });
        let profile = node.plan_file("profile.csv", true_profile(time_scale).as_bytes());
        let microbatches = MICROBATCHES.to_string();
        let transfer_ms = transfer_ms.to_string();
        let scaled = ["--microbatches", &microbatches, "--time-scale", time_scale];
        let options = [&scaled[..], &["--transfer-ms", &transfer_ms]].concat();
        let training = Training::start(&node, JOB, &Identity::own(), &options);
        training.until_leased(&node);
        training.until_step(&node, 1);
        Self { node, training, profile }
    }

    fn pipeline(&self) -> Pipeline {
        let csv = std::fs::read(&self.profile).unwrap();
        let profile = Profile::from_csv(csv.as_slice()).unwrap();
        Pipeline::new(&profile, Schedule::OneForwardOneBackward, MICROBATCHES).unwrap()
    }

    /// Tunes with nothing given but how thoroughly, and these.
    fn tune_alone(&self, arguments: &[&str]) -> Ran {
        let tune = ["tune", JOB, "--max-slowdown", "50%", "--set", "rounds=4", "--json"];
        let sweep = ["--set", "sweep_stride=350", "--set", "sweep_steps=2"];
        let given = [&tune[..], &sweep, arguments].concat();
        self.node.pfoctl(&Identity::own(), &given)
    }

    fn tune(&self, arguments: &[&str]) -> Child {
        let microbatches = format!("microbatches={MICROBATCHES}");
        let power = format!("p2p_power_w=[{}]", P2P_POWER.0);
        let tune = ["tune", JOB, "--profile", &self.profile, "--set", &microbatches];
        let given = [&tune[..], &["--set", &power, "--json"], arguments].concat();
        self.node.begin_pfoctl(&Identity::own(), &given)
    }

    fn until_at_default_clocks(&self) {
        self.node.until_is("the job's plan", &None, || self.node.job(JOB).plan);
        self.node.until_is("GPUs with a lock", &0, || {
            (0..STAGES as usize).filter(|&gpu| self.node.machine.sm_lock(gpu).is_some()).count()
        });
    }
}

/// The share by which the steps of the first plan took longer or shorter than predicted.
fn off_prediction(report: &Value) -> f64 {
    let tried = &report["tried"][0];
    let default_s = number(&report["default_clocks"]["iteration_time_s"]);
    let took_s = default_s * (1.0 + number(&tried["slowdown"]["estimate"]));
    (number(&tried["predicted_time_s"]) / took_s - 1.0).abs()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_tuned_job_runs_the_plan_that_is_kept_and_a_page_shows_it() {
    let bench = Bench::start();
    let plan = bench.node.directory().join("kept.json").display().to_string();
    let page = bench.node.directory().join("page.html").display().to_string();
    let tune = ["--max-slowdown", "50%", "--output", &plan, "--report", &page];
    let report = Ran::from(bench.tune(&tune).wait_with_output().unwrap()).tune_report();
    let kept = kept_plan(&report);
    assert_eq!(number(&report["guard"]["max_slowdown"]), 0.5, "{report}");
    assert_eq!(report["correctable"], true, "{report}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Intervals: 95 %") && page.contains("Saving"), "{page}");
    assert_eq!(page.matches("<svg ").count(), 4, "{page}");
    let plan = Plan::from_json(&std::fs::read(plan).unwrap()).unwrap();
    let written = plan.predicted.map(|predicted| predicted.iteration_time_s);
    assert_eq!(kept["predicted_time_s"].as_f64(), written, "{report}");
    let label = || bench.node.job(JOB).plan.map(|plan| Value::from(plan.label));
    bench.node.until_is("the plan", &Some(report["kept"]["label"].clone()), label);
    bench.training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn a_tuned_job_saves_what_is_possible() {
    let bench = Bench::start();
    // More than the cheapest plan takes: no step is near the limit.
    let ran = Ran::from(bench.tune(&["--max-slowdown", "50%"]).wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report = ran.json();
    let kept = kept_plan(&report);
    assert_eq!(kept["certain"], true, "{report}");
    assert!(number(&kept["slowdown"]["estimate"]) <= 0.5, "{report}");
    let pipeline = bench.pipeline();
    let all_max = Policy::AllMax.outcome(&pipeline, P2P_POWER, &|_| {}).unwrap();
    let all_max = all_max.plans[0].predicted.unwrap();
    let predicted_s = number(&kept["predicted_time_s"]);
    let least_j = LowerBound::new(&pipeline, P2P_POWER).energy_j(predicted_s);
    let possible = 1.0 - least_j / all_max.iteration_energy_j;
    let saving = &kept["saving"];
    assert!(number(&saving["high"]) > possible - 0.01, "not {possible}: {report}");
    assert!(number(&saving["low"]) < possible + 0.01, "not {possible}: {report}");
    assert!((number(&saving["estimate"]) - possible).abs() < 0.03, "not {possible}: {report}");
    bench.training.stop();
}

const SWEEPS: &str = "a sweep measures the profile of job job first";

#[test]
fn a_tune_without_a_profile_learns_while_the_job_runs_and_sweeps_nothing() {
    let bench = Bench::start();
    let tune = ["tune", JOB, "--max-slowdown", "50%", "--json"];
    let ran = bench.node.pfoctl(&Identity::own(), &tune);
    assert!(!ran.stderr.contains("a sweep"), "{ran:?}");
    let report = ran.tune_report();
    assert_eq!(report["profile_origin"], "learned", "{report}");
    kept_plan(&report);
    bench.training.stop();
}

#[test]
fn a_job_whose_profile_nobody_has_is_swept_first_if_a_sweep_is_asked_for_and_the_next_time_not() {
    let bench = Bench::start();
    let ran = bench.tune_alone(&[]);
    assert!(ran.stderr.contains(SWEEPS), "{ran:?}");
    let first = ran.tune_report();
    assert_eq!(first["profile_origin"], "measured", "{first}");
    assert_eq!(first["p2p_power"]["origin"], "waits", "{first}");
    let ran = bench.tune_alone(&[]);
    assert!(!ran.stderr.contains(SWEEPS), "{ran:?}");
    assert_eq!(ran.tune_report()["profile_origin"], "stored");
    bench.training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn transfers_and_the_power_of_waits_are_found_out_and_predictions_are_better_for_them() {
    const TRANSFER_MS: f64 = 8.0;
    let bench = Bench::with_transfers(MachineSetup::default(), TIME_SCALE, TRANSFER_MS);
    let first = bench.tune_alone(&[]).json();
    assert_eq!(first["transfers"]["from"], "measured", "{first}");
    let transfer_ms = 1e3 * number(&first["transfer_s"]);
    assert!((TRANSFER_MS..1.25 * TRANSFER_MS).contains(&transfer_ms), "{first}");
    let power_w = number(&first["p2p_power"]["watts"]);
    assert!((power_w / P2P_POWER.0 - 1.0).abs() < 0.1, "{first}");
    let without = bench.tune_alone(&["--set", "transfer_s=0"]).json();
    let [off, off_without] = [&first, &without].map(off_prediction);
    assert!(off < off_without, "{off} of {first}\nand {off_without} without of {without}");
    bench.training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn instructions_as_short_as_a_change_of_clocks_are_tuned_without_being_told_how_long_that_takes() {
    let machine = MachineSetup { set_latency_ms: 8, settle_ms: 23, ..MachineSetup::default() };
    let bench = Bench::on(machine, "0.1");
    let ran =
        bench.tune(&["--max-slowdown", "4%", "--set", "rounds=4"]).wait_with_output().unwrap();
    let ran = Ran::from(ran);
    let report = ran.json();
    assert!((number(&report["late_s"]) - 0.023).abs() < 0.002, "as it was measured: {report}");
    let kept = kept_plan(&report);
    assert!(number(&kept["saving"]["low"]) > 0.03, "{report}");
    assert!(number(&kept["slowdown"]["estimate"]) <= 0.04, "{report}");
    bench.training.stop();
}

#[test]
fn steps_shorter_than_the_counters_refreshes_are_tuned_by_enough_of_them() {
    let made = |plan| MachinePlan { warm: true, ..honest(plan) };
    let node = Node::start_with(&Setup {
        machine: MachineSetup { gpus: "4xA100", settle_ms: 15, made, ..MachineSetup::default() },
        // As in the shipped file.
        changes_per_second: 50,
        ..Setup::default()
    });
    let profile = profile_of("A100", &[], "0.02");
    let profile = node.plan_file("profile.csv", profile.as_bytes());
    let microbatches = MICROBATCHES.to_string();
    let options = ["--microbatches", &microbatches, "--time-scale", "0.02"];
    let training = Training::start(&node, JOB, &Identity::own(), &options);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let tune = ["tune", JOB, "--profile", &profile, "--max-slowdown", "30%", "--set", "rounds=4"];
    let report = node.pfoctl(&Identity::own(), &[&tune[..], &["--json"]].concat()).tune_report();
    // That of an A100 that waits is 83.64 W.
    let watts = number(&report["p2p_power"]["watts"]);
    assert!((50.0..120.0).contains(&watts), "{report}");
    for tried in report["tried"].as_array().unwrap() {
        let is_kept = tried["verdict"] == "kept";
        assert!(!is_kept || number(&tried["slowdown"]["estimate"]) <= 0.3, "{report}");
        assert!(!is_kept || number(&tried["saving"]["low"]) > 0.0, "{report}");
    }
    training.stop();
}

#[test]
fn plans_that_are_swept_are_measured_one_by_one() {
    let bench = Bench::start();
    let (_, csv) = swept(&bench);
    assert_eq!(std::fs::read_to_string(csv).unwrap().lines().count(), 4);
    bench.until_at_default_clocks();
    bench.training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn plans_that_are_swept_take_the_energy_that_they_predict() {
    let bench = Bench::start();
    let (measured, _) = swept(&bench);
    for plan in measured["plans"].as_array().unwrap() {
        let (energy_j, predicted_j) =
            (number(&plan["iteration_energy_j"]), number(&plan["predicted_energy_j"]));
        assert!((energy_j / predicted_j - 1.0).abs() < 0.05, "{measured}");
        assert!(energy_j < number(&measured["default_clocks"]["iteration_energy_j"]), "{measured}");
    }
    bench.training.stop();
}

/// Sweeps three plans of the true frontier: what was measured, and the table of it.
fn swept(bench: &Bench) -> (Value, String) {
    let frontier = bench.node.directory().join("frontier").display().to_string();
    let (microbatches, power) = (MICROBATCHES.to_string(), P2P_POWER.0.to_string());
    let optimize = ["plan", "optimize", &bench.profile, "--microbatches", &microbatches];
    let optimize = [&optimize[..], &["--p2p-power", &power, "-o", &frontier]].concat();
    bench.node.pfoctl(&Identity::own(), &optimize).printed();
    let csv = bench.node.directory().join("measured.csv").display().to_string();
    let sweep = ["plan", "sweep", JOB, &frontier, "--plans", "3", "--steps", "6", "-o", &csv];
    let ran = bench.node.pfoctl(&Identity::own(), &[&sweep[..], &["--json"]].concat());
    let measured: Value = serde_json::from_str(&ran.printed()).unwrap();
    assert_eq!(measured["plans"].as_array().unwrap().len(), 3, "{measured}");
    (measured, csv)
}
