//! `pfoctl policy explain` against a daemon with a known policy.

use crate::fake_daemon::FakeDaemon;
use pfo_protocol::{GpuListing, LeaseTerms, Mhz, PolicyVerdict, Request, Response, Uid};

fn terms() -> LeaseTerms {
    LeaseTerms {
        min_mhz: Mhz(600),
        max_mhz: Mhz(1200),
        min_power_limit_w: 150,
        changes_per_second: 1000,
        restore_to_mhz: Some((Mhz(210), Mhz(1200))),
        sessions_per_user: 8,
        idle_limit_s: 60,
        require_process: true,
        require_device: true,
    }
}

fn daemon<const N: usize>(terms: [Option<LeaseTerms>; N]) -> FakeDaemon {
    let verdicts = (0..).zip(terms).map(|(index, terms)| {
        let rule = terms.as_ref().map(|_| "/etc/pfo/pfod.toml, line 31");
        let decided_by = rule.unwrap_or("no rule matches").to_owned();
        let gpu = GpuListing {
            uuid: format!("GPU-{index}").parse().unwrap(),
            pci_bus_id: format!("00000000:0{index}:00.0").parse().unwrap(),
            model: "NVIDIA A100".to_owned(),
        };
        PolicyVerdict { index, gpu, decided_by, terms }
    });
    let verdicts: Vec<_> = verdicts.collect();
    let gpus: Vec<_> = verdicts.iter().map(|verdict: &PolicyVerdict| verdict.gpu.clone()).collect();
    FakeDaemon::answering(move |request| match request {
        Request::Gpus => Response::Gpus(gpus.clone()),
        Request::Status => {
            let status = serde_json::from_str(include_str!("golden/status.json"));
            Response::Status(Box::new(status.unwrap()))
        }
        _ => Response::Policy(verdicts.clone()),
    })
}

#[test]
fn yes_and_no_are_explained_with_the_line_and_the_terms() {
    let daemon = daemon([Some(terms()), None]);
    let ran = daemon.run(&["policy", "explain", "--user", "4000000001"]);
    assert_printed!(ran);
    match daemon.request() {
        Request::PolicyExplain { who: Some(who), gpu: None } => {
            assert_eq!((who.uid, who.groups), (Uid(4_000_000_001), vec![]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_exit_code_says_that_the_answer_is_no() {
    let daemon = daemon([None, None]);
    let explain = ["policy", "explain", "--json", "--gpu", "GPU-1"];
    assert_eq!(daemon.run(&explain).code, Some(4));
    assert_eq!(daemon.request(), Request::Gpus);
    let asked = Request::PolicyExplain { who: None, gpu: Some("GPU-1".parse().unwrap()) };
    assert_eq!(daemon.request(), asked);
    assert_printed!(daemon.run(&[&explain[..], &["--user", "root"]].concat()));
}

#[test]
fn neighbours_of_which_the_same_is_decided_are_one_answer() {
    assert_printed!(
        daemon([Some(terms()), Some(terms()), None]).run(&["policy", "explain", "--user", "root"])
    );
}
