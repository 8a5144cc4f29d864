//! Power budgets: the jobs of a node stay below one, by the counters of its GPUs.

mod hostile;

mod counted;

use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::GpuName;
use pfo_tests::{
    Client, Identity, MICROBATCHES, MachineSetup, Node, STAGES, Setup, TestPlan, Training, hello,
    needs_root, true_frontier,
};
use serde_json::Value;

/// Steps that are long beside a wait for the processor.
const SCALE: &str = "0.05";

const FIRST: &str = "first";
const SECOND: &str = "second";

/// Nine GPUs: four for each of two jobs, and one.
fn node() -> Node {
    Node::start_with(&Setup {
        machine: MachineSetup { gpus: "9xA40", ..MachineSetup::default() },
        agent_rules: "[budget]\nevery_s = 1",
        ..Setup::default()
    })
}

/// What all GPUs drew for a while, by the counters of the hardware, in watts.
fn drawn_w(node: &Node, seconds: f64) -> f64 {
    let counted_j =
        || (0..node.machine.gpu_count()).map(|gpu| node.machine.energy_j(gpu)).sum::<f64>();
    let (began, before_j) = (Instant::now(), counted_j());
    sleep(Duration::from_secs_f64(seconds));
    (counted_j() - before_j) / began.elapsed().as_secs_f64()
}

/// Waits until less is drawn than this, and checks that it stays so.
fn until_below(node: &Node, budget_w: f64) {
    node.until("power below the budget", || {
        let drawn_w = drawn_w(node, 1.0);
        if drawn_w < budget_w { Ok(()) } else { Err(format!("{drawn_w} W of {budget_w} W")) }
    });
    let drawn_w = drawn_w(node, 8.0);
    assert!(drawn_w < 1.01 * budget_w, "{drawn_w} W of {budget_w} W\n{}", node.agent_log());
}

fn admin(node: &Node, arguments: &[&str]) -> String {
    node.pfoctl(&Identity::administrator(), arguments).printed()
}

fn status(node: &Node) -> Value {
    node.pfoctl(&Identity::administrator(), &["budget", "status", "--json"]).json()
}

/// What is said of a job.
fn budgeted(node: &Node, job: &str) -> Option<Value> {
    status(node)["jobs"].as_array()?.iter().find(|one| one["job"] == job).cloned()
}

fn label(node: &Node, job: &str) -> Option<String> {
    node.job(job).plan.map(|plan| plan.label)
}

fn is_slowed(node: &Node, job: &str) -> bool {
    label(node, job).is_some_and(|label| label.contains(" in budget ") || label.contains("all at"))
}

/// Has the first job run a plan, which takes another attempt while a budget has it change.
fn swap(node: &Node, plan: &str) {
    node.until("the job runs its user's plan", || {
        let swap = ["plan", "swap", FIRST, plan, "--wait"];
        let ran = node.pfoctl(&Identity::trainer(), &swap);
        if ran.code == Some(0) { Ok(()) } else { Err(ran.stderr) }
    });
}

/// Two trainings with a frontier, each on four GPUs.
fn two(node: &Node) -> [Training; 2] {
    let frontier = true_frontier(node, SCALE);
    let user = Identity::trainer();
    [(FIRST, "0,1,2,3"), (SECOND, "4,5,6,7")].map(|(job, gpus)| {
        let options = ["--time-scale", SCALE, "--gpus", gpus];
        let training = Training::start(node, job, &user, &options);
        training.until_leased(node);
        training.until_step(node, 2);
        let _ = node.pfoctl(&user, &["plan", "load", job, &frontier]).printed();
        training
    })
}

/// The GPUs that a power limit below their own holds, by what the driver has.
fn limited(node: &Node) -> usize {
    let machine = &node.machine;
    (0..machine.gpu_count())
        .filter(|gpu| machine.power_limit_w(*gpu) < machine.default_power_limit_w(*gpu))
        .count()
}

fn until_none_is_limited(node: &Node) {
    node.until_is("GPUs with a power limit", &0, || limited(node));
}

fn stop(trainings: [Training; 2]) {
    for training in trainings {
        training.stop();
    }
}

#[test]
fn jobs_stay_below_a_budget_when_another_one_arrives_and_run_their_own_again_without_it() {
    needs_root!();
    let mut node = node();
    let trainings = two(&node);
    let full_w = drawn_w(&node, 3.0);
    let budget_w = 0.9 * full_w;
    let said = admin(&node, &["budget", "set", &format!("{budget_w:.0}W")]);
    assert!(said.contains(&format!("{budget_w:.0} W")), "{said}");
    until_below(&node, budget_w);
    let jobs = [FIRST, SECOND];
    assert!(jobs.iter().any(|job| is_slowed(&node, job)), "{}", status(&node));

    let mut third = Training::start(
        &node,
        "third",
        &Identity::other_trainer(),
        &["--time-scale", SCALE, "--gpus", "8", "--stages", "1"],
    );
    node.until_so("the third job counts", || budgeted(&node, "third").is_some());
    until_below(&node, budget_w);
    let given_w = |job: &str| budgeted(&node, job).unwrap()["given_w"].as_f64().unwrap();
    let given_w: f64 = ["third", FIRST, SECOND].map(given_w).iter().sum();
    assert!(given_w > 0.1 * full_w, "{given_w} W of {full_w} W: {}", status(&node));

    node.kill_agent();
    node.start_agent();
    node.until_so("it is in force again", || !status(&node)["budgets"][0]["budget_w"].is_null());
    until_below(&node, budget_w);
    assert!(jobs.iter().any(|job| is_slowed(&node, job)));

    let _ = admin(&node, &["budget", "clear"]);
    for job in jobs {
        node.until_is("default clocks", &None, || label(&node, job));
    }
    let again = node.pfoctl(&Identity::administrator(), &["budget", "clear"]);
    assert!(again.stderr.contains("no such power budget"), "{again:?}");
    third.process.kill();
    stop(trainings);
}

#[test]
fn a_job_without_a_frontier_goes_back_to_the_plan_of_its_user_after_a_restart_of_pfod() {
    needs_root!();
    let mut node = node();
    let training = Training::start(&node, FIRST, &Identity::trainer(), &["--time-scale", SCALE]);
    training.until_leased(&node);
    training.until_step(&node, 2);
    let plan = TestPlan::new(STAGES, MICROBATCHES, |_, _| 1410).to_json();
    swap(&node, &node.plan_file("own.json", &plan));
    let own = label(&node, FIRST);
    let _ = admin(&node, &["budget", "set", &format!("{:.0}W", 0.85 * drawn_w(&node, 3.0))]);
    node.until_so("the job is slowed down", || is_slowed(&node, FIRST));
    node.kill_daemon();
    node.kill_agent();
    node.start_daemon();
    node.start_agent();
    training.until_leased(&node);
    node.until_so("the job is slowed down again", || is_slowed(&node, FIRST));
    let _ = admin(&node, &["budget", "clear"]);
    node.until_is("the plan of its user", &own, || label(&node, FIRST));
    training.stop();
}

#[test]
fn a_job_goes_back_to_the_plan_of_its_user_even_after_restarts_of_both_daemons() {
    needs_root!();
    let mut node = node();
    let trainings = two(&node);
    let own = node.directory().join("own.json");
    let frontier = node.directory().join("a40.frontier");
    let mut export = std::process::Command::new(pfo_tests::programs::program("pfoctl"));
    export.args(["plan", "export", "--deadline", "1.02x", "-o"]).arg(&own).arg(frontier);
    assert!(export.status().unwrap().success());
    let own = own.to_str().unwrap();
    swap(&node, own);
    let budget_w = 0.85 * drawn_w(&node, 3.0);
    let _ = admin(&node, &["budget", "set", &format!("{budget_w:.0}W")]);
    node.until_so("the first job is slowed down", || is_slowed(&node, FIRST));
    let straggler = node.pfoctl(&Identity::trainer(), &["job", "straggler", FIRST, "1.1"]);
    assert!(straggler.stderr.contains("slowed down for a power budget"), "{straggler:?}");
    swap(&node, own);
    node.until_so("a user's swap does not escape the budget", || is_slowed(&node, FIRST));

    node.kill_daemon();
    sleep(Duration::from_secs(2));
    node.start_daemon();
    trainings.iter().for_each(|training| training.until_leased(&node));
    node.until_so("it is slowed down after a restart of pfod", || is_slowed(&node, FIRST));
    let _ = node.pfoctl(&Identity::trainer(), &["plan", "guard", FIRST, "90%"]).printed();
    let step = node.job(FIRST).ranks.iter().filter_map(|rank| rank.step).max().unwrap();
    trainings[0].until_step(&node, step + 20);
    let guard = node.find_watched(FIRST).and_then(|job| job.guard).unwrap();
    assert_eq!(guard.compared_at_step, None, "default clocks would draw more");
    node.kill_agent();
    node.start_agent();
    let _ = admin(&node, &["budget", "clear"]);
    node.until_is("the user's plan", &Some("own.json".to_owned()), || label(&node, FIRST));
    node.until_is("default clocks", &None, || label(&node, SECOND));
    node.until_so("a comparison", || {
        let guard = node.find_watched(FIRST).and_then(|job| job.guard);
        guard.is_some_and(|guard| guard.compared_at_step.is_some())
    });
    stop(trainings);
}

#[test]
fn a_file_is_followed_and_a_job_with_more_weight_gives_up_less() {
    needs_root!();
    let node = node();
    let trainings = two(&node);
    let full_w = drawn_w(&node, 3.0);
    let file = node.plan_file("day.csv", format!("0,{:.0}W\n", 2.0 * full_w).as_bytes());
    let _ = admin(&node, &["budget", "terms", "--for", &format!("job:{FIRST}"), "--weight", "400"]);
    let _ = admin(&node, &["budget", "set", "--from", &file]);
    node.until_so("something is decided", || !status(&node)["budgets"][0]["budget_w"].is_null());
    assert!(![FIRST, SECOND].iter().any(|job| is_slowed(&node, job)), "there is enough");

    // Plans as fast as default clocks may draw a tenth less.
    let budget_w = 0.85 * full_w;
    let _ = node.plan_file("day.csv", format!("at,budget\n0,{budget_w:.0}W\n").as_bytes());
    node.until_so("the second job is slowed down", || is_slowed(&node, SECOND));
    until_below(&node, budget_w);
    let lost = |job| budgeted(&node, job).and_then(|job| job["lost"].as_f64());
    node.until_so("the second job gives up more", || lost(FIRST) < lost(SECOND));
    let said = node.pfoctl(&Identity::trainer(), &["budget", "explain", SECOND]).printed();
    assert!(said.contains("gives up") && said.contains("frontier"), "{said}");

    let _ = node.plan_file("day.csv", b"0,much\n");
    node.until_so("the file is named", || {
        status(&node)["budgets"][0]["file"]["why"]
            .as_str()
            .is_some_and(|why| why.contains("line 1"))
    });
    assert!((status(&node)["budgets"][0]["budget_w"].as_f64().unwrap() - budget_w).abs() < 1.0);
    stop(trainings);
}

#[test]
fn a_partition_has_a_budget_and_a_weight_and_only_administrators_say_who_is_in_it() {
    needs_root!();
    let mut node = node();
    let trainings = two(&node);
    let full_w = drawn_w(&node, 3.0);
    let user = Identity::trainer();
    let uid = user.uid.to_string();
    let gpus_of = |job: &str| node.job(job).ranks.into_iter().map(|rank| rank.gpu_uuid.to_string());
    let say = |node: &Node, of: &Identity, partition: &[&str], gpus: &[String], uid: &str| {
        let gpus = gpus.iter().flat_map(|gpu| ["--gpu", gpu]);
        let said = [&["budget", "partition"], partition, &["--uid", uid]].concat();
        node.pfoctl(of, &[&said[..], &gpus.collect::<Vec<_>>()].concat())
    };
    let [first, second] = [FIRST, SECOND].map(|job| gpus_of(job).collect::<Vec<_>>());
    let refused = say(&node, &user, &["long"], &first, &uid);
    assert!(refused.stderr.contains("may not"), "{refused:?}");
    let administrator = Identity::administrator();
    // The prolog runs twice, and another user's GPUs are nobody's business.
    for _ in 0..2 {
        let _ = say(&node, &administrator, &["long"], &first, &uid).printed();
    }
    let _ = say(&node, &administrator, &["long"], &second, "4000000").printed();
    let _ = admin(&node, &["budget", "terms", "--for", "partition:long", "--weight", "400"]);
    let budget_w = 0.85 * full_w;
    let _ = admin(&node, &["budget", "set", &format!("{budget_w:.0}W")]);
    let weight = |node: &Node, job| budgeted(node, job).and_then(|job| job["weight"].as_f64());
    node.until_is("the weight of the partition", &Some(400.0), || weight(&node, FIRST));
    assert_eq!(weight(&node, SECOND), Some(4.0));
    node.until_so("the other job is slowed down", || is_slowed(&node, SECOND));
    until_below(&node, budget_w);

    // A budget of the partition is kept over a restart of the agent, and takes from its job alone.
    node.kill_agent();
    node.start_agent();
    let _ = admin(&node, &["budget", "set", "1kW", "--for", "partition:long"]);
    let scope = |node: &Node| budgeted(node, FIRST).map(|job| job["scope"].to_string());
    let of_partition = Some(r#"{"partition":"long"}"#.to_owned());
    node.until_is("the budget of the partition", &of_partition, || scope(&node));
    let said = node.pfoctl(&user, &["budget", "explain", FIRST]).printed();
    assert!(said.contains("partition long"), "{said}");

    // An epilog that comes late ends nothing of another user, and that of the job its partition.
    let _ = say(&node, &administrator, &["--end"], &first, "4000000").printed();
    node.until_is("it is in the partition still", &of_partition, || scope(&node));
    let _ = say(&node, &administrator, &["--end"], &first, &uid).printed();
    node.until_is("it counts for the node", &Some(r#""node""#.to_owned()), || scope(&node));
    stop(trainings);
}

#[test]
fn a_job_without_a_frontier_runs_one_clock_and_does_so_again_after_a_restart_of_pfod() {
    needs_root!();
    let mut node = node();
    let user = Identity::trainer();
    let options = ["--time-scale", SCALE, "--gpus", "0,1,2,3"];
    let training = Training::start(&node, FIRST, &user, &options);
    training.until_leased(&node);
    training.until_step(&node, 2);
    let budget_w = 0.9 * drawn_w(&node, 3.0);
    let _ = admin(&node, &["budget", "set", &format!("{budget_w:.0}W")]);
    let is_at_one_clock = |node: &Node| {
        let plan = node.find_job(FIRST).and_then(|job| job.plan);
        plan.is_some_and(|plan| plan.label.starts_with("all at "))
    };
    node.until_so("one clock for everything", || is_at_one_clock(&node));
    until_below(&node, budget_w);
    node.kill_daemon();
    node.start_daemon();
    training.until_leased(&node);
    node.until_so("one clock again", || is_at_one_clock(&node));
    until_below(&node, budget_w);
    node.until("the explanation names it", || {
        let said = node.pfoctl(&user, &["budget", "explain", FIRST]).printed();
        if said.contains("one clock for everything") { Ok(()) } else { Err(said) }
    });
    training.stop();
}

#[test]
fn a_budget_below_what_gpus_draw_at_the_least_is_refused_with_its_cost_unless_it_is_forced() {
    needs_root!();
    let node = node();
    let user = Identity::trainer();
    let training =
        Training::start(&node, FIRST, &user, &["--time-scale", SCALE, "--gpus", "0,1,2,3"]);
    training.until_leased(&node);
    let refused = node.pfoctl(&Identity::administrator(), &["budget", "set", "5"]);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    let cost = "every job would run at its lowest clock and power limit";
    for part in ["a budget of 5 W is less than the ", cost, "5kW is 5000", "--force"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    assert_eq!(status(&node)["budgets"].as_array().unwrap().len(), 0);
    assert!(admin(&node, &["budget", "set", "5", "--force"]).contains(cost));
    let _ = admin(&node, &["budget", "clear"]);
    training.stop();
}

#[test]
fn a_budget_for_which_a_driver_sets_no_clock_is_no_success() {
    needs_root!();
    let node = node();
    let user = Identity::trainer();
    let training =
        Training::start(&node, FIRST, &user, &["--time-scale", SCALE, "--gpus", "0,1,2,3"]);
    training.until_leased(&node);
    let full_w = drawn_w(&node, 3.0);
    let _ = admin(&node, &["budget", "set", &format!("{:.0}W", 0.9 * full_w)]);
    node.until_so("the job is slowed", || is_slowed(&node, FIRST));
    node.machine.fault("nvmlDeviceSetGpuLockedClocks", "no-permission", Some(1));
    let budget = format!("{:.0}W", 0.75 * full_w);
    let ran = node.pfoctl(&Identity::administrator(), &["budget", "set", &budget]);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.stderr.contains("not in force on rank 1 (GPU 1): "), "{ran:?}");
    node.machine.clear_faults();
    let _ = admin(&node, &["budget", "clear"]);
    training.stop();
}

#[test]
fn users_set_no_budget_and_terms_only_as_far_as_they_are_let() {
    needs_root!();
    let node = node();
    let user = Identity::trainer();
    let training =
        Training::start(&node, FIRST, &user, &["--time-scale", SCALE, "--gpus", "0,1,2,3"]);
    training.until_leased(&node);
    let _ = admin(&node, &["budget", "set", "1MW"]);
    for refused in [
        &["budget", "set", "1MW"][..],
        &["budget", "clear"],
        &["budget", "terms", "--for", "node", "--weight", "2"],
        &["budget", "terms", "--for", "user:0", "--weight", "2"],
    ] {
        let refused = node.pfoctl(&user, refused);
        assert!(refused.stderr.contains("may not set"), "{refused:?}");
    }
    let own = format!("job:{FIRST}");
    let weight = ["budget", "terms", "--for", own.as_str(), "--weight", "9"];
    let refused = node.pfoctl(&user, &weight);
    assert!(refused.stderr.contains("may not set the weight"), "{refused:?}");
    let config = std::fs::read_to_string(node.agent_config()).unwrap();
    std::fs::write(node.agent_config(), config + "\nowners_set_weights = true\n").unwrap();
    node.agent.as_ref().unwrap().process.signal(nix::sys::signal::Signal::SIGHUP);
    node.until_so("owners may set weights", || node.pfoctl(&user, &weight).code == Some(0));
    let other = node.pfoctl(&Identity::other_trainer(), &weight);
    assert!(other.stderr.contains("no job"), "{other:?}");
    node.until_is("the weight", &Some(9.0), || {
        budgeted(&node, FIRST).and_then(|job| job["weight"].as_f64())
    });
    let shown = node.pfoctl(&user, &["budget", "status", "--json"]).json();
    assert_eq!(shown["budgets"].as_array().unwrap().len(), 0, "{shown}");
    assert_eq!(shown["jobs"].as_array().unwrap().len(), 1, "{shown}");
    let shown = node.pfoctl(&Identity::other_trainer(), &["budget", "status", "--json"]).json();
    assert_eq!(shown["jobs"].as_array().unwrap().len(), 0, "{shown}");
    training.stop();
}

#[test]
fn what_a_job_gave_up_is_in_the_ledger_and_is_no_saving() {
    needs_root!();
    let mut node = node();
    let trainings = two(&node);
    let budget_w = 0.8 * drawn_w(&node, 3.0);
    let _ = admin(&node, &["budget", "set", &format!("{budget_w:.0}W")]);
    let total = |node: &Node| {
        let mut report = node.pfoctl(&Identity::administrator(), &["savings", "--json"]).json();
        report["total"].take()
    };
    let given_j = |node: &Node| total(node)["given_j"].as_f64().unwrap();
    node.until_so("something is given up", || given_j(&node) > 100.0);
    let so_far = total(&node);
    assert!(so_far["lost_s"].as_f64().unwrap() > 0.0, "{so_far}");
    assert!(so_far["saved"].is_null() && so_far["compared_j"] == 0.0, "{so_far}");
    let _ = admin(&node, &["budget", "clear"]);
    for job in [FIRST, SECOND] {
        node.until_is("default clocks", &None, || label(&node, job));
    }
    let last_j = given_j(&node);
    node.stop_agent();
    node.start_agent();
    node.until_so("the same after a restart", || given_j(&node) >= 0.99 * last_j);
    stop(trainings);
}

/// Steps of some seconds: a plan cannot be taken up sooner.
const LONG: &str = "1";

#[test]
fn an_emergency_is_met_by_power_limits_before_a_step_ends_and_by_plans_afterwards() {
    needs_root!();
    let node = node();
    let frontier = true_frontier(&node, LONG);
    let user = Identity::trainer();
    let options = ["--time-scale", LONG, "--gpus", "0,1,2,3"];
    let training = Training::start(&node, FIRST, &user, &options);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let _ = node.pfoctl(&user, &["plan", "load", FIRST, &frontier]).printed();
    let budget_w = 0.8 * drawn_w(&node, 10.0);
    // A floor that leaves nothing to take, which does not count in an emergency.
    let floor = ["budget", "terms", "--for", &format!("job:{FIRST}"), "--floor", "0.1%"];
    let _ = admin(&node, &floor);
    let began = Instant::now();
    let _ = admin(&node, &["budget", "set", &format!("{budget_w:.0}W"), "--emergency"]);
    node.until_is("GPUs with a power limit", &4, || limited(&node));
    println!("power limits after {:.2} s", began.elapsed().as_secs_f64());
    // The next step may begin at any moment, and only then a plan is taken up: all limits came before.
    let log = node.log();
    let (fourth, _) = log.match_indices("is kept below").nth(3).unwrap();
    let plan = log.find("swaps job first to plan").unwrap_or(log.len());
    assert!(fourth < plan, "{log}");
    let limited_w = drawn_w(&node, 2.0);
    assert!(limited_w < 1.02 * budget_w, "{limited_w} W of {budget_w} W");
    until_none_is_limited(&node);
    println!("plans after {:.2} s", began.elapsed().as_secs_f64());
    assert!(is_slowed(&node, FIRST), "{}", status(&node));
    until_below(&node, budget_w);
    // A correction may be met by limits first, too.
    until_none_is_limited(&node);
    training.stop();
}

#[test]
fn jobs_that_follow_nothing_are_held_by_power_limits_until_the_budget_is_cleared() {
    needs_root!();
    let mut node = node();
    // They compute all the time and say nothing, so that they never take up a plan.
    let mut ranks = Vec::new();
    for gpu in 0..2 {
        let mut rank = Client::connect(&node.socket());
        let name = GpuName::Uuid(node.machine.uuid(gpu));
        rank.open(hello(&format!("deaf-{gpu}"), 0, 1, name)).unwrap();
        ranks.push((rank, node.machine.compute(gpu)));
    }
    let full_w = drawn_w(&node, 2.0);
    let budget_w = 0.75 * full_w;
    let _ = admin(&node, &["budget", "set", &format!("{budget_w:.0}W")]);
    until_below(&node, budget_w);
    assert_eq!(limited(&node), 2);
    let said = admin(&node, &["budget", "explain", "deaf-0"]);
    assert!(said.contains("Power limits hold its GPUs"), "{said}");

    node.kill_daemon();
    assert_eq!(limited(&node), 2, "nobody is there to undo them");
    drop(ranks);
    node.start_daemon();
    until_none_is_limited(&node);
    node.until_is("entries of the ledger", &0, || node.ledger_entries());
}

#[test]
fn power_limits_outlive_the_agent_that_asked_for_them_and_end_with_the_budget() {
    needs_root!();
    let mut node = node();
    let user = Identity::trainer();
    let training =
        Training::start(&node, FIRST, &user, &["--time-scale", SCALE, "--gpus", "0,1,2,3"]);
    training.until_leased(&node);
    training.until_step(&node, 8);
    // Less than the lowest clock comes to.
    let budget_w = 0.3 * drawn_w(&node, 3.0);
    let _ = admin(&node, &["budget", "set", &format!("{budget_w:.0}W"), "--force"]);
    node.until_is("GPUs with a power limit", &4, || limited(&node));
    node.kill_agent();
    sleep(Duration::from_secs(2));
    assert_eq!(limited(&node), 4, "a budget does not end with its agent");
    node.kill_daemon();
    node.start_daemon();
    until_none_is_limited(&node);
    training.until_leased(&node);
    node.start_agent();
    node.until_is("GPUs with a power limit again", &4, || limited(&node));
    node.kill_agent();
    node.start_agent();
    let _ = admin(&node, &["budget", "clear"]);
    until_none_is_limited(&node);
    node.until_is("default clocks", &None, || label(&node, FIRST));
    training.stop();
}

#[test]
fn a_job_with_a_floor_is_held_by_no_power_limit_but_in_an_emergency() {
    needs_root!();
    let node = node();
    let trainings = two(&node);
    let _ = admin(&node, &["budget", "terms", "--for", "node", "--floor", "5%"]);
    let budget_w = 0.4 * drawn_w(&node, 3.0);
    let _ = admin(&node, &["budget", "set", &format!("{budget_w:.0}W")]);
    node.until_so("watts are missing", || {
        status(&node)["budgets"][0]["missing_w"].as_f64().is_some_and(|missing_w| missing_w > 0.0)
    });
    node.until_so("both jobs are slowed down", || {
        [FIRST, SECOND].iter().all(|job| is_slowed(&node, job))
    });
    let lost = |job| budgeted(&node, job).and_then(|job| job["lost"].as_f64()).unwrap();
    assert!([FIRST, SECOND].iter().all(|job| lost(job) <= 0.05), "{}", status(&node));
    assert_eq!(limited(&node), 0);
    let _ = admin(&node, &["budget", "set", &format!("{budget_w:.0}W"), "--emergency"]);
    node.until_is("GPUs with a power limit", &8, || limited(&node));
    let _ = admin(&node, &["budget", "clear"]);
    until_none_is_limited(&node);
    stop(trainings);
}

#[test]
fn power_falls_and_rises_no_faster_than_the_ramps_say() {
    needs_root!();
    let node = node();
    let trainings = two(&node);
    let full_w = drawn_w(&node, 3.0);
    let low_w = 0.8 * full_w;
    // Half a minute for the way down, and as long for the way up.
    let ramp = format!("{:.0}W", (full_w - low_w) / 30.0);
    let set = |watts: f64| {
        let level = format!("{watts:.0}W");
        let _ = admin(&node, &["budget", "set", &level, "--down", &ramp, "--up", &ramp]);
    };
    let level_w = || status(&node)["budgets"][0]["budget_w"].as_f64();
    set(low_w);
    let mut seen = Vec::new();
    node.until_so("the end of the ramp", || {
        seen.extend(level_w());
        seen.last().is_some_and(|last| *last <= 1.001 * low_w)
    });
    assert!(seen.windows(2).all(|pair| pair[1] <= pair[0]), "{seen:?}");
    let between = seen.iter().filter(|level| **level > 1.02 * low_w && **level < 0.98 * full_w);
    assert!(between.count() > 2, "{seen:?}");
    until_below(&node, low_w);
    set(2.0 * full_w);
    node.until_so("a level between the two", || {
        level_w().is_some_and(|level| level > 1.02 * low_w && level < full_w)
    });
    node.until_so("the way up", || level_w().is_some_and(|level| level > full_w));
    stop(trainings);
}

#[test]
fn a_budget_of_a_user_and_one_of_a_job_take_from_nobody_else() {
    needs_root!();
    let node = node();
    let trainings = two(&node);
    let options = ["--time-scale", SCALE, "--gpus", "8", "--stages", "1"];
    let mut third = Training::start(&node, "third", &Identity::other_trainer(), &options);
    node.until_so("the third job", || {
        node.find_job("third").is_some_and(|job| !job.ranks.is_empty())
    });
    let of_gpus_w = |gpus: std::ops::Range<usize>| {
        let counted_j = || gpus.clone().map(|gpu| node.machine.energy_j(gpu)).sum::<f64>();
        let (began, before_j) = (Instant::now(), counted_j());
        sleep(Duration::from_secs(6));
        (counted_j() - before_j) / began.elapsed().as_secs_f64()
    };
    let below = |gpus: std::ops::Range<usize>, budget_w: f64| {
        node.until("power below the budget", || {
            let drawn_w = of_gpus_w(gpus.clone());
            if drawn_w < budget_w { Ok(()) } else { Err(format!("{drawn_w} W of {budget_w} W")) }
        });
    };
    let job_w = 0.85 * of_gpus_w(0..4);
    let scope = format!("job:{FIRST}");
    let _ = admin(&node, &["budget", "set", &format!("{job_w:.0}W"), "--for", &scope]);
    below(0..4, job_w);
    assert!(is_slowed(&node, FIRST) && !is_slowed(&node, SECOND) && !is_slowed(&node, "third"));

    let user_w = 0.85 * of_gpus_w(4..8);
    let scope = format!("user:{}", Identity::trainer().uid);
    let _ = admin(&node, &["budget", "set", &format!("{user_w:.0}W"), "--for", &scope]);
    // The job with a budget of its own does not count for that of its user.
    below(4..8, user_w);
    below(0..4, job_w);
    assert!(is_slowed(&node, SECOND) && !is_slowed(&node, "third"));
    for scope in [format!("job:{FIRST}"), scope] {
        let _ = admin(&node, &["budget", "clear", "--for", &scope]);
    }
    for job in [FIRST, SECOND] {
        node.until_is("default clocks", &None, || label(&node, job));
    }
    third.process.kill();
    stop(trainings);
}
