//! A job over four nodes, each with a machine, a pfod and an agent of its own, which agree over a
//! real etcd with TLS and roles. What ran at which step is read from the histories of the simulated
//! drivers.

mod at_once;
mod broken;
mod budgets;
mod checked;
mod cluster;
mod disturbed;
mod first_plans;
mod guarded;
mod joined;
mod lone;
mod measured;
mod observed;
mod partition;
mod possible;
mod replicas;
mod requeued;
mod saved;
mod selectors;
mod series;
mod signed;
mod slow_node;
mod staged;
mod stragglers;
mod swept;
mod taken_over;
mod trained;
mod trials;
mod tune;
mod versions;

use std::thread::sleep;
use std::time::Duration;

use pfo_protocol::{FleetOutcome, Request, Response};
use pfo_tests::{Identity, TestPlan, control};

use cluster::{Cluster, JOB, MICROBATCHES, NODES, PLANS, STAGES, plan};

#[test]
fn all_nodes_change_at_the_same_step_whatever_is_killed() {
    let Some(mut cluster) = Cluster::start() else { return };
    let [first, second] = PLANS.map(|base| cluster.file(0, base));
    cluster.swap(0, &["plan", "swap", JOB, &first], |_| {});
    cluster.until_all_run(PLANS[0]);
    for (number, node) in (0..).zip(&cluster.nodes) {
        let request = Request::PlanRead(control::job(JOB));
        let Ok(Response::Plan(Some(table))) = node.control().ask(request) else { panic!() };
        let present = |stage: u32| !table.stages()[stage as usize].is_empty();
        assert!((0..STAGES).all(|stage| present(stage) == (stage == number)), "cut by stage");
    }

    // An agent is killed while its node is asked to arm the swap, and comes back.
    cluster.swap(1, &["plan", "swap", JOB, &second], |cluster| {
        sleep(Duration::from_millis(700));
        cluster.nodes[2].kill_agent();
        cluster.nodes[2].start_agent();
    });
    cluster.until_all_run(PLANS[1]);

    // The agent that was asked is killed: the others finish what it began, or nobody changes.
    let before = cluster.job(3).unwrap().swap.unwrap().number;
    let rollback = ["plan", "rollback", JOB];
    let mut asked = cluster.nodes[0].begin_pfoctl(&Identity::own(), &rollback);
    cluster.until("the rollback is proposed", |job| {
        job.swap.as_ref().is_some_and(|swap| swap.number > before)
    });
    cluster.nodes[0].kill_agent();
    asked.wait().unwrap();
    cluster.nodes[0].start_agent();
    cluster.until("the rollback is decided", |job| {
        job.nodes.len() == NODES.len()
            && job.swap.as_ref().is_some_and(|swap| swap.outcome != FleetOutcome::Open)
    });
    if cluster.job(0).unwrap().swap.unwrap().outcome != FleetOutcome::Committed {
        cluster.swap(0, &rollback, |_| {});
    }
    cluster.until_all_run(PLANS[0]);
    cluster.until("no node is late", |job| {
        job.nodes.iter().all(|node| node.late.as_ref().is_none_or(|late| late.until_step.is_some()))
    });
    cluster.assert_same_everywhere();
}

#[test]
fn a_plan_that_is_called_like_a_trial_at_one_clock_is_run_as_the_plan_that_it_is() {
    let Some(mut cluster) = Cluster::start() else { return };
    let name = format!("all at {} MHz", PLANS[0]);
    let file = cluster.nodes[0].plan_file(&name, &plan(PLANS[0]).to_json());
    cluster.swap(0, &["plan", "swap", JOB, &file], |_| ());
    cluster.until_all_run(PLANS[0]);
    // As long as a node takes to look at what it runs, several times.
    sleep(Duration::from_secs(3));
    let job = cluster.job(1).unwrap();
    assert!(job.nodes.iter().all(|node| node.late.is_none()), "{job:?}");
    cluster.assert_same_everywhere();
}

#[test]
fn a_plan_that_one_node_cannot_run_is_loaded_nowhere() {
    let Some(cluster) = Cluster::start() else { return };
    let no_clock = |stage, _| if stage + 1 == STAGES { 901 } else { 900 };
    let plan = TestPlan::new(STAGES, MICROBATCHES, no_clock).to_json();
    let file = cluster.nodes[0].plan_file("vetoed.json", &plan);
    let vetoed = cluster.nodes[0].pfoctl(&Identity::own(), &["plan", "swap", JOB, &file]);
    assert_ne!(vetoed.code, Some(0), "{vetoed:?}");
    assert!(vetoed.stderr.contains("node node-d: ") && vetoed.stderr.contains("901 MHz"));
    for node in &cluster.nodes {
        let job = node.find_job(JOB).unwrap();
        assert_eq!((job.plan, job.loaded), (None, None));
    }
}

#[test]
fn a_plan_stays_in_force_without_the_store_and_its_loss_is_shown() {
    let Some(mut cluster) = Cluster::start() else { return };
    let [first, second] = PLANS.map(|base| cluster.file(0, base));
    cluster.swap(2, &["plan", "swap", JOB, &first], |_| {});
    cluster.until_all_run(PLANS[0]);
    cluster.until("its steps are measured", |job| job.step.is_some());
    let whole_j = cluster.job(1).unwrap().step.and_then(|step| step.energy_j).unwrap();
    for node in &cluster.nodes {
        let window = node.find_job(JOB).unwrap().windows.pop().unwrap();
        let own_j = window.iteration_energy_j.unwrap();
        assert!(whole_j > 2.0 * own_j, "{whole_j} J of four nodes, {own_j} J of one");
    }
    let user = Identity::own();
    let status = cluster.nodes[3].pfoctl(&user, &["status", "--job", JOB]).printed();
    assert!(NODES.iter().all(|node| status.contains(node)), "{status}");
    assert!(status.contains("J on all nodes together"), "{status}");
    let nodes = cluster.nodes[3].pfoctl(&user, &["fleet", "status"]).printed();
    assert!(NODES.iter().all(|node| nodes.contains(node)), "{nodes}");
    let checked = cluster.nodes[3].pfoctl(&user, &["fleet", "check"]).printed();
    assert!(checked.contains("what node node-d may do there: ok"), "{checked}");

    cluster.store.kill(0);
    cluster.until("the store is away", |job| job.store_away_s.is_some());
    let refused = cluster.nodes[0].pfoctl(&user, &["plan", "swap", JOB, &second]);
    assert!(refused.stderr.contains("the store does not answer"), "{refused:?}");
    let checked = cluster.nodes[0].pfoctl(&user, &["fleet", "check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let status = cluster.nodes[1].pfoctl(&user, &["status"]).printed();
    assert!(status.contains("the store of the fleet has not answered"), "{status}");
    cluster.until_all_run(PLANS[0]);

    cluster.store.restart(0);
    cluster.until("the store is back", |job| {
        job.store_away_s.is_none() && job.nodes.len() == NODES.len()
    });
    cluster.swap(0, &["plan", "swap", JOB, &second], |_| {});
    cluster.until_all_run(PLANS[1]);
    cluster.assert_same_everywhere();
    swaps_at_exactly_a_step(&mut cluster, &first);
}

/// Swaps to the first plan at a step that is named, or not at all.
fn swaps_at_exactly_a_step(cluster: &mut Cluster, plan: &str) {
    let user = Identity::own();
    let swap = |at: &str| ["plan", "swap", JOB, plan, "--at-step", at].map(str::to_owned);
    for impossible in ["1", "999999999"] {
        let arguments = swap(impossible);
        let arguments = arguments.each_ref().map(String::as_str);
        let refused = cluster.nodes[2].pfoctl(&user, &arguments);
        let why = format!("cannot change at step {impossible}: ");
        assert!(refused.code != Some(0) && refused.stderr.contains(&why), "{refused:?}");
    }
    let at = cluster.training.steps() + 400;
    let arguments = swap(&at.to_string());
    let arguments = arguments.each_ref().map(String::as_str);
    let swapped = cluster.nodes[2].pfoctl(&user, &arguments).printed();
    assert!(swapped.contains(&format!("from step {at} on, on all 4 nodes")), "{swapped}");
    cluster.until_all_run(PLANS[0]);
    assert_eq!(cluster.training.first_step_with(PLANS[0], at - 20), [Some(at); 4]);
    cluster.assert_same_everywhere();
}
