//! The first plans on disk, each in a file: they outlive the node's boot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pfo_protocol::{JobName, Uid};
use pfo_service::{file_stem, parse_versioned, replace_in_own_directory};
use serde::{Deserialize, Serialize};

use crate::job::JobKey;
use crate::straggler::Labelled;

const FORMAT: &str = "pfo-agent-first-plan/1";

/// How the names of the files end.
const END: &str = "json";

/// A first plan as the next agent finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FirstPlanRecord {
    /// Whose job it is for.
    pub(super) uid: Uid,
    /// Its name.
    pub(super) job: JobName,
    pub(super) loaded_unix_s: u64,
    pub(super) plan: Labelled,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    first_plan: FirstPlanRecord,
}

/// The directory of these files.
#[derive(Clone, Debug)]
pub(crate) struct FirstPlanFiles {
    directory: PathBuf,
}

impl FirstPlanRecord {
    pub(super) fn key(&self) -> JobKey {
        JobKey { uid: self.uid, name: self.job.clone() }
    }
}

impl FirstPlanFiles {
    /// The files below the directory of what outlives the node's boot.
    pub(crate) fn under(state: &Path) -> Self {
        Self { directory: state.join("first-plans") }
    }

    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&self, record: FirstPlanRecord) -> io::Result<()> {
        let path = self.path(&record.key());
        let content = OnDisk { format: FORMAT.into(), first_plan: record };
        replace_in_own_directory(&path, &serde_json::to_vec(&content)?)
    }

    /// # Errors
    /// If it cannot be removed: the next agent would find it.
    pub(super) fn remove(&self, key: &JobKey) -> io::Result<()> {
        fs::remove_file(self.path(key))
    }

    /// The plan that is kept for a job.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(super) fn read(&self, key: &JobKey) -> Result<FirstPlanRecord, String> {
        self.read_one(&self.path(key))
    }

    /// Every record. A file that is none is left where it is, and named in the journal.
    pub(super) fn read_all(&self) -> Vec<FirstPlanRecord> {
        let Ok(files) = fs::read_dir(&self.directory) else { return Vec::new() };
        let paths = files.filter_map(|file| Some(file.ok()?.path()));
        let ours = paths.filter(|path| path.extension().is_some_and(|end| end == END));
        let read = |path: PathBuf| {
            let why = |why: &String| {
                tracing::warn!("{} is no first plan of a job: {why}", path.display());
            };
            self.read_one(&path).inspect_err(why).ok()
        };
        ours.filter_map(read).collect()
    }

    fn read_one(&self, path: &Path) -> Result<FirstPlanRecord, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let OnDisk { first_plan, .. } = parse_versioned(&bytes, FORMAT)?;
        if self.path(&first_plan.key()) != path {
            return Err(format!("it is of {}", first_plan.key()));
        }
        Ok(first_plan)
    }

    // No `with_extension`: a job's name may have dots.
    fn path(&self, JobKey { uid, name }: &JobKey) -> PathBuf {
        self.directory.join(format!("{}.{END}", file_stem(*uid, name)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::kept::tests::{key, labelled};
    use super::*;

    fn record(job: &str) -> FirstPlanRecord {
        let JobKey { uid, name } = key(7, job);
        FirstPlanRecord { uid, job: name, loaded_unix_s: 9, plan: labelled(2, 900) }
    }

    #[test]
    fn a_plan_is_found_again_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let files = FirstPlanFiles::under(directory.path());
        assert_eq!(files.read_all(), []);
        let names = ["a.b", "a.c", "../../x", "a/b", "a%2Fb", &"/".repeat(128)];
        names.iter().for_each(|name| files.write(record(name)).unwrap());
        assert_eq!(files.read_all().len(), names.len());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "none leads elsewhere");
        assert_eq!(files.read(&key(7, "a.b")), Ok(record("a.b")));
        files.remove(&key(7, "a.b")).unwrap();
        assert!(files.read(&key(7, "a.b")).is_err());
        assert_eq!(files.read_all().len(), names.len() - 1);
    }

    #[test]
    fn what_is_no_first_plan_is_kept_for_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let files = FirstPlanFiles::under(directory.path());
        let path = files.path(&key(7, "a"));
        let spoil: [fn(String) -> String; 5] = [
            |good| good.replace("first-plan/1", "first-plan/2"),
            |good| good.replace("\"uid\":7", "\"uid\":8"),
            |good| good.replace("\"uid\"", "\"more\":1,\"uid\""),
            |good| good.replace("900", "0"),
            |good| good[..good.len() / 2].to_owned(),
        ];
        for spoil in spoil {
            files.write(record("a")).unwrap();
            let spoiled = spoil(fs::read_to_string(&path).unwrap());
            fs::write(&path, &spoiled).unwrap();
            assert_eq!(files.read_all(), [], "{spoiled}");
            assert!(path.exists(), "an administrator may want to see it");
        }
    }
}
