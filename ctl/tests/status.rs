//! `pfoctl status` and `pfoctl gpus` against a daemon with a known status.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::fake_daemon::{FakeDaemon, with_gpus};
use crate::ran::Ran;
use pfo_protocol::{
    AgentResponse, AgentStatus, DriverUse, Refusal, RefusalCode, Request, Response, Status,
};

const STATUS_JSON: &str = include_str!("golden/status.json");
const AGENT_JSON: &str = include_str!("golden/agent.json");

fn status() -> Status {
    serde_json::from_str(STATUS_JSON).unwrap()
}

fn agent() -> AgentStatus {
    serde_json::from_str(AGENT_JSON).unwrap()
}

/// Both daemons, as JSON prints their status.
fn both() -> serde_json::Value {
    let mut both: serde_json::Value = serde_json::from_str(STATUS_JSON).unwrap();
    both["agent"] = serde_json::from_str(AGENT_JSON).unwrap();
    both
}

fn daemon(status: Status) -> FakeDaemon {
    let mut agent = agent();
    agent.jobs.retain(|watched| status.jobs.iter().any(|job| job.job == watched.job));
    let pfod = FakeDaemon::answering(move |_| Response::Status(Box::new(status.clone())));
    pfod.with_agent(move |_| AgentResponse::Status(Box::new(agent.clone())))
}

#[test]
fn a_running_job_reads_well() {
    let daemon = daemon(status());
    assert_printed!(daemon.run(&["status"]));
    assert_eq!(daemon.request(), Request::Status);
}

#[test]
fn a_node_in_trouble_reads_well() {
    let mut status = status();
    status.daemon.driver = None;
    status.daemon.driver_problem = Some("libnvidia-ml.so.1 cannot be loaded".to_owned());
    status.daemon.unrestored = vec!["GPU-93cc0004: the GPU is lost".to_owned()];
    status.daemon.config.refused = Some("/etc/pfo/pfod.toml, line 3, column 1: no".to_owned());
    status.daemon.config.restart_needed_for = vec!["paths.ledger".to_owned()];
    status.daemon.config.unknown_names = vec!["user zoe (line 31)".to_owned()];
    status.gpus.clear();
    let job = &mut status.jobs[0];
    job.swap_at_step = None;
    job.loaded = None;
    job.plan.as_mut().unwrap().suspended = Some("8 steps in a row did not follow it".to_owned());
    job.ranks.truncate(2);
    job.windows.iter_mut().for_each(|window| window.ranks = 2);
    job.ranks[0].problem = Some("the driver hangs for 12 s".to_owned());
    assert_printed!(daemon(status).run(&["status"]));
}

#[test]
fn an_idle_node_reads_well() {
    let mut status = status();
    status.jobs.clear();
    status.daemon.sessions = 0;
    for gpu in &mut status.gpus {
        (gpu.holder, gpu.leased) = (None, false);
        gpu.problem = None;
        gpu.requested_mhz = None;
        gpu.memory_locked_mhz = None;
        gpu.driver_use = DriverUse::default();
    }
    assert_printed!(daemon(status).run(&["status"]));
}

#[test]
fn json_is_the_status_of_both_daemons_field_by_field() {
    let ran = daemon(status()).run(&["status", "--json"]);
    assert_eq!(ran.json(), both());
    assert_eq!(serde_json::from_str::<Status>(&ran.stdout).unwrap(), status());
}

#[test]
fn without_an_agent_the_status_of_pfod_is_shown_and_the_agent_missed() {
    let daemon = FakeDaemon::answering(|_| Response::Status(Box::new(status())));
    assert_printed!(daemon.run(&["status"]));
    let json = daemon.run(&["status", "--json"]).json();
    assert_eq!(
        (&json["agent"], &json["jobs"][0]["job"]),
        (&serde_json::Value::Null, &"gpt-7b".into())
    );
}

#[test]
fn a_job_that_is_asked_for_is_shown_alone() {
    let mut two = status();
    let mut other = two.jobs[0].clone();
    other.job = "other".parse().unwrap();
    two.jobs.push(other);
    let daemon = daemon(two);
    let json = daemon.run(&["status", "--json", "--job", "gpt-7b"]).json();
    assert_eq!(json["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(json["gpus"].as_array().unwrap().len(), 4, "only the job's own");
    let ran = daemon.run(&["status", "gpt-7b"]);
    assert_eq!(daemon.run(&["status", "--job", "gpt-7b"]).stdout, ran.stdout, "as before");
    assert_printed!(ran);
}

#[test]
fn an_unknown_job_is_refused_by_name() {
    assert_printed!(daemon(status()).run(&["status", "--job", "nothing"]));
}

#[test]
fn a_reader_that_goes_away_is_no_error_and_no_panic() {
    let mut status = status();
    // More than a pipe holds, so that the writer is certain to notice.
    let ranks = status.jobs[0].ranks.clone();
    status.jobs[0].ranks = ranks.iter().cycle().take(4000).cloned().collect();
    let daemon = daemon(status);
    let mut child =
        daemon.pfoctl(&["status"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
    assert!(line.starts_with("pfod 0.1.0"), "{line}");
}

#[test]
fn watch_continues_until_its_reader_is_gone() {
    let daemon = daemon(status());
    let mut child = daemon
        .pfoctl(&["status", "--json", "--watch", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line = lines.next().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Status>(&line).unwrap(), status());
    }
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn watch_outlives_a_daemon_that_answers_nothing_for_a_while() {
    let asked = AtomicU32::new(0);
    let daemon = FakeDaemon::answering(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        1 => Response::Refused(Refusal::new(RefusalCode::ShuttingDown, "going down", "")),
        _ => Response::Status(Box::new(status())),
    });
    let mut command = daemon.pfoctl(&["status", "--json", "--watch", "0.1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Status>(&line).unwrap(), status());
    }
    drop(lines);
    assert_printed!(Ran::ended(&command, child));
}

#[test]
fn gpus_are_listed_with_their_whole_names() {
    let daemon = FakeDaemon::answering(|request| match request {
        Request::Gpus => Response::Gpus(Vec::new()),
        _ => with_gpus([(0, "GPU-6f2c0001-8a11"), (2, "GPU-6f2c0001-8a13")]),
    });
    assert_printed!(daemon.run(&["gpus"]), daemon.run(&["gpus", "--json"]));
}

#[test]
fn help_lists_the_exit_codes_and_the_environment() {
    assert_printed!(daemon(status()).run(&["--help"]));
}
