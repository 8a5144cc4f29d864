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
            outdated: false,
        },
        ended: vec!["job a, rank 0, process 7: no".to_owned()],
        suspended: vec!["job b, plan 2: \u{1b}[2J".to_owned()],
    });
    let ran = daemon.run(&["reload"]);
    assert_printed!(ran);
    assert_eq!(daemon.request(), Request::Reload);
}

#[test]
fn a_refused_file_is_a_failure_that_says_where() {
    let why = "/etc/pfo/pfod.toml, line 3, column 1: unknown field `x`";
    let config = ConfigStatus { refused: Some(why.to_owned()), ..ConfigStatus::default() };
    let daemon = daemon(Reloaded { config, ..Reloaded::default() });
    assert_printed!(daemon.run(&["reload"]), daemon.run(&["reload", "--json"]));
}
