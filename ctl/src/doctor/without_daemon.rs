//! What can be found out while a daemon does not answer: whether its configuration keeps it from
//! starting, and whether a `pfod` before it left locks.

use std::io::ErrorKind;
use std::process::Command;

use super::finding::Finding;
use super::root::Root;
use crate::daemons::Which;

const CONFIGURATION: &str = "configuration";
const LEDGER: &str = "ledger";
const LEDGER_FILE: &str = "/run/pfo/ledger.json";
const DAMAGED_FILE: &str = "/run/pfo/ledger.damaged";

/// `EX_CONFIG` of sysexits.h, with which a daemon refuses its configuration.
const REFUSED: i32 = 78;

/// Has `pfod` check its own configuration, and reads the ledger.
pub(crate) fn check(root: &Root) -> Vec<Finding> {
    let findings = [configuration(Which::Pfod), ledger(root)];
    findings.into_iter().chain(damaged(root)).collect()
}

/// Has a daemon check its own configuration.
pub(crate) fn configuration(which: Which) -> Finding {
    // Not everybody has sbin in the path.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/local/sbin:/usr/sbin";
    match Command::new(which.to_string()).arg("--check-config").env("PATH", path).output() {
        Ok(output) if output.status.success() => {
            Finding::ok(CONFIGURATION, format!("{which} accepts its configuration"))
        }
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.trim().trim_start_matches(&format!("{which}: "));
            if output.status.code() == Some(REFUSED) {
                let remedy = format!("correct it, then `systemctl restart {which}`");
                return Finding::wrong(CONFIGURATION, format!("refused: {why}"), remedy);
            }
            let message = format!("{which} cannot check its configuration: {why}");
            Finding::unknown(CONFIGURATION, message, "run as root")
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let message = format!("{which} is not installed");
            Finding::wrong(CONFIGURATION, message, format!("install the package {which}"))
        }
        Err(error) => {
            let message = format!("{which} cannot be started: {error}");
            Finding::unknown(CONFIGURATION, message, "run as root")
        }
    }
}

/// A damaged ledger that nobody has acknowledged.
fn damaged(root: &Root) -> Option<Finding> {
    let message = format!("{DAMAGED_FILE} may name locks that pfod does not know");
    let remedy = "start pfod, then `pfoctl clocks reset --all` and `pfoctl clocks acknowledge`";
    root.path(DAMAGED_FILE).exists().then(|| Finding::wrong(LEDGER, message, remedy))
}

fn ledger(root: &Root) -> Finding {
    let text = match root.read(LEDGER_FILE) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Finding::ok(LEDGER, "pfod has locked nothing since the last boot");
        }
        Err(error) => {
            return Finding::unknown(LEDGER, format!("{LEDGER_FILE}: {error}"), "run as root");
        }
    };
    let ledger: Result<serde_json::Value, _> = serde_json::from_str(&text);
    let entries = ledger.ok().and_then(|ledger| ledger["entries"].as_array().cloned());
    let boot = root.read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let remedy = "start pfod, or run `pfod --restore-only` as root";
    match entries {
        None => {
            Finding::wrong(LEDGER, format!("{LEDGER_FILE} is not readable as a ledger"), remedy)
        }
        // Locks do not survive a reboot, nor do entries of another boot.
        Some(entries) if entries.is_empty() || !text.contains(boot.trim()) => {
            Finding::ok(LEDGER, "pfod has left nothing locked")
        }
        Some(entries) => {
            let gpus: Vec<_> =
                entries.iter().filter_map(|entry| entry["gpu_uuid"].as_str()).collect();
            let message = format!("left locked by a pfod that has ended: {}", gpus.join(", "));
            Finding::wrong(LEDGER, message, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn locks_that_a_daemon_left_are_found_unless_they_are_of_another_boot() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path().to_owned());
        assert_eq!(ledger(&root).level, Level::Ok);
        std::fs::create_dir_all(root.path("/run/pfo")).unwrap();
        std::fs::create_dir_all(root.path("/proc/sys/kernel/random")).unwrap();
        std::fs::write(root.path("/proc/sys/kernel/random/boot_id"), "this-boot\n").unwrap();
        let entry = r#"{"gpu_uuid": "GPU-a", "sm": true}"#;
        for (boot, entries, level) in [
            ("this-boot", entry, Level::Wrong),
            ("this-boot", "", Level::Ok),
            ("other", entry, Level::Ok),
        ] {
            let text = format!(r#"{{"boot_id": "{boot}", "entries": [{entries}]}}"#);
            std::fs::write(root.path(LEDGER_FILE), text).unwrap();
            assert_eq!(ledger(&root).level, level, "{boot} {entries}");
        }
        std::fs::write(root.path(LEDGER_FILE), "oops").unwrap();
        assert_eq!(ledger(&root).level, Level::Wrong);
        assert!(damaged(&root).is_none());
        std::fs::write(root.path(DAMAGED_FILE), "oops").unwrap();
        assert_eq!(damaged(&root).unwrap().level, Level::Wrong);
    }
}
