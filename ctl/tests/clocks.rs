//! `pfoctl clocks` against a daemon that can, cannot, or will not.

use crate::fake_daemon::{FakeDaemon, with_gpus};
use pfo_protocol::{GpuListing, GpuName, Refusal, RefusalCode, Request, ResetOutcome, Response};

fn listing(uuid: &str) -> GpuListing {
    GpuListing {
        uuid: uuid.parse().unwrap(),
        pci_bus_id: "00000000:07:00.0".parse().unwrap(),
        model: "A40".to_owned(),
    }
}

fn daemon(restored: [bool; 2]) -> FakeDaemon {
    FakeDaemon::answering(move |request| {
        let outcome = |uuid: &str, restored| ResetOutcome {
            uuid: uuid.parse().unwrap(),
            outcome: if restored { "clocks restored" } else { "the GPU is lost" }.to_owned(),
            restored,
        };
        match request {
            Request::Gpus => Response::Gpus(["GPU-1", "GPU-2"].map(listing).into()),
            Request::Status => with_gpus([(0, "GPU-1"), (2, "GPU-2")]),
            _ => {
                Response::Reset(vec![outcome("GPU-1", restored[0]), outcome("GPU-2", restored[1])])
            }
        }
    })
}

#[test]
fn the_outcome_for_each_gpu_is_printed() {
    let daemon = daemon([true, true]);
    let ran = daemon.run(&["clocks", "reset"]);
    assert_printed!(ran);
    let expected = Request::ClocksReset { gpu: None, all: false };
    assert_eq!(daemon.request(), expected);
}

#[test]
fn a_gpu_may_be_named_by_index_uuid_or_bus_id() {
    let daemon = daemon([true, true]);
    for (argument, name, looked_up) in [
        ("0", "GPU-1", Some(Request::Status)),
        ("2", "GPU-2", Some(Request::Status)),
        ("GPU-2", "GPU-2", Some(Request::Gpus)),
        ("00000000:07:00.0", "00000000:07:00.0", None),
    ] {
        daemon.run(&["clocks", "reset", "--gpu", argument, "--all"]);
        if let Some(looked_up) = looked_up {
            assert_eq!(daemon.request(), looked_up);
        }
        let expected =
            Request::ClocksReset { gpu: Some(name.parse::<GpuName>().unwrap()), all: true };
        assert_eq!(daemon.request(), expected);
    }
    assert_printed!(daemon.run(&["clocks", "reset", "--gpu", "no GPU"]));
}

#[test]
fn a_gpu_that_is_lost_is_no_other_gpu() {
    let daemon = daemon([true, true]);
    assert_printed!(
        daemon.run(&["clocks", "reset", "--gpu", "1"]),
        daemon.run(&["clocks", "reset", "--gpu", "3"]),
    );
}

#[test]
fn one_gpu_that_stays_locked_is_a_failure_with_everything_still_printed() {
    let daemon = daemon([true, false]);
    assert_printed!(daemon.run(&["clocks", "reset"]), daemon.run(&["clocks", "reset", "--json"]),);
}

#[test]
fn a_refused_reset_is_printed_with_its_remedy() {
    let daemon = FakeDaemon::refusing(
        RefusalCode::NotAuthorized,
        "only administrators may reset clocks",
        "ask a member of the group pfo-admin",
    );
    assert_printed!(daemon.run(&["clocks", "reset"]));
}

#[test]
fn a_loss_is_acknowledged_and_a_refusal_is_reported() {
    let daemon = FakeDaemon::answering(|_| Response::Done);
    let ran = daemon.run(&["clocks", "acknowledge"]);
    assert_eq!(daemon.request(), Request::LedgerAcknowledge);
    let refusal = Refusal::new(RefusalCode::NotAuthorized, "you may not reset clocks", "");
    let daemon = FakeDaemon::answering(move |_| Response::Refused(refusal.clone()));
    assert_printed!(ran, daemon.run(&["clocks", "acknowledge"]));
}
