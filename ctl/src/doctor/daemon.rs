//! What the daemon says of itself: its version, its configuration, its driver, and what it still owes.

use pfo_protocol::{DaemonStatus, Status};

use super::finding::Finding;
use crate::error::Error;
use crate::exit::Exit;

const CHECK: &str = "daemon";
const CONFIGURATION: &str = "configuration";
const LIBRARY: &str = "driver-of-daemon";
const LEDGER: &str = "ledger";

/// What follows from its status, or from why there is none.
pub(crate) fn check(status: &Result<Status, Error>) -> Vec<Finding> {
    match status {
        Ok(status) => {
            let daemon = &status.daemon;
            let mut findings = vec![version(daemon)];
            findings.extend(configuration(daemon));
            findings.extend(driver(daemon));
            findings.extend(owed(daemon));
            findings
        }
        Err(error) => vec![no_status(error)],
    }
}

fn no_status(error: &Error) -> Finding {
    let remedy = error.remedy().unwrap_or_else(|| "see `journalctl -u pfod`".to_owned());
    match error {
        // Not to be in the group is a finding of another check.
        error if error.exit() == Exit::Refused => {
            Finding::unknown(CHECK, format!("the daemon does not tell you: {error}"), remedy)
        }
        Error::Version { .. } | Error::Frame { .. } => Finding::wrong(
            CHECK,
            format!("{error}; this pfoctl is {}", env!("CARGO_PKG_VERSION")),
            "install the same release of pfod and pfoctl, then `systemctl restart pfod`",
        ),
        error => Finding::wrong(CHECK, error.to_string(), remedy),
    }
}

fn version(daemon: &DaemonStatus) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    if daemon.version == own {
        return Finding::ok(CHECK, format!("pfod {own} answers (process {})", daemon.pid));
    }
    Finding::warning(
        CHECK,
        format!("pfod {} runs, but pfoctl is {own}", daemon.version),
        "`systemctl restart pfod` runs the installed one; sessions survive that",
    )
}

fn configuration(daemon: &DaemonStatus) -> Vec<Finding> {
    let config = &daemon.config;
    let mut findings = Vec::new();
    if let Some(why) = &config.refused {
        let remedy = "correct it, then `pfoctl reload`; what was in force before still is";
        findings.push(Finding::wrong(CONFIGURATION, format!("refused: {why}"), remedy));
    }
    for key in &config.restart_needed_for {
        let message = format!("the new {key} is not in force");
        findings.push(Finding::warning(CONFIGURATION, message, "`systemctl restart pfod`"));
    }
    for name in &config.unknown_names {
        let message = format!("there is no {name}: nobody has the rights that it was given");
        findings.push(Finding::warning(CONFIGURATION, message, "add it, or correct the name"));
    }
    if findings.is_empty() {
        let file = config.file.as_deref().unwrap_or("without a file, the defaults");
        findings.push(Finding::ok(CONFIGURATION, format!("{file} in force")));
    }
    findings
}

fn driver(daemon: &DaemonStatus) -> Option<Finding> {
    let problem = daemon.driver_problem.as_ref()?;
    let remedy = "pfod goes on trying; if the driver works otherwise, see driver.library in its \
                  configuration and DeviceAllow= in its unit";
    Some(Finding::wrong(LIBRARY, format!("pfod has no driver: {problem}"), remedy))
}

fn owed(daemon: &DaemonStatus) -> Vec<Finding> {
    let finding = |gpu: &String| {
        let remedy = "pfod goes on trying; `nvidia-smi` and the kernel's log say what is wrong \
                      with the GPU";
        Finding::wrong(LEDGER, format!("still locked, though its session is gone: {gpu}"), remedy)
    };
    match daemon.unrestored.as_slice() {
        [] => vec![Finding::ok(LEDGER, "no lock is left of a session that is gone")],
        gpus => gpus.iter().map(finding).collect(),
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Refusal, RefusalCode};

    use super::super::finding::Level;
    use super::*;

    fn status() -> Status {
        serde_json::from_str(include_str!("../../tests/golden/status.json")).unwrap()
    }

    fn worst(status: Status) -> (Level, &'static str) {
        let worst = check(&Ok(status)).into_iter().max_by_key(|finding| finding.level).unwrap();
        (worst.level, worst.check)
    }

    #[test]
    fn each_thing_that_the_daemon_tells_of_itself_is_judged() {
        assert_eq!(worst(status()).0, Level::Ok);
        let changed = |change: &dyn Fn(&mut DaemonStatus)| {
            let mut status = status();
            change(&mut status.daemon);
            worst(status)
        };
        let older = changed(&|daemon| daemon.version = "0.0.1".to_owned());
        assert_eq!(older, (Level::Warning, CHECK));
        let refused = changed(&|daemon| daemon.config.refused = Some("line 3".to_owned()));
        assert_eq!(refused, (Level::Wrong, CONFIGURATION));
        let due = changed(&|daemon| daemon.config.restart_needed_for = vec!["x".to_owned()]);
        assert_eq!(due, (Level::Warning, CONFIGURATION));
        let unknown = changed(&|daemon| daemon.config.unknown_names = vec!["x".to_owned()]);
        assert_eq!(unknown, (Level::Warning, CONFIGURATION));
        let blind = changed(&|daemon| daemon.driver_problem = Some("x".to_owned()));
        assert_eq!(blind, (Level::Wrong, LIBRARY));
        let stale = changed(&|daemon| daemon.unrestored = vec!["GPU-1".to_owned()]);
        assert_eq!(stale, (Level::Wrong, LEDGER));
    }

    #[test]
    fn a_daemon_that_refuses_to_tell_is_told_from_one_that_is_not_there() {
        let refusal = Refusal::new(RefusalCode::NotAuthorized, "no", "");
        assert_eq!(check(&Err(Error::Refused(refusal)))[0].level, Level::Unknown);
        let absent = &check(&Err(Error::NobodyListens("/run/s".into())))[0];
        assert_eq!(absent.level, Level::Wrong);
        assert!(absent.remedy.as_ref().unwrap().contains("journalctl -u pfod"), "{absent:?}");
    }
}
