//! Ctrl-C while `pfoctl plan` writes: what was asked for is there whole or not at all, and nothing
//! else is left.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::pfoctl::Bench;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const RUNS: u32 = 40;

fn entries(bench: &Bench) -> Vec<String> {
    let entry = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let names = fs::read_dir(bench.path(".")).unwrap().map(entry);
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Until something unfinished is there, or it is finished.
fn wait_for_writing(bench: &Bench, made: &str) {
    let is_written = |name: &String| name.starts_with(".tmp") || name == made;
    let began = Instant::now();
    while !entries(bench).iter().any(is_written) {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is written");
        sleep(Duration::from_micros(100));
    }
}

/// Runs a command again and again, each time until `moment` returns, and then ends it by a signal.
/// Calls `check` where it was fast enough to write `made`; says how often it was not.
fn interrupt(
    bench: &Bench,
    signal: Signal,
    arguments: &[&str],
    made: &str,
    moment: impl Fn(u32),
    check: impl Fn(),
) -> u32 {
    let before = entries(bench);
    let mut ended = 0;
    for run in 0..RUNS {
        let mut child = bench.pfoctl(arguments).stdout(Stdio::null()).spawn().unwrap();
        moment(run);
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        let status = child.wait().unwrap();
        match status.signal() {
            None => assert!(status.success(), "{status}"),
            Some(by) => {
                assert_eq!(by, signal as i32);
                ended += 1;
            }
        }
        let mut left = entries(bench);
        if let Some(place) = left.iter().position(|name| name == made) {
            left.remove(place);
            check();
            let path = bench.path(made);
            fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
        }
        assert_eq!(left, before, "after {signal} in run {run}");
    }
    ended
}

#[test]
fn a_directory_of_plans_is_whole_or_absent_and_nothing_else_is_left() {
    let bench = Bench::new();
    bench.frontier("frontier", 400);
    let sample = ["plan", "sample", "frontier", "-n", "1", "-o", "files"];
    let began = Instant::now();
    bench.done(&sample);
    let length = began.elapsed();
    let count = || fs::read_dir(bench.path("files")).unwrap().count();
    let whole = count();
    fs::remove_dir_all(bench.path("files")).unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let moment = |run| sleep(length * run / RUNS);
        let check = || assert_eq!(count(), whole);
        let ended = interrupt(&bench, signal, &sample, "files", moment, check);
        assert!(ended > 0, "no run was still going on");
    }
}

#[test]
fn a_frontier_is_whole_or_absent_and_nothing_else_is_left() {
    let bench = Bench::new();
    let optimize = ["plan", "optimize", "profile.csv", "--microbatches", "8", "--p2p-power", "80"];
    let optimize = [&optimize[..], &["--plans", "10", "-o", "frontier"]].concat();
    let moment = |_| wait_for_writing(&bench, "frontier");
    let check = || drop(bench.done(&["plan", "show", "frontier"]));
    let ended = interrupt(&bench, Signal::SIGINT, &optimize, "frontier", moment, check);
    assert!(ended > 0, "no run was still going on");
}

#[test]
fn a_signal_that_is_to_be_ignored_ends_nothing() {
    let bench = Bench::new();
    bench.frontier("frontier", 400);
    // As `nohup` starts programs.
    let mut child = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_pfoctl")])
        .args(["plan", "sample", "frontier", "-n", "1", "-o", "files"])
        .current_dir(bench.path("."))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_writing(&bench, "files");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGHUP).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(bench.path("files").exists());
}
