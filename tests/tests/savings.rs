//! What plans save is in the ledger of the agent, once, and stays there.

use pfo_protocol::{Savings, SavingsReport, SavingsRow};
use pfo_tests::{Identity, MICROBATCHES, Node, STAGES, Setup, TestPlan, Training};

const JOB: &str = "job";

/// A clock at which the jobs of these tests use less energy than at default clocks.
const SAVES_MHZ: u32 = 1200;

fn node() -> Node {
    // Comparisons may follow one another as they like.
    let agent_rules = "[guard]\ndefault_steps_permille = 1000\n";
    Node::start_with(&Setup { agent_rules, ..Setup::default() })
}

fn in_training(node: &Node) -> Training {
    let training = Training::start(node, JOB, &Identity::trainer(), &["--time-scale", "0.05"]);
    training.until_leased(node);
    training.until_step(node, 1);
    let _ = training.take_up(node, &TestPlan::new(STAGES, MICROBATCHES, |_, _| SAVES_MHZ));
    training
}

fn savings(node: &Node) -> SavingsReport {
    let printed =
        node.pfoctl(&Identity::trainer(), &["savings", "--by", "plan", "--json"]).printed();
    serde_json::from_str(&printed).unwrap()
}

/// The figures of one plan, which comparisons do not number.
fn row(report: &SavingsReport) -> &SavingsRow {
    let [row] = &report.rows[..] else { panic!("{report:?}") };
    row
}

fn until_compared(node: &Node, times: u64) -> SavingsReport {
    node.until("comparisons in the ledger", || {
        let report = savings(node);
        if report.total.comparisons >= times { Ok(report) } else { Err(format!("{report:?}")) }
    })
}

#[test]
fn the_figures_of_a_job_are_the_same_after_every_restart_of_the_agent() {
    let mut node = node();
    let training = in_training(&node);
    let _ = node.pfoctl(&Identity::trainer(), &["plan", "guard", JOB, "300%"]).printed();
    let running = until_compared(&node, 3);
    assert_eq!(row(&running).job.as_ref().map(ToString::to_string).as_deref(), Some(JOB));
    // A guarded job is shown after its end, too.
    let _ = node.pfoctl(&Identity::trainer(), &["plan", "guard", JOB, "--off"]).printed();
    training.stop();
    // What was used last is taken when the agent sees that the job has ended.
    node.until_so("the job has ended for the agent", || node.find_watched(JOB).is_none());
    let last = savings(&node);
    let saved = last.total.saved.unwrap();
    assert!(saved.low_j <= saved.estimate_j && saved.estimate_j <= saved.high_j, "{saved:?}");
    assert!(last.total.energy_j > 0.0 && last.total.steps > 0, "{last:?}");
    let hottest_c = last.total.hottest_c.unwrap();
    assert!((20..100).contains(&hottest_c) && last.total.throttled_s == Some(0.0), "{last:?}");
    for end in [Node::stop_agent, Node::kill_agent] {
        end(&mut node);
        node.start_agent();
        let again = savings(&node);
        assert_eq!((&again.rows, again.total), (&last.rows, last.total));
        assert_eq!(again.ledger_problem, None);
    }
    let text = node.pfoctl(&Identity::trainer(), &["savings"]).printed();
    assert!(text.contains(JOB) && text.contains("Used"), "{text}");
    let csv = node.pfoctl(&Identity::trainer(), &["savings", "--csv"]).printed();
    assert!(csv.starts_with("day,uid,job,plan,steps,") && csv.lines().count() == 2, "{csv}");
    let all = |bounds: &[&str]| -> SavingsReport {
        let arguments = [&["savings", "--json"], bounds].concat();
        serde_json::from_str(&node.pfoctl(&Identity::trainer(), &arguments).printed()).unwrap()
    };
    let now = all(&["--since", "1d"]);
    assert_eq!((now.total, now.until_unix_s), (last.total, None));
    let (since, before) = (now.since_unix_s.unwrap(), all(&["--until", "1d"]));
    assert_eq!((before.rows.len(), before.total.steps), (0, 0));
    assert!(before.until_unix_s.unwrap().abs_diff(since) < 60, "{before:?} {since}");
    let future = node.pfoctl(&Identity::trainer(), &["savings", "--month", "9000-01"]);
    assert_eq!(future.code, Some(2), "{future:?}");
    let no_fleet = node.pfoctl(&Identity::trainer(), &["savings", "--fleet"]);
    assert_eq!(no_fleet.code, Some(4), "{no_fleet:?}");
    let foreign = node.pfoctl(&Identity::trainer(), &["savings", "--user", "4000000001"]);
    assert_eq!(foreign.code, Some(4), "{foreign:?}");
}

/// The agent has hardly looked when the second swap is begun: a step takes a few hundredths of a second.
#[test]
fn a_plan_counts_whose_end_was_arranged_as_it_began() {
    let node = node();
    let training = in_training(&node);
    let runs = |gpu| node.machine.sm_lock(gpu) == Some(SAVES_MHZ);
    node.until_so("every rank runs the plan", || (0..STAGES as usize).all(runs));
    let swap = ["plan", "swap", JOB, "--default-clocks", "--at-step", "1000000"];
    let _ = node.pfoctl(&Identity::trainer(), &swap).printed();
    node.until_so("its steps are in the ledger", || savings(&node).total.steps > 20);
    training.stop();
}

#[test]
fn a_saving_is_priced_by_the_hour_and_a_price_that_is_corrected_corrects_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("prices.csv");
    let write = |rows: &str| std::fs::write(&file, format!("time,price_per_kwh\n{rows}")).unwrap();
    write("00:00,0.5\n12:00,0.5\n");
    let agent_rules = format!(
        "[guard]\ndefault_steps_permille = 1000\n[ledger]\nprice_per_kwh = 99.0\nhours_file = {file:?}\n"
    );
    let node = Node::start_with(&Setup { agent_rules: agent_rules.leak(), ..Setup::default() });
    let training = in_training(&node);
    let _ = node.pfoctl(&Identity::trainer(), &["plan", "guard", JOB, "300%"]).printed();
    let _ = until_compared(&node, 3);
    let _ = node.pfoctl(&Identity::trainer(), &["plan", "guard", JOB, "--off"]).printed();
    training.stop();
    node.until_so("the job has ended for the agent", || node.find_watched(JOB).is_none());
    let priced = |price: f64| {
        let Savings { saved, money, .. } = savings(&node).total;
        let (saved, money) = (saved.unwrap(), money.unwrap());
        let ends = if price < 0.0 { [money.high, money.low] } else { [money.low, money.high] };
        for (joules, worth) in [saved.low_j, saved.high_j].into_iter().zip(ends) {
            let by_hand = joules / 3.6e6 * price;
            assert!((worth - by_hand).abs() <= 1e-9 * by_hand.abs(), "{worth} {by_hand}");
        }
    };
    priced(0.5);
    write("00:00,-0.25\n");
    priced(-0.25);
    // A wrong file is ignored as a whole: the flat tariff is left, and the answer says why.
    write("00:00,0.5\nnoon,0.5\n");
    let why = savings(&node).tariff_problem.unwrap();
    assert!(why.contains("line 3") && why.contains("noon"), "{why}");
    priced(99.0);
}

#[test]
fn what_a_plan_saved_is_in_the_status_also_after_pfod_was_killed() {
    let mut node = node();
    let training = in_training(&node);
    let _ = node.pfoctl(&Identity::trainer(), &["plan", "guard", JOB, "300%"]).printed();
    let _ = until_compared(&node, 3);
    let _ = node.pfoctl(&Identity::trainer(), &["plan", "guard", JOB, "--off"]).printed();
    let line = |node: &Node| {
        let text = node.pfoctl(&Identity::trainer(), &["status", JOB]).printed();
        text.lines().find(|line| line.starts_with("Since plan ")).map(str::to_owned)
    };
    let before = line(&node).unwrap();
    assert!(before.contains(" saved, 95 % interval ") || before.contains("no saving"), "{before}");
    node.kill_daemon();
    node.start_daemon();
    training.until_leased(&node);
    let share = |line: &str| line.split(", in ").next().unwrap().to_owned();
    node.until_is("what the plan saved", &Some(share(&before)), || {
        line(&node).map(|line| share(&line))
    });
    training.stop();
}

#[test]
fn no_joule_is_counted_twice_however_often_the_agent_is_killed() {
    let mut node = node();
    let training = in_training(&node);
    let mut steps = 0;
    for _ in 0..4 {
        steps = node.until("more steps in the ledger", || match savings(&node).total.steps {
            more if more > steps => Ok(more),
            same => Err(format!("{same} steps")),
        });
        node.kill_agent();
        node.start_agent();
    }
    let report = savings(&node);
    let job = node.job(JOB);
    let begun = job.ranks.iter().filter_map(|rank| rank.step).max().unwrap();
    assert!(report.total.steps <= begun, "{} of {begun} steps", report.total.steps);
    let used_j = job.energy_j.unwrap();
    assert!(report.total.energy_j <= used_j, "{} of {used_j} J", report.total.energy_j);
    training.stop();
}

#[test]
fn a_plan_counts_while_another_one_waits_for_its_step_also_for_the_next_agent() {
    let mut node = node();
    let training = in_training(&node);
    node.until_so("the plan is in the ledger", || savings(&node).total.steps > 0);
    let plan = TestPlan::new(STAGES, MICROBATCHES, |_, _| 1410).to_json();
    let later = node.plan_file("later.json", &plan);
    let swap = ["plan", "swap", JOB, &later, "--at-step", "1000000"];
    let _ = node.pfoctl(&Identity::trainer(), &swap).printed();
    node.stop_agent();
    node.start_agent();
    let before = savings(&node);
    node.until_so("more steps", || savings(&node).total.steps > before.total.steps + 20);
    assert_eq!(row(&savings(&node)).plan, row(&before).plan);
    training.stop();
}

#[test]
fn an_agent_that_cannot_keep_its_ledger_does_everything_else_and_says_so() {
    let mut node = node();
    node.stop_agent();
    let ledger = node.state().join("ledger");
    let _ = std::fs::remove_dir_all(&ledger);
    std::fs::create_dir_all(node.state()).unwrap();
    std::fs::write(&ledger, "not a directory").unwrap();
    node.start_agent();
    let training = in_training(&node);
    node.until_so("the agent says so", || savings(&node).ledger_problem.is_some());
    node.until_agent_logged("what is measured waits in memory");
    let _ = node.pfoctl(&Identity::trainer(), &["plan", "guard", JOB, "300%"]).printed();
    node.until_so("a comparison", || {
        let guard = node.find_watched(JOB).and_then(|job| job.guard);
        guard.is_some_and(|guard| guard.compared_at_step.is_some())
    });
    training.stop();
}
