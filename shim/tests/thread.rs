//! The session's background thread, seen from the kernel. One test, for it counts all such threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fake::{Place, until};
use pfo::Session;

fn background_threads() -> Vec<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
    tasks
        .filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "pfo\n"))
        .collect()
}

fn status(task: &Path, field: &str) -> String {
    let status = fs::read_to_string(task.join("status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field));
    line.unwrap().split_whitespace().last().unwrap().to_owned()
}

#[test]
fn the_background_thread_takes_no_signal_sleeps_through_a_session_and_ends_with_it() {
    let place = Place::new();
    let daemon = place.daemon();
    let trainer = PathBuf::from("/proc/thread-self");
    let mask = status(&trainer, "SigBlk");
    let (session, _peer) = std::thread::scope(|scope| {
        let peer = scope.spawn(|| daemon.welcome());
        let session = Session::open(place.description()).unwrap();
        (session, peer.join().unwrap())
    });
    assert_eq!(status(&trainer, "SigBlk"), mask, "the trainer's own mask is left alone");

    let [task] = &background_threads()[..] else {
        panic!("not one background thread");
    };
    // All but those of which the C library says that nobody blocks them, and KILL and STOP.
    let blocked = u64::from_str_radix(&status(task, "SigBlk"), 16).unwrap();
    assert_eq!(blocked | 1 << 8 | 1 << 18 | 0b11 << 31, u64::MAX, "{blocked:x}");

    until(|| status(task, "State").ends_with("(sleeping)"));
    let wake_ups = || status(task, "voluntary_ctxt_switches");
    let before = wake_ups();
    for _ in 0..50 {
        session.step_begin();
        session.step_end();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(wake_ups(), before);

    drop(session);
    until(|| background_threads().is_empty());
}
