//! `pfoctl reload` against a daemon with a known outcome.

use crate::fake_daemon::FakeDaemon;
use pfo_protocol::{ConfigStatus, Reloaded, Request, Response};

fn daemon(reloaded: Reloaded) -> FakeDaemon {
    FakeDaemon::answering(move |_| Response::Reloaded(reloaded.clone()))
}

#[test]
fn the_effects_of_a_reload_are_printed() {
    let daemon = daemon(Reloaded {
        config: ConfigStatus {
            file: Some("/etc/pfo/pfod.toml".to_owned()),
            refused: None,
            restart_needed_for: vec!["paths.ledger".to_owned()],
            unknown_names: vec!["user zoe (line 31)".to_owned()],
        },
        ended: vec!["job a, rank 0, process 7: no".to_owned()],
        suspended: vec!["job b, plan 2: \u{1b}[2J".to_owned()],
    });
    let ran = daemon.run(&["reload"]);
    assert_eq!(
        ran.stdout,
        "/etc/pfo/pfod.toml is in force\nrequires a restart of pfod: paths.ledger\nthis node has no user \
         zoe (line 31)\nsession ended: job a, rank 0, process 7: no\nplan suspended: job b, plan 2: \
         \\u{1b}[2J\n"
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert_eq!(daemon.request(), Request::Reload);
}

#[test]
fn a_refused_file_is_a_failure_that_says_where() {
    let why = "/etc/pfo/pfod.toml, line 3, column 1: unknown field `x`";
    let config = ConfigStatus { refused: Some(why.to_owned()), ..ConfigStatus::default() };
    let daemon = daemon(Reloaded { config, ..Reloaded::default() });
    for arguments in [&["reload"][..], &["reload", "--json"]] {
        let ran = daemon.run(arguments);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(
            ran.stderr
                .starts_with(&format!("pfoctl: {why}\nthe configuration before it stays in force")),
            "{ran:?}"
        );
    }
    assert_eq!(daemon.run(&["reload", "--json"]).json()["config"]["refused"], why);
}
