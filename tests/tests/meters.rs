//! Energy counters that are wrong: the GPU and the reason are named, and nothing is computed from them.

use std::time::{Duration, Instant};

use pfo_protocol::{MeterStatus, Window};
use pfo_tests::metrics_node::{MetricsNode, samples};
use pfo_tests::{Identity, Node, Ran, STAGES, Training};

const JOB: &str = MetricsNode::JOB;
const COUNTER: &str = "nvmlDeviceGetTotalEnergyConsumption";

/// The GPU whose counter goes wrong.
const GPU: usize = 1;

fn meter(node: &Node) -> Option<MeterStatus> {
    node.status().gpus[GPU].meter.clone()
}

/// The window that is running on.
fn newest(node: &Node) -> Window {
    node.job(JOB).windows.last().unwrap().clone()
}

/// Waits until the counter is in doubt, and returns why.
fn until_in_doubt(node: &Node) -> String {
    node.until("the counter is in doubt", || {
        let meter = meter(node).filter(|meter| meter.withheld);
        meter.map(|meter| meter.reason).ok_or_else(|| "it is believed".to_owned())
    })
}

/// Waits until the next step of the rank has taken the energy out of the window.
fn until_without_energy(node: &Node) {
    node.until_is("the energy of a step", &None, || newest(node).iteration_energy_j);
}

fn refused(node: &Node, command: &[&str]) -> Ran {
    let ran = node.pfoctl(&Identity::own(), &[command, &[JOB]].concat());
    assert_ne!(ran.code, Some(0), "{ran:?}");
    ran
}

/// A node with a job that runs a plan, whose meters all count.
fn training() -> (MetricsNode, Training) {
    let served = MetricsNode::start();
    let training = served.train();
    served.node.until_so("energy is measured", || {
        let windows = served.node.job(JOB).windows;
        windows.last().and_then(|window| window.iteration_energy_j).is_some_and(|j| j > 0.0)
    });
    assert!(served.node.status().gpus.iter().all(|gpu| gpu.meter.is_none()));
    (served, training)
}

#[test]
fn a_counter_that_falls_while_a_plan_runs_makes_no_figure_negative_and_none_smaller() {
    let (served, training) = training();
    let node = &served.node;
    node.machine.fault(COUNTER, "scaled:1", Some(GPU));
    let (began, mut highest_j) = (Instant::now(), 0.0f64);
    // What is left of the counter counts a hundredth, too.
    while !meter(node).is_some_and(|meter| meter.withheld) {
        assert!(began.elapsed() < Duration::from_secs(150), "it is never in doubt");
        let job = node.job(JOB);
        let ranks_j = job.ranks.iter().filter_map(|rank| rank.energy_j);
        let windows_j = job.windows.iter().filter_map(|window| window.iteration_energy_j);
        assert!(ranks_j.chain(windows_j).all(|energy_j| energy_j >= 0.0), "{job:?}");
        let page = samples(&served.page());
        let series = page.iter().find(|(series, _)| {
            series.starts_with("pfo_job_energy_joules_total")
                && series.contains(node.machine.uuid(GPU).as_str())
        });
        let energy_j = series.map_or(highest_j, |(_, energy_j)| *energy_j);
        assert!(energy_j >= highest_j, "{energy_j} J after {highest_j} J");
        highest_j = energy_j;
    }
    until_without_energy(node);
    assert_eq!(node.job(JOB).energy_j, None, "no figure leaves a GPU out");
    assert_eq!(node.rank(JOB, GPU as u32).energy_j, None);
    assert!(node.rank(JOB, 0).energy_j.unwrap() > 0.0);
    training.stop();
}

#[test]
fn a_fall_is_named_and_the_figures_go_on_without_it() {
    let (served, training) = training();
    let node = &served.node;
    let before_j = node.rank(JOB, GPU as u32).energy_j.unwrap();
    // Without its highest bit.
    let highest = node.machine.gpu(GPU).energy_mj().unwrap().ilog2();
    node.machine.fault(COUNTER, &format!("wraps:{highest}"), Some(GPU));
    let meter =
        node.until("the fall is named", || meter(node).ok_or_else(|| "it is not".to_owned()));
    assert!(meter.reason.starts_with("its energy counter fell or jumped "), "{meter:?}");
    assert!(!meter.withheld, "{meter:?}");
    let steps = newest(node).steps;
    node.until_so("more steps are measured", || newest(node).steps > steps + 3);
    assert!(newest(node).iteration_energy_j.unwrap() > 0.0);
    assert!(node.rank(JOB, GPU as u32).energy_j.unwrap() > before_j);
    training.stop();
}

#[test]
fn a_counter_that_stands_still_is_named_everywhere_and_nothing_is_tuned_by_it() {
    let (served, training) = training();
    let node = &served.node;
    node.machine.fault(COUNTER, "rate:0", Some(GPU));
    // Before that is certain, it counts less than the power reading.
    node.until("it is said to stand still", || match until_in_doubt(node) {
        why if why.starts_with("its energy counter stands still while it draws ") => Ok(()),
        why => Err(why),
    });
    let uuid = node.machine.uuid(GPU);
    for command in [&["tune"][..], &["profile", "start"]] {
        let ran = refused(node, command);
        for words in [uuid.as_str(), "rank 1", "stands still"] {
            assert!(ran.stderr.contains(words), "no {words:?} in {ran:?}");
        }
    }
    let status = node.pfoctl(&Identity::own(), &["status"]).printed();
    let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(status.contains("GPU 1: its energy counter stands still while"), "{status}");
    let doubted = |gpu| format!("pfo_gpu_meter_doubted{{gpu_uuid=\"{}\"}}", node.machine.uuid(gpu));
    served.until_page_has(&format!("{} 1.0", doubted(GPU)));
    let page = samples(&served.page());
    for gpu in (0..STAGES as usize).filter(|gpu| *gpu != GPU) {
        assert_eq!(page[&doubted(gpu)], 0.0);
    }
    until_without_energy(node);
    assert!(newest(node).iteration_time_s > 0.0);
    training.stop();
}

#[test]
fn a_counter_at_half_its_rate_is_in_doubt_and_no_energy_of_the_job_is_shown() {
    let (served, training) = training();
    let node = &served.node;
    node.machine.fault(COUNTER, "rate:50", Some(GPU));
    // At first, it is compared over a time in which it counted all.
    let expected = "its energy counter counts 0.5 times the energy of its power readings";
    node.until_is("the reason", &expected.to_owned(), || until_in_doubt(node));
    until_without_energy(node);
    training.stop();
}

#[test]
fn a_sweep_pauses_when_a_counter_comes_into_doubt_and_names_the_gpu() {
    let (served, training) = training();
    let node = &served.node;
    let ran = node.pfoctl(&Identity::own(), &["profile", "start", JOB]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    node.machine.fault(COUNTER, "rate:0", Some(GPU));
    let uuid = node.machine.uuid(GPU);
    node.until("the sweep is paused", || {
        let ran = node.pfoctl(&Identity::own(), &["profile", "status", JOB]).printed();
        let words = ran.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_named =
            words.contains(&format!("GPU {uuid} of rank 1")) && words.contains("stands still");
        if words.contains("paused") && is_named { Ok(()) } else { Err(words) }
    });
    training.stop();
}
