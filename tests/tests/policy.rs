//! The rules of the configuration: who leases which GPU, and on which terms.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use pfo::ProblemCode;
use pfo_protocol::{ClientMessage, ClosingReason, DaemonMessage, GpuName, Refusal, RefusalCode};
use pfo_tests::{
    Client, Daemon, Identity, MachineSetup, Node, Rank, Relay, Setup, TestPlan, Training,
    assert_printed, hello, needs_root,
};

const JOB: &str = "job";

fn node(gpus: &'static str, rules: &'static str) -> Node {
    let machine = MachineSetup { gpus, ..MachineSetup::default() };
    Node::start_with(&Setup { machine, rules, ..Setup::default() })
}

/// How the daemon names the rule of a number, from 0.
fn place(node: &Node, rule: usize) -> String {
    let text = fs::read_to_string(node.config()).unwrap();
    let mut rules = text.lines().zip(1..).filter(|(line, _)| *line == "[[rule]]");
    format!("{}, line {}", node.config().display(), rules.nth(rule).unwrap().1)
}

fn refused(node: &Node, gpu: usize) -> Refusal {
    let name = GpuName::Uuid(node.machine.uuid(gpu));
    Client::connect(&node.socket()).open(hello(JOB, 0, 1, name)).unwrap_err()
}

#[test]
fn a_gpu_that_a_rule_denies_is_refused_with_the_rule() {
    let node = node("2xA40,1xA100", "[[rule]]\ngpus = ['*A100*', 1]\nallow = false\n");
    for gpu in [1, 2] {
        let refusal = refused(&node, gpu);
        assert_eq!(refusal.code, RefusalCode::NotAuthorized);
        let said = format!("{} denies it", place(&node, 0));
        assert!(refusal.message.contains(&said), "{refusal}");
        assert_eq!(node.machine.memory_lock(gpu), None);
    }
    let _rank = Rank::open(&node, JOB, 0, 1, 2);
}

#[test]
fn a_plan_outside_the_bounds_of_a_rule_is_refused_with_the_rule() {
    let node = node("2xA40", "[[rule]]\ngpus = [1]\n[[rule]]\nmin_mhz = 600\nmax_mhz = 1200\n");
    let ranks = Rank::open_all(&node, JOB, 2, 2);
    let refusal = node.load(JOB, &TestPlan::new(2, 2, |_, _| 1500)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::PlanDoesNotFit);
    assert_eq!(
        refusal.message,
        format!(
            "stage 0 asks for 1500 MHz in instruction 0, but the administrator allows rank 0 600 MHz \
             to 1200 MHz ({})",
            place(&node, 1)
        )
    );
    // GPU 1 may have it.
    node.take_up(JOB, &TestPlan::new(2, 2, |stage, _| [900, 1500][stage as usize]));
    for rank in &ranks {
        rank.session.step_begin();
    }
    node.until_is("the lock of GPU 1", &Some(1500), || node.machine.sm_lock(1));
    node.until_is("the lock of GPU 0", &Some(900), || node.machine.sm_lock(0));
    ranks[0].begin(1);
    node.until_is("the lock of a mismatched step", &Some(1200), || node.machine.sm_lock(0));
}

#[test]
fn changes_beyond_the_rate_are_skipped_at_the_highest_clock_and_counted() {
    let node = node("1xA40", "[[rule]]\nmax_mhz = 1305\nchanges_per_second = 5\n");
    let rank = Rank::open(&node, JOB, 0, 1, 8);
    node.take_up(JOB, &TestPlan::distinct(1, 8, 600));
    let begun = Instant::now();
    let mut steps = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        rank.session.step_begin();
        for position in 0..rank.order().len() {
            rank.instruction(position);
            // So that the daemon reads them one by one.
            std::thread::sleep(Duration::from_millis(5));
        }
        rank.session.step_end();
        steps += 1;
    }
    let took_s = begun.elapsed().as_secs_f64();
    rank.session.step_begin();
    node.until_is("the rank's step", &Some(steps), || node.rank(JOB, 0).step);
    let status = node.rank(JOB, 0);
    let calls = node.machine.clocks_set(0);
    assert!(calls.len() as f64 <= 5.0 + 5.0 * took_s + 1.0, "{} calls in {took_s} s", calls.len());
    assert!(status.skipped_changes > steps, "{} of {steps} steps", status.skipped_changes);
    // No plan asks for the highest clock: a rank without room for changes waits there.
    assert!(calls.iter().filter(|mhz| **mhz == 1305).count() >= 2, "{calls:?}");
    assert_eq!(rank.session.counters().dropped, 0);
    assert_eq!(status.mismatched_steps, 0);
}

#[test]
fn a_trainer_without_a_required_process_on_the_gpu_is_refused() {
    let node = node("1xA40", "[[rule]]\nrequire_process = true\n");
    let rank = Rank::open_anyway(&node, JOB, 0, 1, 2);
    let problem = rank.session.problem().unwrap();
    assert_eq!(problem.code, ProblemCode::Refused(RefusalCode::NoProcess));
    let (pid, uuid) = (std::process::id(), node.machine.uuid(0));
    let expected =
        format!("process {pid} does not compute on GPU {uuid}, which {} requires", place(&node, 0));
    assert_eq!(problem.message, expected);
    node.assert_only_locked(&[]);
    let _process = node.machine.compute(0);
    node.until_is("the session opens by itself", &None, || rank.session.problem());
}

#[test]
fn a_process_that_leaves_the_gpu_loses_the_lease_that_requires_it() {
    let machine = MachineSetup { gpus: "1xA40", ..MachineSetup::default() };
    let rules = "[[rule]]\nrequire_process = true\n";
    let node = Node::start_with(&Setup { machine, rules, idle_limit_s: 1, ..Setup::default() });
    let process = node.machine.compute(0);
    let mut client = Client::connect(&node.socket());
    client.open(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0)))).unwrap();
    client.be_patient_for(Duration::from_secs(3));
    assert!(client.answer().is_err(), "silent beyond the idle limit, it keeps its lease");
    drop(process);
    client.be_patient_for(pfo_tests::wait::LONG);
    match client.answer().unwrap() {
        DaemonMessage::Closing(closing) => {
            assert_eq!(closing.reason, ClosingReason::Revoked);
            assert_printed!(closing.message);
        }
        other => panic!("{other:?}"),
    }
    node.assert_only_locked(&[]);
}

#[test]
fn a_refusal_for_want_of_a_process_keeps_the_gpu_from_nobody() {
    let node = node("1xA40", "[[rule]]\nrequire_process = true\n");
    let _process = node.machine.compute(0);
    node.machine.fault("nvmlDeviceGetComputeRunningProcesses_v3", "latency:500", None);
    let name = || GpuName::Uuid(node.machine.uuid(0));
    let mut squatter = Relay::connect(&node, &Identity::own());
    squatter.say(&ClientMessage::Hello(hello("squatter", 0, 1, name())));
    node.until_so("it is looked at", || node.status().gpus[0].holder.is_some());
    Client::connect(&node.socket()).open(hello(JOB, 0, 1, name())).unwrap();
    assert!(matches!(squatter.answer(), DaemonMessage::Refusal(_)));
}

#[test]
fn the_own_lock_of_an_administrator_is_put_back_after_any_death() {
    let mut node = node("1xA40", "[[rule]]\nrestore_to_mhz = [210, 1005]\n");
    let locked_rank = |node: &Node| {
        let rank = Rank::open(node, JOB, 0, 1, 2);
        node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
        rank.session.step_begin();
        node.until_is("the lock", &Some(900), || node.machine.sm_lock(0));
        rank
    };
    drop(locked_rank(&node));
    node.until_is("the lock of the administrator", &Some(1005), || node.machine.sm_lock(0));
    node.until_is("the ledger names no lock", &0, || node.ledger_entries());

    let rank = locked_rank(&node);
    node.kill_daemon();
    drop(rank);
    assert_eq!((node.machine.sm_lock(0), node.ledger_entries()), (Some(900), 1));
    // The ledger knows what to put back, even if the configuration says something else by now.
    let text = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), text.replace("restore_to_mhz", "#")).unwrap();
    assert!(Daemon::start(&node, &["--restore-only"]).process.wait().success());
    assert_eq!((node.machine.sm_lock(0), node.ledger_entries()), (Some(1005), 0));
}

#[test]
fn policy_explain_names_the_rule_that_decides_for_each_user_and_gpu() {
    needs_root!();
    let node = node(
        "1xA40,1xA100",
        "[[rule]]\nusers = [61234]\ngpus = ['*A100*']\nmax_mhz = 1200\n\
         [[rule]]\ngpus = ['*A100*']\nallow = false\n",
    );
    let explain = |who: &Identity, arguments: &[&str]| {
        let ran = node.pfoctl(who, &[&["policy", "explain", "--json"], arguments].concat());
        let decided: Vec<_> = ran
            .json()
            .as_array()
            .unwrap()
            .iter()
            .map(|verdict| {
                let max = verdict["terms"]["max_mhz"].as_u64();
                (verdict["decided_by"].as_str().unwrap().to_owned(), max)
            })
            .collect();
        (ran.code, decided)
    };
    let by_default = ("[lease], as no rule matches".to_owned(), Some(10_000));
    assert_eq!(
        explain(&Identity::trainer(), &[]),
        (Some(0), vec![by_default.clone(), (place(&node, 0), Some(1200))])
    );
    let denied = vec![by_default.clone(), (place(&node, 1), None)];
    assert_eq!(explain(&Identity::other_trainer(), &[]), (Some(0), denied.clone()));
    assert_eq!(explain(&Identity::administrator(), &[]), (Some(0), denied.clone()));
    // Root asks for others.
    let a100 = node.machine.uuid(1).to_string();
    let asked = explain(&Identity::administrator(), &["--user", "61234", "--gpu", &a100]);
    assert_eq!(asked, (Some(0), vec![(place(&node, 0), Some(1200))]));
    assert_eq!(explain(&Identity::own(), &["--user", "root"]), (Some(0), denied));
    let outsider = (Some(4), vec![("no rule matches".to_owned(), None); 2]);
    assert_eq!(explain(&Identity::own(), &["--user", "nobody"]), outsider);
    let ran = node.pfoctl(&Identity::trainer(), &["policy", "explain", "--user", "nobody"]);
    assert_printed!(ran);
}

#[test]
fn a_rule_lets_a_user_outside_the_group_train_on_its_gpus_only() {
    needs_root!();
    let node = node("4xA40", "[[rule]]\nusers = [61237]\ngpus = [0, 1, 2]\n");
    fs::set_permissions(node.socket(), fs::Permissions::from_mode(0o666)).unwrap();
    let mut training = Training::start_for(&node, JOB, &Identity::outsider(), 3, &[]);
    let (status, report) = training.wait();
    assert!(status.success(), "{}", training.process.errors());
    let codes: Vec<_> = report["ranks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rank| rank["problem_at_setup"]["code"].as_i64())
        .collect();
    assert_eq!(codes, [None, None, None, Some(2)]);
}

#[test]
fn whom_a_rule_lets_in_the_agent_serves_too_and_nobody_else() {
    needs_root!();
    for (rule, code) in [("", Some(4)), ("[[rule]]\nusers = [61237]\n", Some(0))] {
        let node = node("1xA40", rule);
        for socket in [node.socket(), node.agent_socket()] {
            fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
        }
        let ran = node.pfoctl(&Identity::outsider(), &["p2p", "show"]);
        assert_eq!(ran.code, code, "{ran:?}");
    }
}
