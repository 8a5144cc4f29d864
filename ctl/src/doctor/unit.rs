//! The units, as systemd has them: whether they run, and whether somebody changed what they must be.

use std::collections::HashMap;
use std::process::Command;

use super::finding::Finding;

const CHECK: &str = "unit";
const CAPABILITY: &str = "cap_sys_admin";
const PROPERTIES: &str = "LoadState,ActiveState,Result,FragmentPath,DropInPaths,NeedDaemonReload,\
                          MainPID,CapabilityBoundingSet,PrivateUsers,PrivateDevices";

/// What systemd says of a unit.
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
        return Err(why.lines().next().unwrap_or("systemctl says nothing").to_owned());
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
    pub(crate) fn main_pid(&self) -> Option<u32> {
        self.get("MainPID").parse().ok().filter(|pid| *pid > 0)
    }
}

/// What is wrong with the service.
pub(crate) fn check_service(unit: &Result<Unit, String>) -> Vec<Finding> {
    let unit = match unit {
        Ok(unit) => unit,
        Err(why) => {
            let remedy = "see to it yourself that pfod runs as root";
            return vec![Finding::unknown(CHECK, why, remedy)];
        }
    };
    if unit.is("LoadState", "not-found") {
        let remedy = "install the package; without it, see to it yourself that pfod runs as root";
        return vec![Finding::warning(CHECK, "systemd has no pfod.service", remedy)];
    }
    let mut findings = changed(unit);
    findings.extend(broken(unit));
    findings.push(match unit.get("ActiveState") {
        "active" | "reloading" => Finding::ok(CHECK, "pfod.service runs"),
        "failed" => Finding::wrong(
            CHECK,
            format!("pfod.service has failed: {}", unit.get("Result")),
            "`journalctl -u pfod` says why; then `systemctl restart pfod`",
        ),
        state => Finding::wrong(
            CHECK,
            format!("pfod.service is {state}"),
            "`systemctl enable --now pfod.socket pfod-admin.socket pfod.service`",
        ),
    });
    findings
}

/// What somebody did to the packaged unit. That may be meant so.
fn changed(unit: &Unit) -> Vec<Finding> {
    let mut findings = Vec::new();
    let fragment = unit.get("FragmentPath");
    if fragment.starts_with("/etc/") || fragment.starts_with("/run/") {
        findings.push(Finding::warning(
            CHECK,
            format!("{fragment} stands in for the packaged pfod.service"),
            "remove it if nobody needs it, then `systemctl daemon-reload`",
        ));
    }
    let drop_ins = unit.get("DropInPaths");
    if !drop_ins.is_empty() {
        findings.push(Finding::warning(
            CHECK,
            format!("pfod.service is changed by {drop_ins}"),
            "`systemctl cat pfod` shows how, `systemctl revert pfod` undoes it",
        ));
    }
    if unit.is("NeedDaemonReload", "yes") {
        findings.push(Finding::warning(
            CHECK,
            "pfod.service has changed on disk since systemd read it",
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
            "the driver changes clocks for nobody else: `systemctl edit pfod` and put it back",
        ));
    }
    for (property, why) in [
        ("PrivateUsers", "the driver asks for CAP_SYS_ADMIN of the node's own user namespace"),
        ("PrivateDevices", "it hides the GPUs"),
    ] {
        if !unit.get(property).is_empty() && !unit.is(property, "no") {
            let message = format!("{property}= is set for pfod.service: {why}");
            findings.push(Finding::wrong(CHECK, message, "`systemctl edit pfod` and take it out"));
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
        let findings = check_service(&Ok(Unit::parse(text)));
        findings.into_iter().map(|finding| (finding.level, finding.message)).collect()
    }

    #[test]
    fn a_unit_that_runs_as_it_was_packaged_is_fine() {
        assert_eq!(found(RUNNING), [(Level::Ok, "pfod.service runs".to_owned())]);
        assert_eq!(Unit::parse(RUNNING).main_pid(), Some(812));
    }

    #[test]
    fn what_was_changed_is_named() {
        for (from, to, level, said) in [
            (
                "DropInPaths=",
                "DropInPaths=/etc/systemd/system/pfod.service.d/a.conf",
                Level::Warning,
                "a.conf",
            ),
            ("/usr/lib/", "/etc/", Level::Warning, "stands in for the packaged"),
            ("Reload=no", "Reload=yes", Level::Warning, "changed on disk"),
            ("cap_sys_admin", "cap_chown cap_kill", Level::Wrong, "without CAP_SYS_ADMIN"),
            ("cap_sys_admin", "", Level::Wrong, "without CAP_SYS_ADMIN"),
            ("PrivateUsers=no", "PrivateUsers=yes", Level::Wrong, "PrivateUsers= is set"),
            ("PrivateDevices=no", "PrivateDevices=yes", Level::Wrong, "hides the GPUs"),
            ("=active", "=failed", Level::Wrong, "has failed: success"),
            ("=active", "=inactive", Level::Wrong, "is inactive"),
            ("=loaded", "=not-found", Level::Warning, "has no pfod.service"),
        ] {
            let found = found(&RUNNING.replace(from, to));
            assert!(found[0].0 == level && found[0].1.contains(said), "{said}: {found:?}");
        }
    }

    #[test]
    fn a_node_without_systemd_is_no_fault() {
        let findings = check_service(&Err("systemctl does not run".to_owned()));
        assert_eq!(findings[0].level, Level::Unknown);
    }
}
