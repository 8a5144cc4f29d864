//! `pfoctl plan load`, `swap` and `rollback` against a daemon that says yes, no, or nothing yet.

use std::io::Write;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::fake_daemon::FakeDaemon;
use crate::ran::{Ran, pfoctl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pfo_protocol::{
    AgentRequest, AgentResponse, ClockTable, Instruction, JobSelector, Mhz, PlanStatus,
    PlannedUnit, RefusalCode, Request, Response, SwapTarget, Swapped, Uid, Unit,
};

const PLAN: &[u8] =
    br#"{"format": "pfo-plan/1", "gpu": "A100", "schedule": "1f1b", "num_stages": 1,
    "num_microbatches": 1, "p2p_blocking_power_w": 80.0, "predicted": null,
    "stages": [{"stage": 0, "instructions": [
        {"instruction": "forward", "microbatch": 0, "frequency_mhz": 1410},
        {"instruction": "backward", "microbatch": 0, "frequency_mhz": 1200}]}]}"#;

fn plan_status() -> PlanStatus {
    PlanStatus {
        number: 3,
        label: "fast.json".to_owned(),
        predicted_time_s: Some(1.25),
        predicted_energy_j: Some(3390.5),
        suspended: None,
        power_limits_w: Vec::new(),
    }
}

/// A daemon that loads and swaps, and of four ranks has changed `changed`.
fn willing(changed: u32) -> FakeDaemon {
    FakeDaemon::answering(move |request| match request {
        Request::PlanLoad { .. } => Response::Loaded(plan_status()),
        Request::Status => {
            let golden = include_str!("golden/status.json");
            Response::Status(Box::new(serde_json::from_str(golden).unwrap()))
        }
        Request::PlanSwap { target, .. } => Response::Swapped(Swapped {
            plan: (*target != SwapTarget::DefaultClocks).then(plan_status),
            step: 40,
            ranks: 4,
            changed,
        }),
        other => panic!("{other:?}"),
    })
}

fn table() -> ClockTable {
    let unit = |instruction, mhz| PlannedUnit {
        unit: Unit::new(instruction, 0),
        mhz: Mhz(mhz),
        wait_mhz: None,
    };
    let units = vec![unit(Instruction::Forward, 1410), unit(Instruction::Backward, 1200)];
    ClockTable::new(1, None, vec![units]).unwrap()
}

fn job(uid: Option<Uid>) -> JobSelector {
    JobSelector { job: "gpt".parse().unwrap(), uid }
}

#[test]
fn a_plan_is_sent_as_a_clock_table_and_called_after_its_file() {
    let daemon = willing(0);
    let plan = daemon.file("fast.json", PLAN);
    let ran = daemon.run(&["plan", "load", "gpt", &plan]);
    assert_printed!(ran);
    let expected =
        Request::PlanLoad { job: job(None), label: "fast.json".to_owned(), table: table() };
    assert_eq!(daemon.request(), expected);
}

#[test]
fn a_plan_may_come_from_standard_input_for_another_users_job() {
    let daemon = willing(0);
    let mut command = daemon
        .pfoctl(&["plan", "load", "gpt", "-", "--user", "root", "--label", "by hand", "--json"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(PLAN).unwrap();
    assert_printed!(Ran::ended(&command, child));
    let (job, label) = (job(Some(Uid::ROOT)), "by hand".to_owned());
    let expected = Request::PlanLoad { job, label, table: table() };
    assert_eq!(daemon.request(), expected);
}

#[test]
fn a_swap_with_a_plan_takes_it_along_so_that_a_refused_one_is_not_loaded() {
    let daemon = willing(0);
    let plan = daemon.file("fast.json", PLAN);
    let ran = daemon.run(&["plan", "swap", "gpt", &plan, "--at-step", "40"]);
    assert_printed!(ran);
    let expected = Request::PlanSwap {
        job: job(None),
        target: SwapTarget::Table { label: "fast.json".to_owned(), table: table() },
        at_step: Some(40),
        after: None,
        wait: false,
    };
    assert_eq!(daemon.request(), expected);
}

#[test]
fn a_job_of_a_fleet_that_is_on_one_node_by_now_is_swapped_there() {
    // An agent that has just begun may not know yet that other nodes have left.
    let swapped = Swapped { plan: Some(plan_status()), step: 40, ranks: 4, changed: 4 };
    let daemon = willing(4).with_agent(move |request| match request {
        AgentRequest::Status => {
            let golden = include_str!("golden/agent.json");
            AgentResponse::Status(Box::new(serde_json::from_str(golden).unwrap()))
        }
        AgentRequest::FleetSwap { .. } => AgentResponse::Swapped(swapped.clone()),
        other => panic!("{other:?}"),
    });
    let plan = daemon.file("fast.json", PLAN);
    for command in [&["plan", "swap", "gpt-7b", &plan][..], &["plan", "rollback", "gpt-7b"]] {
        let ran = daemon.run(command);
        assert_printed!(ran);
    }
}

#[test]
fn without_a_plan_the_loaded_one_the_previous_one_or_none_is_swapped_to() {
    let daemon = willing(4);
    let target = |arguments: &[&str]| {
        let ran = daemon.run(arguments);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        loop {
            match daemon.request() {
                Request::PlanSwap { target, wait, .. } => return (target, wait),
                Request::Status => {}
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(target(&["plan", "swap", "gpt"]), (SwapTarget::Loaded, false));
    assert_eq!(
        target(&["plan", "swap", "gpt", "--default-clocks", "--wait"]),
        (SwapTarget::DefaultClocks, true)
    );
    assert_eq!(target(&["plan", "rollback", "gpt"]), (SwapTarget::Previous, false));
    assert_eq!(target(&["plan", "rollback", "gpt", "--wait"]), (SwapTarget::Previous, true));
}

#[test]
fn a_swap_as_json_is_the_protocols_answer() {
    assert_printed!(willing(2).run(&["plan", "swap", "gpt", "--json"]));
}

#[test]
fn a_wait_that_ends_before_every_rank_changed_failed() {
    assert_printed!(willing(3).run(&["plan", "swap", "gpt", "--wait"]));
}

#[test]
fn a_plan_that_does_not_fit_is_refused_with_the_daemons_words() {
    let daemon = FakeDaemon::refusing(
        RefusalCode::PlanDoesNotFit,
        "the plan has 4 stages, job gpt has 8",
        "make a plan for 8 stages",
    );
    let plan = daemon.file("fast.json", PLAN);
    let ran = daemon.run(&["plan", "swap", "gpt", &plan]);
    assert_printed!(ran);
    assert!(matches!(daemon.request(), Request::PlanSwap { .. }));
    assert!(daemon.was_not_asked(), "a refused plan must not be loaded");
}

#[test]
fn a_file_that_is_no_plan_is_named_and_never_sent() {
    let daemon = willing(0);
    let load = |content: &[u8]| {
        let plan = daemon.file("odd.json", content);
        daemon.run(&["plan", "load", "gpt", &plan])
    };
    assert_printed!(
        load(b"stage,instruction"),
        load(b"{\"format\": \"pfo-plan/9\"}"),
        load(b""),
        daemon.run(&["plan", "load", "gpt", "/nowhere/plan.json"]),
    );
    assert!(daemon.was_not_asked());
}

#[test]
fn contradictory_or_malformed_arguments_are_usage_errors() {
    let daemon = willing(0);
    assert_printed!(
        daemon.run(&["plan", "swap", "gpt", "p.json", "--default-clocks"]),
        daemon.run(&["plan", "swap", "a job"]),
        daemon.run(&["plan", "swap", "gpt", "--user", "nobody-like-this"]),
        daemon.run(&["plan", "swap", "gpt", "--at-step", "soon"]),
        daemon.run(&["plan", "swap", "gpt", "--label", "for no plan"]),
        daemon.run(&["plan", "load", "gpt"]),
        daemon.run(&["status", "--watch", "0"]),
    );
    assert!(daemon.was_not_asked());
}

#[test]
fn ctrl_c_in_a_wait_says_that_the_swap_continues() {
    let (asked, was_asked) = channel();
    let daemon = FakeDaemon::answering(move |_| {
        asked.send(()).unwrap();
        std::thread::sleep(Duration::from_secs(60));
        unreachable!("the test is over by now")
    });
    let mut command = daemon.pfoctl(&["plan", "swap", "gpt", "--wait"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    was_asked.recv_timeout(Duration::from_secs(5)).unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_printed!(Ran::ended(&command, child));
}

#[test]
fn numbers_that_mean_nothing_are_usage_errors_with_those_that_do() {
    let refused = |arguments: &[&str]| {
        let ran = Ran::of(&mut pfoctl(arguments));
        assert_eq!(ran.code, Some(2), "{ran:?}");
        ran
    };
    assert_printed!(
        refused(&["budget", "set", "2kW", "--up", "0"]),
        refused(&["budget", "set", "2kW", "--down", "0W"]),
        refused(&["budget", "terms", "--for", "job:b", "--weight", "0"]),
        refused(&["plan", "swap", "b", "--at-step", "18446744073709551615"]),
        refused(&["savings", "--month", "1969-12"]),
    );
}
