//! Power limits in the place of clocks: set for a job, and what was there before put back, however it ends.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;
use pfo_protocol::{
    AgentRequest, ClientMessage, GpuName, LeaseTarget, RefusalCode, Request, Response, SettleTimes,
    SwapTarget, TrialLength, TrialResult, TrialRun,
};
use pfo_tests::{
    Client, Daemon, Identity, Node, Rank, STAGES, Setup, Training, assert_printed,
    control::{after_settling, job},
    hello,
};

const JOB: &str = "job";
const SET: &str = "nvmlDeviceSetPowerManagementLimit";

/// Of an A40, in watts.
const DEFAULT_W: f64 = 300.0;

fn train(node: &Node) -> Training {
    let training = Training::start(node, JOB, &Identity::own(), &[]);
    training.until_leased(node);
    training.until_step(node, 1);
    training
}

fn start_with(rules: &'static str) -> (Node, Training) {
    let node = Node::start_with(&Setup { rules, ..Setup::default() });
    let training = train(&node);
    (node, training)
}

fn start() -> (Node, Training) {
    start_with("")
}

fn limits(watts: u32) -> TrialRun {
    TrialRun::PowerLimits { label: "limits".into(), limits_w: vec![watts; STAGES as usize] }
}

/// Lets a job continue under 150 W for every stage.
fn keep_150_w(node: &Node) {
    let mut client = node.agent_control();
    client.trial(JOB, limits(150), 1).unwrap();
    let kept = client.end_trials(JOB, true).unwrap().unwrap();
    assert_eq!(kept.power_limits_w, [150; STAGES as usize]);
    assert_eq!(limits_of(node), [150.0; STAGES as usize]);
}

fn limits_of(node: &Node) -> Vec<f64> {
    (0..STAGES as usize).map(|gpu| node.machine.power_limit_w(gpu)).collect()
}

fn until_limits_are(node: &Node, watts: f64) {
    node.until_is("the power limits", &vec![watts; STAGES as usize], || limits_of(node));
}

fn power_w(trial: &TrialResult) -> f64 {
    let energy_j: f64 = trial.steps.iter().map(|step| step.energy_j.unwrap()).sum();
    energy_j / trial.steps.iter().map(|step| step.time_s).sum::<f64>()
}

#[test]
fn a_limit_that_comes_into_force_after_the_first_measured_steps_is_waited_for() {
    let (node, training) = start();
    let mut client = node.agent_control();
    let mut record = |run| client.record(JOB, run, after_settling(3), false).unwrap();
    let free = record(TrialRun::DefaultClocks);
    // As long as a dozen steps: longer than the whole trial.
    node.machine.fault(SET, "latency:800", None);
    let limited = record(limits(150));
    let again = record(TrialRun::DefaultClocks);
    let [free_w, limited_w, again_w] = [free, limited, again].map(|trial| power_w(&trial.trial));
    assert!(limited_w < 0.8 * free_w, "{limited_w} W of {free_w} W");
    assert!(limited_w < 0.8 * again_w, "{limited_w} W of {again_w} W");
    training.stop();
}

#[test]
fn a_job_under_power_limits_draws_and_computes_less() {
    let (node, training) = start();
    let mut client = node.agent_control();
    let mut record = |run| client.record(JOB, run, after_settling(3), false).unwrap();
    let (free, limited) = (record(TrialRun::DefaultClocks), record(limits(150)));
    assert!(power_w(&limited.trial) < 0.8 * power_w(&free.trial), "{limited:?} {free:?}");
    for (limited, free) in limited.ranks.iter().zip(&free.ranks) {
        let (limited, free) = (&limited.rows[0], &free.rows[0]);
        assert!(limited.time_median_s > 1.15 * free.time_median_s, "{limited:?} {free:?}");
        assert!(limited.count > 0 && limited.left_out.throttled == 0, "{limited:?}");
    }
    let limited = limited.trial;
    assert_eq!(limited.plan.unwrap().power_limits_w, [150; STAGES as usize]);
    client.ask_agent(AgentRequest::RecordingEnd { job: job(JOB), keep: true }).unwrap();
    drop(client);
    training.until_step(&node, limited.first_step + 6);
    assert_eq!(limits_of(&node), [150.0; STAGES as usize]);
    assert!(node.status().gpus.iter().all(|gpu| gpu.power_limit_w == Some(150)));
    let shown = node.pfoctl(&Identity::own(), &["status"]).printed();
    assert!(shown.contains("limits (150 W)") && shown.contains("W of 150 W"), "{shown}");
    node.swap(JOB, SwapTarget::DefaultClocks).unwrap();
    until_limits_are(&node, DEFAULT_W);
    assert!(node.status().gpus.iter().all(|gpu| gpu.power_limit_w.is_none()));
    training.stop();
    node.assert_only_locked(&[]);
}

#[test]
fn the_limits_of_a_trial_are_gone_when_its_connection_is() {
    let (node, training) = start();
    let mut client = node.control();
    let length = TrialLength { settling_steps: 1, steps: 50_000 };
    let trial = Request::Trial { job: job(JOB), run: limits(150), length, after: None };
    client.say(&ClientMessage::Request(trial));
    until_limits_are(&node, 150.0);
    drop(client);
    until_limits_are(&node, DEFAULT_W);
    assert_eq!(node.job(JOB).plan, None);
    training.stop();
}

#[test]
fn trainers_that_are_killed_leave_no_power_limit() {
    let (node, mut training) = start();
    keep_150_w(&node);
    training.signal_ranks(&node, Signal::SIGKILL);
    node.assert_only_locked(&[]);
    training.wait();
}

#[test]
fn a_lease_that_is_revoked_leaves_no_power_limit() {
    let (node, training) = start();
    keep_150_w(&node);
    let target = LeaseTarget::Job(job(JOB));
    let revoked = Client::connect(&node.admin_socket()).ask(Request::LeaseRevoke(target));
    assert!(matches!(revoked, Ok(Response::Revoked(_))), "{revoked:?}");
    node.assert_only_locked(&[]);
    training.stop();
}

#[test]
fn a_daemon_that_is_asked_to_stop_leaves_no_power_limit() {
    let (mut node, training) = start();
    keep_150_w(&node);
    assert!(node.daemon.take().unwrap().stop().success());
    node.assert_only_locked(&[]);
    training.stop();
}

#[test]
fn restore_only_puts_the_power_limits_of_a_killed_daemon_back() {
    let (mut node, training) = start();
    node.machine.limit_power(1, 266.5);
    keep_150_w(&node);
    node.kill_daemon();
    assert_eq!(limits_of(&node), [150.0; STAGES as usize]);
    // Somebody takes the opportunity.
    node.machine.limit_power(2, 180.0);
    let mut restoring = Daemon::start(&node, &["--restore-only"]);
    assert!(restoring.process.wait().success());
    assert_eq!(limits_of(&node), [DEFAULT_W, 266.5, 180.0, DEFAULT_W]);
    assert_eq!(node.ledger_entries(), 0);
    node.until_logged("left alone");
    training.stop();
}

#[test]
fn the_successor_of_a_killed_daemon_continues_with_its_power_limits() {
    let (mut node, training) = start();
    keep_150_w(&node);
    node.kill_daemon();
    node.start_daemon();
    training.until_leased(&node);
    until_limits_are(&node, 150.0);
    assert_eq!(node.job(JOB).plan.unwrap().power_limits_w, [150; STAGES as usize]);
    training.stop();
    node.assert_only_locked(&[]);
}

#[test]
fn a_power_limit_is_in_the_ledger_before_the_driver_is_asked_for_it() {
    let (mut node, training) = start();
    node.machine.fault(SET, "hang", Some(0));
    let mut client = node.control();
    let length = TrialLength { settling_steps: 1, steps: 50_000 };
    let trial = Request::Trial { job: job(JOB), run: limits(150), length, after: None };
    client.say(&ClientMessage::Request(trial));
    node.until_so("the ledger names a power limit", || {
        let ledger = fs::read_to_string(node.ledger()).unwrap();
        ledger.contains("\"before_mw\": 300000") && ledger.contains("\"set_mw\": 150000")
    });
    assert_eq!(node.machine.power_limit_w(0), DEFAULT_W);
    node.kill_daemon();
    node.machine.clear_faults();
    node.start_daemon();
    until_limits_are(&node, DEFAULT_W);
    training.stop();
}

#[test]
fn a_power_limit_of_another_tool_is_left_alone() {
    let (node, training) = start();
    keep_150_w(&node);
    node.machine.limit_power(3, 220.0);
    node.swap(JOB, SwapTarget::DefaultClocks).unwrap();
    node.until_is("the power limits", &vec![DEFAULT_W, DEFAULT_W, DEFAULT_W, 220.0], || {
        limits_of(&node)
    });
    // What is there now is what is put back the next time.
    let mut client = node.agent_control();
    client.trial(JOB, limits(150), 1).unwrap();
    assert_eq!(limits_of(&node), [150.0; STAGES as usize]);
    drop(client);
    node.until_is("the power limits", &vec![DEFAULT_W, DEFAULT_W, DEFAULT_W, 220.0], || {
        limits_of(&node)
    });
    training.stop();
}

#[test]
fn no_power_limit_is_raised() {
    let (node, training) = start();
    node.machine.limit_power(2, 200.0);
    let refusal = node.agent_control().trial(JOB, limits(201), 1).unwrap_err();
    assert_printed!(refusal);
    node.until_is("the power limits", &vec![DEFAULT_W, DEFAULT_W, 200.0, DEFAULT_W], || {
        limits_of(&node)
    });
    training.stop();
}

#[test]
fn a_power_limit_below_the_bound_of_a_rule_is_refused_with_the_rule() {
    let (node, training) = start_with("[[rule]]\nmin_power_limit_w = 200\n");
    let refusal = node.agent_control().trial(JOB, limits(199), 1).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::PlanDoesNotFit);
    assert_eq!((node.job(JOB).plan, node.job(JOB).swap_at_step), (None, None));
    assert_printed!(refusal, node.pfoctl(&Identity::own(), &["policy", "explain"]));
    let name = GpuName::Uuid(node.machine.uuid(0));
    let range = node.control().ask(Request::PowerLimits(name)).unwrap();
    assert_eq!(range, Response::PowerLimits { lowest_w: 200, highest_w: 300 });

    node.agent_control().trial(JOB, limits(200), 1).unwrap();
    until_limits_are(&node, DEFAULT_W);
    training.stop();
}

#[test]
fn a_bound_that_comes_later_ends_what_it_does_not_allow() {
    let (node, training) = start();
    keep_150_w(&node);
    let text = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), text + "[[rule]]\nmin_power_limit_w = 200\n").unwrap();
    let reloaded = Client::connect(&node.admin_socket()).ask(Request::Reload);
    let Ok(Response::Reloaded(reloaded)) = reloaded else { panic!("{reloaded:?}") };
    assert_printed!(reloaded.suspended.join("\n"));
    until_limits_are(&node, DEFAULT_W);
    training.stop();
}

#[test]
fn a_gpu_that_takes_no_power_limit_refuses_or_ends_the_trial() {
    let mut node = Node::create(&Setup::default());
    node.machine.fault("nvmlDeviceGetPowerManagementLimitConstraints", "not-supported", Some(1));
    node.start_daemon();
    node.start_agent();
    let training = train(&node);
    let refusal = node.agent_control().trial(JOB, limits(150), 1).unwrap_err();
    assert_printed!(refusal);
    assert_eq!((node.job(JOB).plan, node.job(JOB).swap_at_step), (None, None));
    training.stop();

    let (node, training) = start();
    node.machine.fault(SET, "not-supported", Some(1));
    let refusal = node.agent_control().trial(JOB, limits(150), 50_000).unwrap_err();
    assert!(refusal.message.contains("the power limit of rank 1 was not set"), "{refusal}");
    node.until_is("GPUs with a limit", &0, || {
        limits_of(&node).into_iter().filter(|limit_w| *limit_w != DEFAULT_W).count()
    });
    training.stop();
}

fn cap(node: &Node, gpu: usize, limit_w: Option<u32>) {
    let capped = Request::PowerCap { gpu: node.machine.uuid(gpu), limit_w };
    assert_eq!(node.control_as_agent().ask(capped), Ok(Response::Done));
}

#[test]
fn a_power_cap_is_set_at_once_even_while_a_rank_is_silent_and_ends_with_its_lease() {
    let node = Node::start();
    let mut rank = Client::connect(&node.socket());
    rank.open(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0)))).unwrap();
    // A signal that comes just before the thread waits is lost, and the cap is asked for again.
    let until = |limit_w, watts| {
        node.until_is("the power limit", &watts, || {
            cap(&node, 0, limit_w);
            node.machine.power_limit_w(0)
        });
    };
    until(Some(200), 200.0);
    until(None, DEFAULT_W);
    until(Some(200), 200.0);
    drop(rank);
    node.until_is("the power limit", &DEFAULT_W, || node.machine.power_limit_w(0));
    node.until_is("a GPU that nobody leases", &Some(RefusalCode::UnknownGpu), || {
        let capped = Request::PowerCap { gpu: node.machine.uuid(0), limit_w: Some(200) };
        node.control_as_agent().ask(capped).err().map(|refusal| refusal.code)
    });
    assert_eq!(node.machine.power_limit_w(0), DEFAULT_W);
}

#[test]
fn a_power_cap_is_no_lower_than_the_policy_says_and_no_higher_than_the_limit_of_a_plan() {
    let (node, training) = start_with("[[rule]]\nmin_power_limit_w = 120\n");
    cap(&node, 0, Some(50));
    node.until_is("the least power limit", &120.0, || node.machine.power_limit_w(0));
    cap(&node, 0, Some(200));
    node.until_is("the cap", &200.0, || node.machine.power_limit_w(0));
    keep_150_w(&node);
    cap(&node, 0, None);
    node.swap(JOB, SwapTarget::DefaultClocks).unwrap();
    until_limits_are(&node, DEFAULT_W);
    // One above what the GPU has without pfo is none.
    cap(&node, 0, Some(9_999));
    let step = training.ranks(&node)[0].1.unwrap();
    training.until_step(&node, step + 3);
    until_limits_are(&node, DEFAULT_W);
    assert_eq!(node.rank(JOB, 0).step.map(|now| now > step), Some(true));
    training.stop();
}

#[test]
fn the_agent_keeps_no_gpu_below_half_of_its_default_power_where_the_administrator_says_nothing() {
    let setup = Setup { min_power_limit_w: 0, ..Setup::without_agent() };
    let node = Node::start_with(&setup);
    let _rank = Rank::open(&node, JOB, 0, 1, 2);
    node.until_is("the power limit", &(DEFAULT_W / 2.0), || {
        cap(&node, 0, Some(1));
        node.machine.power_limit_w(0)
    });
}

#[test]
fn what_an_agent_has_set_and_does_not_ask_for_again_ends_even_while_the_rank_is_silent() {
    let setup = Setup { tenant_check_s: 1, agent_silence_s: 1, ..Setup::without_agent() };
    let node = Node::start_with(&setup);
    let _rank = Rank::open(&node, JOB, 0, 1, 2);
    let settle_ms = || node.rank(JOB, 0).settle_ms;
    let configured_ms = settle_ms();
    node.until_is("the power limit", &200.0, || {
        cap(&node, 0, Some(200));
        node.machine.power_limit_w(0)
    });
    let (gpu, times) = (node.machine.uuid(0), SettleTimes::always(70_000_000));
    assert_eq!(
        node.control_as_agent().ask(Request::SettleTimes { gpu, times }),
        Ok(Response::Done)
    );
    node.until_is("the power limit", &DEFAULT_W, || node.machine.power_limit_w(0));
    node.until_is("the settle time", &configured_ms, settle_ms);
    for said in ["is kept below 200 W", "has its clocks in force after 70 ms"] {
        node.until_logged(said);
    }
    for what in ["power limit", "settle times"] {
        let said = format!("the {what} of pfo-agent ends, because it has not asked again");
        node.until_is("entries", &1, || node.log().matches(&said).count());
    }
}

#[test]
fn power_caps_are_undone_after_a_daemon_that_was_killed_and_set_again_when_they_are_asked_for() {
    let (mut node, training) = start();
    for gpu in 0..STAGES as usize {
        cap(&node, gpu, Some(160));
    }
    until_limits_are(&node, 160.0);
    node.kill_daemon();
    assert_eq!(limits_of(&node), [160.0; STAGES as usize]);
    node.start_daemon();
    until_limits_are(&node, DEFAULT_W);
    training.until_leased(&node);
    cap(&node, 0, Some(160));
    node.until_is("the cap again", &160.0, || node.machine.power_limit_w(0));
    node.kill_daemon();
    training.stop();
    node.start_daemon();
    until_limits_are(&node, DEFAULT_W);
    node.assert_only_locked(&[]);
}

#[test]
fn a_rank_that_rests_is_held_by_a_power_cap_that_is_asked_for_again_and_by_no_limit_of_its_plan() {
    let node = Node::start_with(&Setup { idle_limit_s: 1, ..Setup::default() });
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    let is = |watts: f64| {
        node.until_is("the power limit", &watts, || node.machine.power_limit_w(0));
    };
    cap(&node, 0, Some(200));
    rank.session.step_begin();
    is(200.0);
    is(DEFAULT_W);
    // As the agent does at each look.
    node.until_is("the power limit", &200.0, || {
        cap(&node, 0, Some(200));
        node.machine.power_limit_w(0)
    });
    sleep(Duration::from_secs(3));
    assert_eq!(node.machine.power_limit_w(0), 200.0, "it rests only once");
    rank.session.step_end();
    cap(&node, 0, None);
    is(DEFAULT_W);
}
