//! The records of jobs with a frontier, each in a file, and the bytes of their frontiers beside
//! them: the next agent of this boot continues with them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pfo_protocol::{JobName, Uid};
use pfo_service::{boot_id, file_stem, parse_of_boot, replace_in_own_directory};
use serde::{Deserialize, Serialize};

use crate::job::JobKey;

const FORMAT: &str = "pfo-agent-job/1";

/// How the names of the files end.
const RECORD: &str = "json";
const FRONTIER: &str = "frontier";
const ATTEMPT: &str = "attempt";

/// A job as the next agent finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobRecord {
    /// Whose job it is.
    pub(super) uid: Uid,
    /// Its name.
    pub(super) job: JobName,
    /// What its frontier is called.
    pub(super) frontier: String,
    /// Since when it has had no rank (`CLOCK_MONOTONIC`, ns).
    pub(super) left_ns: Option<u64>,
    /// Whether a user loaded the frontier here, and the other nodes of the job do not have it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) unshared: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    boot_id: String,
    job: JobRecord,
}

/// The directory of these files.
#[derive(Debug)]
pub(crate) struct JobFiles {
    directory: PathBuf,
    boot_id: String,
}

/// Says on disk that something is done with the frontier of a job that may end the process: unless
/// this is dropped, the next agent leaves the frontier out.
pub(super) struct Attempt(PathBuf);

impl Drop for Attempt {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl JobFiles {
    /// The files below the directory of what does not outlive the node's boot.
    pub(crate) fn under(runtime: &Path) -> Self {
        Self { directory: runtime.join("jobs"), boot_id: boot_id() }
    }

    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&self, record: &JobRecord) -> io::Result<()> {
        let content =
            OnDisk { format: FORMAT.into(), boot_id: self.boot_id.clone(), job: record.clone() };
        let key = JobKey { uid: record.uid, name: record.job.clone() };
        replace_in_own_directory(&self.path(&key, RECORD), &serde_json::to_vec(&content)?)
    }

    /// Puts a frontier in the place of the job's former one. It counts only with a record.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn write_frontier(&self, key: &JobKey, frontier: &[u8]) -> io::Result<()> {
        replace_in_own_directory(&self.path(key, FRONTIER), frontier)
    }

    /// # Errors
    /// If it cannot be read.
    pub(super) fn read_frontier(&self, key: &JobKey) -> io::Result<Vec<u8>> {
        fs::read(self.path(key, FRONTIER))
    }

    pub(super) fn attempt(&self, key: &JobKey) -> Attempt {
        let path = self.path(key, ATTEMPT);
        // Where it cannot be written, neither can the frontier that it is about.
        let _ = fs::write(&path, []);
        Attempt(path)
    }

    /// Removes everything of a job.
    pub(super) fn remove(&self, key: &JobKey) {
        for end in [ATTEMPT, FRONTIER, RECORD] {
            let _ = fs::remove_file(self.path(key, end));
        }
    }

    /// Every record of this boot, with its frontier. Anything else in the directory is removed.
    pub(super) fn read(&self) -> Vec<(JobRecord, Vec<u8>)> {
        let Ok(files) = fs::read_dir(&self.directory) else { return Vec::new() };
        let paths: Vec<_> = files.filter_map(|file| Some(file.ok()?.path())).collect();
        let mut found = Vec::new();
        for path in paths.iter().filter(|path| ends_with(path, RECORD)) {
            match self.read_one(path) {
                Ok(record) => found.push(record),
                Err(why) => {
                    tracing::warn!("dropped the frontier of the job of {}: {why}", path.display());
                    for end in [ATTEMPT, FRONTIER, RECORD] {
                        let _ = fs::remove_file(path.with_extension(end));
                    }
                }
            }
        }
        for path in paths.iter().filter(|path| !path.with_extension(RECORD).exists()) {
            let _ = fs::remove_file(path);
        }
        found
    }

    fn read_one(&self, path: &Path) -> Result<(JobRecord, Vec<u8>), String> {
        if path.with_extension(ATTEMPT).exists() {
            return Err("the agent ended while it worked with it".into());
        }
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let OnDisk { job: record, .. } = parse_of_boot(&bytes, FORMAT, &self.boot_id)?;
        let key = JobKey { uid: record.uid, name: record.job.clone() };
        if self.path(&key, RECORD) != path {
            return Err(format!("it is of {key}"));
        }
        let frontier =
            fs::read(path.with_extension(FRONTIER)).map_err(|error| error.to_string())?;
        Ok((record, frontier))
    }

    // No `with_extension`: a job's name may have dots.
    fn path(&self, key: &JobKey, end: &str) -> PathBuf {
        self.directory.join(format!("{}.{end}", file_stem(key.uid, &key.name)))
    }
}

fn ends_with(path: &Path, end: &str) -> bool {
    path.extension().is_some_and(|found| found == end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(job: &str) -> JobRecord {
        JobRecord {
            uid: Uid(7),
            job: job.parse().unwrap(),
            frontier: "f".into(),
            left_ns: None,
            unshared: job.contains('b'),
        }
    }

    fn key(job: &str) -> JobKey {
        JobKey { uid: Uid(7), name: job.parse().unwrap() }
    }

    fn files() -> (tempfile::TempDir, JobFiles) {
        let directory = tempfile::tempdir().unwrap();
        let files = JobFiles::under(directory.path());
        (directory, files)
    }

    fn put(files: &JobFiles, job: &str) {
        files.write_frontier(&key(job), job.as_bytes()).unwrap();
        files.write(&record(job)).unwrap();
    }

    #[test]
    fn a_record_is_found_again_with_its_frontier_until_it_is_removed() {
        let (_directory, files) = files();
        assert!(files.read().is_empty());
        put(&files, "a.b");
        put(&files, "a.c");
        let mut found = files.read();
        found.sort_by(|(a, _), (b, _)| a.job.cmp(&b.job));
        let expected = ["a.b", "a.c"].map(|job| (record(job), job.as_bytes().to_vec()));
        assert_eq!(found, expected);
        files.remove(&key("a.b"));
        assert_eq!(files.read(), expected[1..]);
    }

    #[test]
    fn no_name_of_a_job_leads_out_of_the_directory_or_to_the_file_of_another() {
        let (directory, files) = files();
        let names = ["../../x", "a/b", "a%2Fb", "a_b", "..", &"/".repeat(128)];
        names.iter().for_each(|name| put(&files, name));
        assert_eq!(files.read().len(), names.len());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_frontier_at_which_the_agent_died_is_left_out_by_the_next_one() {
        let (_directory, files) = files();
        put(&files, "j");
        drop(files.attempt(&key("j")));
        assert_eq!(files.read().len(), 1);
        std::mem::forget(files.attempt(&key("j")));
        assert!(files.read().is_empty());
        put(&files, "j");
        assert_eq!(files.read().len(), 1, "it may be loaded again");
    }

    #[test]
    fn what_is_no_record_of_this_boot_is_removed() {
        let (_directory, files) = files();
        let path = files.path(&key("a"), RECORD);
        let spoil: [fn(String) -> String; 4] = [
            |good| good.replace("pfo-agent-job/1", "pfo-agent-job/2"),
            |good| good.replace("\"boot_id\":\"", "\"boot_id\":\"x"),
            |good| good.replace("\"uid\":7", "\"uid\":8"),
            |good| good.replace("\"uid\"", "\"more\":1,\"uid\""),
        ];
        for spoil in spoil {
            put(&files, "a");
            fs::write(&path, spoil(fs::read_to_string(&path).unwrap())).unwrap();
            assert!(files.read().is_empty() && !path.exists());
        }
    }
}
