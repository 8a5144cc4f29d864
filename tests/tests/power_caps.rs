//! GPUs that never hold their highest clocks, because their power is limited: a fact about these
//! clocks, and no fault.

use std::collections::BTreeMap;

use pfo_tests::{Identity, MachineSetup, Node, STAGES, Setup, Training, kept_plan};

const JOB: &str = "job";

/// Far below what an A100 draws for dense work at its highest clock, 1410 MHz.
const CAP_W: f64 = 250.0;

/// One that leaves clocks below those that it holds of which a plan has use.
const MILD_CAP_W: f64 = 320.0;

fn node() -> Node {
    Node::start_with(&Setup {
        machine: MachineSetup { gpus: "4xA100", ..MachineSetup::default() },
        ..Setup::default()
    })
}

/// A training whose instructions are long enough for whatever else the machine does.
fn train(node: &Node) -> Training {
    let options = ["--time-scale", "0.1", "--microbatches", "3"];
    let training = Training::start(node, JOB, &Identity::own(), &options);
    training.until_leased(node);
    training.until_step(node, 1);
    training
}

fn capped(cap_w: f64) -> (Node, Training) {
    let node = node();
    (0..STAGES as usize).for_each(|gpu| node.machine.limit_power(gpu, cap_w));
    let training = train(&node);
    (node, training)
}

/// The rows of a profile by their columns.
fn rows(csv: &str) -> Vec<BTreeMap<&str, &str>> {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    lines.map(|fields| header.iter().copied().zip(fields).collect()).collect()
}

fn number(row: &BTreeMap<&str, &str>, column: &str) -> f64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column} of {row:?}"))
}

/// Sweeps the job, and checks that what the cap holds back is measured for what it is, and found to be
/// throttled for most of its time.
fn assert_swept_as_held(node: &Node) {
    let start = ["profile", "start", JOB, "--wait", "--json", "--steps", "4"];
    let few = ["--stride", "60", "--min-mhz", "900"];
    let sweep = node.pfoctl(&Identity::own(), &[&start[..], &few].concat()).json();
    assert_eq!(sweep["state"]["ended"], "lowest_clock", "{sweep}");
    let remark = sweep["remark"].as_str().unwrap();
    assert!(remark.contains("where 1410 MHz was asked for"), "{remark}");

    let csv = node.pfoctl(&Identity::own(), &["profile", "export", JOB]).printed();
    let rows = rows(&csv);
    let at = |mhz: &'static str| rows.iter().filter(move |row| row["frequency"] == mhz);
    assert!(at("1410").count() > STAGES as usize, "most instructions have a row: {csv}");
    let (mut held, mut throttled) = (Vec::new(), Vec::new());
    for row in at("1410") {
        assert!(number(row, "observed_mhz") < 1380.0, "{row:?}");
        let share = number(row, "throttled");
        assert!(share > 0.4, "{row:?}");
        throttled.push(share);
        let power_w = number(row, "energy") / number(row, "time");
        assert!(power_w < 1.03 * CAP_W, "{row:?}");
        held.push(number(row, "observed_mhz"));
    }
    let throttled_share = throttled.iter().sum::<f64>() / throttled.len() as f64;
    assert!(throttled_share > 0.8, "{csv}");
    let highest = held.into_iter().fold(0.0, f64::max);
    for row in &rows {
        let (asked, observed) = (number(row, "frequency"), number(row, "observed_mhz"));
        assert!(observed <= asked && observed < highest + 8.0, "{row:?}");
        // Clocks between the highest and those that lead to the same were left out.
        assert!(asked == 1410.0 || asked < highest + 60.0, "{row:?}");
    }
    assert!(at("930").count() > 0, "{csv}");
    for row in at("930") {
        assert!(number(row, "throttled") < 0.1 && number(row, "observed_mhz") == 930.0, "{row:?}");
    }
}

#[test]
fn a_power_cap_is_measured_as_a_fact_about_the_clocks_that_it_holds_back() {
    let (node, training) = capped(CAP_W);
    assert_swept_as_held(&node);
    training.stop();
}

#[test]
fn a_driver_without_throttle_counters_is_asked_for_its_reasons() {
    let (node, training) = capped(CAP_W);
    node.machine.fault("nvmlDeviceGetFieldValues", "not-supported", None);
    assert_swept_as_held(&node);
    training.stop();
}

/// The highest clock of each stage that is of use to one of its instructions: the lowest one that
/// leads to the highest that it really has.
fn useful_mhz(rows: &[BTreeMap<&str, &str>]) -> Vec<u32> {
    let useful = |stage: &str, instruction: &str| {
        let of = |row: &&BTreeMap<&str, &str>| {
            (row["stage"], row["instruction"]) == (stage, instruction)
        };
        let observed: Vec<_> = rows
            .iter()
            .filter(of)
            .map(|row| (number(row, "frequency") as u32, number(row, "observed_mhz")))
            .collect();
        let highest = observed.iter().map(|(_, observed)| *observed).fold(0.0, f64::max);
        let leads_there = observed.iter().filter(|(_, observed)| *observed > 0.997 * highest);
        leads_there.map(|(asked, _)| *asked).min().unwrap_or(0)
    };
    let stages = (0..STAGES).map(|stage| stage.to_string());
    stages.map(|stage| useful(&stage, "forward").max(useful(&stage, "backward"))).collect()
}

#[test]
fn a_job_on_power_capped_gpus_is_tuned_below_the_clocks_that_they_do_not_hold() {
    let (node, training) = capped(MILD_CAP_W);
    let tune = ["tune", JOB, "--max-slowdown", "6%", "--set", "rounds=4", "--json"];
    let sweep = ["--set", "sweep_stride=60", "--set", "sweep_steps=4"];
    let ran = node.pfoctl(&Identity::own(), &[&tune[..], &sweep].concat());
    let report = ran.tune_report();
    let useful = &report["useful_clocks"];
    assert_eq!(useful["asked_mhz"], 1410, "{report}");
    assert!(useful["highest_mhz"].as_u64().unwrap() < 1380, "{report}");
    let slowdown = useful["slowdown"]["low"].as_f64().unwrap();
    assert!(slowdown < 0.02, "the highest useful clocks take no longer: {report}");
    let kept = kept_plan(&report);
    assert!(kept["saving"]["low"].as_f64().unwrap() > 0.0, "{report}");

    let csv = node.pfoctl(&Identity::own(), &["profile", "export", JOB]).printed();
    let useful = useful_mhz(&rows(&csv));
    assert!(useful.iter().any(|mhz| *mhz < 1410), "{csv}");
    let set = || (0..STAGES as usize).map(|gpu| node.machine.clocks_set(gpu));
    let before: Vec<usize> = set().map(|set| set.len()).collect();
    let step = node.job(JOB).ranks.iter().filter_map(|rank| rank.step).max().unwrap();
    training.until_step(&node, step + 4);
    for (gpu, set) in set().enumerate() {
        for mhz in set[before[gpu]..].iter().copied().chain(node.machine.sm_lock(gpu)) {
            assert!(mhz <= useful[gpu], "GPU {gpu} is asked for {mhz} MHz: {csv}");
        }
    }
    training.stop();
}

#[test]
fn a_gpu_without_an_energy_counter_shows_no_energy_and_is_refused_before_any_trial() {
    let node = node();
    node.machine.fault("nvmlDeviceGetTotalEnergyConsumption", "not-supported", Some(1));
    let training = train(&node);
    training.until_step(&node, 4);
    let uuid = node.machine.uuid(1);
    for command in ["tune", "profile start"] {
        let arguments: Vec<&str> = command.split(' ').chain([JOB]).collect();
        let ran = node.pfoctl(&Identity::own(), &arguments);
        assert_ne!(ran.code, Some(0), "{command}: {ran:?}");
        for words in ["no energy counter", uuid.as_str(), "rank 1"] {
            assert!(ran.stderr.contains(words), "{command}: no {words:?} in {ran:?}");
        }
    }
    for gpu in 0..STAGES as usize {
        assert_eq!(node.machine.clocks_set(gpu), [0; 0], "GPU {gpu}");
    }
    let status = node.pfoctl(&Identity::own(), &["status", "--json"]).json();
    let job = &status["jobs"][0];
    assert!(job["energy_j"].is_null() && job["ranks"][1]["energy_j"].is_null(), "{status}");
    assert!(job["ranks"][0]["energy_j"].as_f64().unwrap() > 0.0, "{status}");
    let window = &job["windows"][0];
    assert!(window["iteration_energy_j"].is_null(), "{status}");
    assert!(window["iteration_time_s"].as_f64().unwrap() > 0.0, "{status}");
    let text = node.pfoctl(&Identity::own(), &["status"]).printed();
    assert!(!text.contains(" 0 J"), "{text}");
    training.stop();
}
