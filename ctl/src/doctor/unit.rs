//! The services, as systemd describes them: whether they run, and whether a change keeps them from
//! working.

use std::collections::HashMap;
use std::process::Command;

use pfo_protocol::Pid;

use super::finding::Finding;
use crate::daemons::Which;

const CHECK: &str = "unit";
const CAPABILITY: &str = "cap_sys_admin";
const PROPERTIES: &str = "LoadState,ActiveState,Result,FragmentPath,DropInPaths,NeedDaemonReload,\
                          MainPID,CapabilityBoundingSet,PrivateUsers,PrivateDevices";

/// A unit, as systemd describes it.
#[derive(Debug, Default)]
pub(crate) struct Unit(HashMap<String, String>);

/// Asks systemd; an error is why it cannot be asked, in words.
pub(crate) fn show(name: &str) -> Result<Unit, String> {
    let output = Command::new("systemctl")
        .args(["show", name, "--property", PROPERTIES])
        .output()
        .map_err(|error| format!("systemctl does not run: {error}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(why.lines().next().unwrap_or("systemctl gives no reason").to_owned());
    }
    Ok(Unit::parse(&String::from_utf8_lossy(&output.stdout)))
}

impl Unit {
    fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    fn get(&self, property: &str) -> &str {
        self.0.get(property).map_or("", String::as_str)
    }

    fn is(&self, property: &str, value: &str) -> bool {
        self.get(property) == value
    }

    /// The main process, if it runs.
    pub(crate) fn main_pid(&self) -> Option<Pid> {
        self.get("MainPID").parse().ok().filter(|pid| *pid > 0).map(Pid)
    }
}

/// What is wrong with the service of a daemon.
pub(crate) fn check_service(which: Which, unit: &Result<Unit, String>) -> Vec<Finding> {
    let unit = match unit {
        Ok(unit) => unit,
        Err(why) => {
            let remedy = format!("without systemd, start {}", by_hand(which));
            return vec![Finding::unknown(CHECK, why, remedy)];
        }
    };
    if unit.is("LoadState", "not-found") {
        let remedy = format!("install the package; without it, start {}", by_hand(which));
        let message = format!("systemd has no {which}.service");
        return vec![Finding::warning(CHECK, message, remedy)];
    }
    let mut findings = changed(which, unit);
    if which == Which::Pfod {
        findings.extend(broken(unit));
    }
    findings.push(match unit.get("ActiveState") {
        "active" | "reloading" => Finding::ok(CHECK, format!("{which}.service runs")),
        "failed" => Finding::wrong(
            CHECK,
            format!("{which}.service has failed: {}", unit.get("Result")),
            format!("`journalctl -u {which}` says why; then `systemctl restart {which}`"),
        ),
        state => Finding::wrong(
            CHECK,
            format!("{which}.service is {state}"),
            format!("`systemctl enable --now {which}.service {}`", sockets(which)),
        ),
    });
    findings
}

/// How to run a daemon that systemd does not run.
const fn by_hand(which: Which) -> &'static str {
    match which {
        Which::Pfod => "pfod as root yourself",
        Which::Agent => "pfo-agent as user pfo-agent yourself",
    }
}

/// The socket units of a daemon.
pub(super) const fn sockets(which: Which) -> &'static str {
    match which {
        Which::Pfod => "pfod.socket pfod-admin.socket pfod-agent.socket",
        Which::Agent => "pfo-agent.socket pfo-agent-admin.socket",
    }
}

/// Changes to the packaged unit. They may be intended.
fn changed(which: Which, unit: &Unit) -> Vec<Finding> {
    let mut findings = Vec::new();
    let fragment = unit.get("FragmentPath");
    if fragment.starts_with("/etc/") || fragment.starts_with("/run/") {
        findings.push(Finding::warning(
            CHECK,
            format!("{fragment} replaces the packaged {which}.service"),
            "remove it if it is not needed, then `systemctl daemon-reload`",
        ));
    }
    let drop_ins = unit.get("DropInPaths");
    if !drop_ins.is_empty() {
        findings.push(Finding::warning(
            CHECK,
            format!("{which}.service is changed by {drop_ins}"),
            format!("`systemctl cat {which}` shows how, `systemctl revert {which}` undoes it"),
        ));
    }
    if unit.is("NeedDaemonReload", "yes") {
        findings.push(Finding::warning(
            CHECK,
            format!("{which}.service has changed on disk since systemd read it"),
            "`systemctl daemon-reload`",
        ));
    }
    findings
}

/// Settings under which the driver does not let pfod change clocks.
fn broken(unit: &Unit) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Empty is none at all.
    let bounding = unit.0.get("CapabilityBoundingSet");
    if bounding.is_some_and(|set| set.split(' ').all(|name| name != CAPABILITY)) {
        findings.push(Finding::wrong(
            CHECK,
            "CapabilityBoundingSet= of pfod.service is without CAP_SYS_ADMIN",
            "the driver changes clocks for no other process: `systemctl edit pfod` and add it",
        ));
    }
    for (property, why) in [
        ("PrivateUsers", "the driver asks for CAP_SYS_ADMIN of the node's own user namespace"),
        ("PrivateDevices", "it hides the GPUs"),
    ] {
        if !unit.get(property).is_empty() && !unit.is(property, "no") {
            let message = format!("{property}= is set for pfod.service: {why}");
            findings.push(Finding::wrong(CHECK, message, "`systemctl edit pfod` and remove it"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    const RUNNING: &str = "LoadState=loaded\nActiveState=active\nResult=success\n\
        FragmentPath=/usr/lib/systemd/system/pfod.service\nDropInPaths=\nNeedDaemonReload=no\n\
        MainPID=812\nCapabilityBoundingSet=cap_sys_admin\nPrivateUsers=no\nPrivateDevices=no\n";

    fn found(text: &str) -> Vec<(Level, String)> {
        let findings = check_service(Which::Pfod, &Ok(Unit::parse(text)));
        findings.into_iter().map(|finding| (finding.level, finding.message)).collect()
    }

    #[test]
    fn a_unit_that_runs_as_it_was_packaged_is_fine() {
        assert_eq!(found(RUNNING), [(Level::Ok, "pfod.service runs".to_owned())]);
        assert_eq!(Unit::parse(RUNNING).main_pid(), Some(Pid(812)));
    }

    #[test]
    fn what_was_changed_is_named() {
        let changed = [
            ("DropInPaths=", "DropInPaths=/etc/systemd/system/pfod.service.d/a.conf"),
            ("/usr/lib/", "/etc/"),
            ("Reload=no", "Reload=yes"),
            ("cap_sys_admin", "cap_chown cap_kill"),
            ("cap_sys_admin", ""),
            ("PrivateUsers=no", "PrivateUsers=yes"),
            ("PrivateDevices=no", "PrivateDevices=yes"),
            ("=active", "=failed"),
            ("=active", "=inactive"),
            ("=loaded", "=not-found"),
        ];
        let lines = changed.map(|(from, to)| {
            let (level, said) = found(&RUNNING.replace(from, to)).swap_remove(0);
            format!("{from} -> {to}: {level:?}: {said}")
        });
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn a_node_without_systemd_is_no_fault() {
        let findings = check_service(Which::Agent, &Err("systemctl does not run".to_owned()));
        assert_eq!(findings[0].level, Level::Unknown);
    }
}
