//! The guards on disk: the next agent of this boot continues with them.

use std::io;
use std::path::{Path, PathBuf};

use pfo_protocol::{JobName, Uid};
use pfo_service::{boot_id, read_versioned, replace_in_own_directory};
use serde::{Deserialize, Serialize};

use crate::straggler::Labelled;

const FORMAT: &str = "pfo-agent-guards/1";

/// A guard as the next agent finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GuardRecord {
    /// Whose job it is.
    pub(super) uid: Uid,
    /// Its name.
    pub(super) job: JobName,
    /// The slowdown that is allowed, as a share of a step's time at default clocks.
    pub(super) max_slowdown: f64,
    /// The plan that is being compared with default clocks, at which the job may be now.
    pub(super) comparing: Option<Labelled>,
    /// The plan that took the place of one that was too slow, until it has proved itself.
    pub(super) corrected: Option<Corrected>,
}

/// A plan that took the place of another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Corrected {
    /// Its label. Every comparison gives it another number.
    pub(super) label: String,
    /// The slowdown with the plan before.
    pub(super) slowdown: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    boot_id: String,
    guards: Vec<GuardRecord>,
}

/// The file.
#[derive(Debug)]
pub(crate) struct GuardFile {
    path: PathBuf,
    boot_id: String,
}

impl GuardFile {
    /// The file below the directory of what does not outlive the node's boot.
    pub(crate) fn under(runtime: &Path) -> Self {
        Self { path: runtime.join("guards").join("guards.json"), boot_id: boot_id() }
    }

    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&self, guards: Vec<GuardRecord>) -> io::Result<()> {
        let content = OnDisk { format: FORMAT.into(), boot_id: self.boot_id.clone(), guards };
        replace_in_own_directory(&self.path, &serde_json::to_vec_pretty(&content)?)
    }

    /// Every guard of this boot.
    pub(super) fn read(&self) -> Vec<GuardRecord> {
        match read_versioned::<OnDisk>(&self.path, FORMAT) {
            Ok(Some(content)) if content.boot_id == self.boot_id => content.guards,
            Ok(_) => Vec::new(),
            Err(why) => {
                let path = self.path.display();
                tracing::warn!("{path} cannot be read, so no plan is guarded any more: {why}");
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn guard() -> GuardRecord {
        let corrected = Corrected { label: "faster".into(), slowdown: 0.05 };
        GuardRecord {
            uid: Uid(7),
            job: "j".parse().unwrap(),
            max_slowdown: 0.01,
            comparing: None,
            corrected: Some(corrected),
        }
    }

    #[test]
    fn the_next_agent_of_this_boot_finds_the_guards_and_none_of_another_boot_does() {
        let directory = tempfile::tempdir().unwrap();
        let file = GuardFile::under(directory.path());
        assert_eq!(file.read(), []);
        file.write(vec![guard()]).unwrap();
        assert_eq!(GuardFile::under(directory.path()).read(), [guard()]);
        let other = GuardFile { boot_id: "another".into(), ..GuardFile::under(directory.path()) };
        assert_eq!(other.read(), []);
    }

    #[test]
    fn guards_of_an_agent_that_did_not_write_of_corrections_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let file = GuardFile::under(directory.path());
        file.write(vec![GuardRecord { corrected: None, ..guard() }]).unwrap();
        let written = fs::read_to_string(&file.path).unwrap();
        let before = written.replace(",\n      \"corrected\": null", "");
        assert_ne!(before, written);
        fs::write(&file.path, before).unwrap();
        assert_eq!(file.read(), [GuardRecord { corrected: None, ..guard() }]);
    }

    #[test]
    fn a_file_that_makes_no_sense_guards_nothing_and_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let file = GuardFile::under(directory.path());
        file.write(Vec::new()).unwrap();
        fs::write(&file.path, "{").unwrap();
        assert_eq!(file.read(), []);
        file.write(vec![guard()]).unwrap();
        assert_eq!(file.read(), [guard()]);
    }
}
