//! `pfoctl clocks reset` against a daemon that can, cannot, or will not.

mod fake_daemon;

use fake_daemon::FakeDaemon;
use pfo_protocol::{GpuName, RefusalCode, Request, ResetOutcome, Response};

fn daemon(restored: [bool; 2]) -> FakeDaemon {
    FakeDaemon::answering(move |_| {
        let outcome = |uuid: &str, restored| ResetOutcome {
            uuid: uuid.parse().unwrap(),
            outcome: if restored { "clocks restored" } else { "the GPU is lost" }.to_owned(),
            restored,
        };
        Response::Reset(vec![outcome("GPU-1", restored[0]), outcome("GPU-2", restored[1])])
    })
}

#[test]
fn what_became_of_each_gpu_is_told() {
    let daemon = daemon([true, true]);
    let ran = daemon.run(&["clocks", "reset"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("GPU-2  clocks restored\n"), "{}", ran.stdout);
    let expected = Request::ClocksReset { gpu: None, all: false };
    assert_eq!(daemon.request(), expected);
}

#[test]
fn a_gpu_may_be_named_by_uuid_or_bus_id() {
    let daemon = daemon([true, true]);
    for name in ["GPU-1", "00000000:07:00.0"] {
        daemon.run(&["clocks", "reset", "--gpu", name, "--all"]);
        let expected =
            Request::ClocksReset { gpu: Some(name.parse::<GpuName>().unwrap()), all: true };
        assert_eq!(daemon.request(), expected);
    }
    assert_eq!(daemon.run(&["clocks", "reset", "--gpu", "no GPU"]).code, Some(2));
}

#[test]
fn one_gpu_that_stays_locked_is_a_failure_with_everything_still_printed() {
    let daemon = daemon([true, false]);
    let ran = daemon.run(&["clocks", "reset", "--json"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.json()[0]["restored"], true);
    assert_eq!(ran.json()[1]["outcome"], "the GPU is lost");
    assert!(ran.stderr.starts_with("pfoctl: 1 of 2 GPUs"), "{}", ran.stderr);
}

#[test]
fn who_may_not_reset_is_told_so_and_what_to_do() {
    let daemon = FakeDaemon::refusing(
        RefusalCode::NotAuthorized,
        "only administrators may reset clocks",
        "ask a member of the group pfo-admin",
    );
    let ran = daemon.run(&["clocks", "reset"]);
    assert_eq!(ran.code, Some(4));
    assert_eq!(
        ran.stderr,
        "pfoctl: only administrators may reset clocks\nask a member of the group pfo-admin\n"
    );
}
