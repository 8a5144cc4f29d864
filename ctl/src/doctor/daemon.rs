//! What the daemons report about themselves: version, configuration, driver, and locks still owed.

use pfo_protocol::{AgentStatus, ConfigStatus, DaemonStatus, Pid, Status};

use super::finding::Finding;
use crate::daemons::{ConnectionError, Which};
use crate::error::Error;
use crate::exit::Exit;
use crate::explained::Explained;
use crate::status::attention::config_outdated;

const CHECK: &str = "daemon";
const AGENT: &str = "agent";
const CONFIGURATION: &str = "configuration";
const LIBRARY: &str = "driver-of-daemon";
const LEDGER: &str = "ledger";
const AGENT_CONFIGURATION: &str = "agent-configuration";
const SAVINGS: &str = "savings";

/// Judges the status of `pfod`, or the reason why there is none.
pub(crate) fn check(status: &Result<Status, Error>) -> Vec<Finding> {
    match status {
        Ok(status) => {
            let daemon = &status.daemon;
            let answers = Answers { which: Which::Pfod, check: CHECK };
            let mut findings = vec![answers.version(&daemon.version, daemon.pid)];
            findings.extend(configuration(&daemon.config, Which::Pfod));
            findings.extend(driver(daemon));
            findings.extend(owed(daemon));
            findings
        }
        Err(error) => vec![Answers { which: Which::Pfod, check: CHECK }.no_status(error)],
    }
}

/// Judges the status of the agent, or the reason why there is none.
pub(crate) fn check_agent(status: &Result<AgentStatus, Error>) -> Vec<Finding> {
    let answers = Answers { which: Which::Agent, check: AGENT };
    let agent = match status {
        Ok(agent) => agent,
        Err(error) => return vec![answers.no_status(error)],
    };
    let mut findings = vec![answers.version(&agent.version, agent.pid)];
    if let Some(why) = &agent.pfod_problem {
        let message = format!("pfo-agent does not reach pfod: {why}");
        let remedy = "it retries by itself; see `systemctl status pfod-agent.socket`";
        findings.push(Finding::wrong(AGENT, message, remedy));
    }
    findings.extend(configuration(&agent.config, Which::Agent));
    if let Some(why) = &agent.ledger_problem {
        let remedy = "make room on its disk or correct its rights; pfo-agent tries again by itself";
        findings.push(Finding::wrong(SAVINGS, why.clone(), remedy));
    }
    findings
}

/// A daemon whose status was requested, and the check for which it was.
#[derive(Clone, Copy)]
struct Answers {
    which: Which,
    check: &'static str,
}

impl Answers {
    fn no_status(self, error: &Error) -> Finding {
        let Self { which, check } = self;
        let remedy = error.remedy().unwrap_or_else(|| format!("see `journalctl -u {which}`"));
        match error {
            // Membership in the group is another check's finding.
            error if error.exit() == Exit::Refused => {
                Finding::unknown(check, format!("{which} refuses to answer: {error}"), remedy)
            }
            Error::Connection(ConnectionError::Version { .. } | ConnectionError::Frame { .. }) => {
                Finding::wrong(
                    check,
                    format!("{error}; this pfoctl is {}", env!("CARGO_PKG_VERSION")),
                    format!(
                        "install the same release of {which} and pfoctl, then `systemctl restart \
                         {which}`"
                    ),
                )
            }
            error => Finding::wrong(check, error.to_string(), remedy),
        }
    }

    fn version(self, version: &str, pid: Pid) -> Finding {
        let Self { which, check } = self;
        let own = env!("CARGO_PKG_VERSION");
        if version == own {
            return Finding::ok(check, format!("{which} {own} answers (process {pid})"));
        }
        Finding::warning(
            check,
            format!("{which} {version} runs, but pfoctl is {own}"),
            format!(
                "`systemctl restart {which}` starts the installed release; sessions survive that"
            ),
        )
    }
}

fn configuration(config: &ConfigStatus, which: Which) -> Vec<Finding> {
    let check = match which {
        Which::Pfod => CONFIGURATION,
        Which::Agent => AGENT_CONFIGURATION,
    };
    let mut findings = Vec::new();
    if let Some(why) = &config.refused {
        let remedy = "correct it, then `pfoctl reload`; the configuration before it stays in force";
        findings.push(Finding::wrong(check, format!("refused: {why}"), remedy));
    } else if let Some(what) = config_outdated(config, which) {
        let remedy = format!("`pfoctl reload`, or for other keys `systemctl restart {which}`");
        findings.push(Finding::warning(check, what, remedy));
    }
    for key in &config.restart_needed_for {
        let message = format!("the new {key} is not in force");
        let remedy = format!("`systemctl restart {which}`");
        findings.push(Finding::warning(check, message, remedy));
    }
    for name in &config.unknown_names {
        let message = format!(
            "this node has no {name}: the rights that the configuration gives it have no effect"
        );
        findings.push(Finding::warning(check, message, "add it, or correct the name"));
    }
    if findings.is_empty() {
        let file = config.file.as_deref().unwrap_or("without a file, the defaults");
        findings.push(Finding::ok(check, format!("{file} in force")));
    }
    findings
}

fn driver(daemon: &DaemonStatus) -> Option<Finding> {
    if let Some(drained) = &daemon.drained {
        let message = format!("this node is drained, no GPU can be leased: {}", drained.reason);
        return Some(Finding::warning(LIBRARY, message, "`pfoctl undrain` ends that"));
    }
    let problem = daemon.driver_problem.as_ref()?;
    let remedy = "pfod retries by itself; if the driver works for others, see driver.library in \
                  its configuration and DeviceAllow= in its unit";
    Some(Finding::wrong(LIBRARY, format!("pfod has no driver: {problem}"), remedy))
}

fn owed(daemon: &DaemonStatus) -> Vec<Finding> {
    let finding = |gpu: &String| {
        let remedy = "pfod retries by itself; `nvidia-smi` and the kernel's log say what is \
                      wrong with the GPU";
        Finding::wrong(
            LEDGER,
            format!("still locked although its session has ended: {gpu}"),
            remedy,
        )
    };
    let lost = daemon.ledger_damage.as_ref().map(|why| {
        let remedy = "`pfoctl clocks reset --all`, then `pfoctl clocks acknowledge`";
        let message = format!("damaged ({why}): clocks may be locked that pfod does not know");
        Finding::wrong(LEDGER, message, remedy)
    });
    match daemon.unrestored.as_slice() {
        [] if lost.is_none() => vec![Finding::ok(LEDGER, "no session that ended has left a lock")],
        gpus => gpus.iter().map(finding).chain(lost).collect(),
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Refusal, RefusalCode};

    use super::super::finding::Level;
    use super::*;

    fn status() -> Status {
        let golden = include_str!("../../tests/golden/status.json");
        let mut status: Status = serde_json::from_str(golden).unwrap();
        status.daemon.version = env!("CARGO_PKG_VERSION").to_owned();
        status
    }

    fn worst(status: Status) -> (Level, &'static str) {
        let worst = check(&Ok(status)).into_iter().max_by_key(|finding| finding.level).unwrap();
        (worst.level, worst.check)
    }

    #[test]
    fn everything_that_pfod_reports_about_itself_is_judged() {
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
        let lost = changed(&|daemon| daemon.ledger_damage = Some("cut off".to_owned()));
        assert_eq!(lost, (Level::Wrong, LEDGER));
        let unknown = changed(&|daemon| daemon.config.unknown_names = vec!["x".to_owned()]);
        assert_eq!(unknown, (Level::Warning, CONFIGURATION));
        let blind = changed(&|daemon| daemon.driver_problem = Some("x".to_owned()));
        assert_eq!(blind, (Level::Wrong, LIBRARY));
        let stale = changed(&|daemon| daemon.unrestored = vec!["GPU-1".to_owned()]);
        assert_eq!(stale, (Level::Wrong, LEDGER));
    }

    #[test]
    fn everything_that_the_agent_reports_about_itself_is_judged() {
        let said_of = |change: &dyn Fn(&mut AgentStatus)| {
            let golden = include_str!("../../tests/golden/agent.json");
            let mut status: AgentStatus = serde_json::from_str(golden).unwrap();
            status.version = env!("CARGO_PKG_VERSION").to_owned();
            change(&mut status);
            let worst = check_agent(&Ok(status)).into_iter().max_by_key(|finding| finding.level);
            let Finding { level, check, message, .. } = worst.unwrap();
            (level, check, message)
        };
        assert_eq!(said_of(&|_| {}).0, Level::Ok);
        let refused = said_of(&|agent| agent.config.refused = Some("line 3".to_owned()));
        assert_eq!(refused, (Level::Wrong, AGENT_CONFIGURATION, "refused: line 3".to_owned()));
        let (level, check, message) = said_of(&|agent| agent.config.outdated = true);
        assert_eq!((level, check), (Level::Warning, AGENT_CONFIGURATION));
        assert!(message.ends_with("since pfo-agent read it"), "{message}");
        let full = said_of(&|agent| agent.ledger_problem = Some("no space".to_owned()));
        assert_eq!(full, (Level::Wrong, SAVINGS, "no space".to_owned()));
        let lone = said_of(&|agent| agent.pfod_problem = Some("x".to_owned()));
        assert_eq!((lone.0, lone.1), (Level::Wrong, AGENT));
    }

    #[test]
    fn a_daemon_that_refuses_is_distinguished_from_one_that_is_not_there() {
        let refusal = Refusal::new(RefusalCode::NotAuthorized, "no", "");
        assert_eq!(check(&Err(ConnectionError::Refused(refusal).into()))[0].level, Level::Unknown);
        let absent = |which| ConnectionError::NobodyListens { which, socket: "/run/s".into() };
        let findings = [
            check(&Err(absent(Which::Pfod).into())),
            check_agent(&Err(absent(Which::Agent).into())),
        ];
        for (findings, name) in findings.iter().zip(["pfod", "pfo-agent"]) {
            assert_eq!(findings[0].level, Level::Wrong);
            let remedy = findings[0].remedy.as_ref().unwrap();
            assert!(remedy.contains(&format!("systemctl start {name}`")), "{remedy}");
        }
    }
}
