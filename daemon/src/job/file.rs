//! The records of jobs and their frontiers, each in a file beside the ledger: what a job runs is known to the next daemon,
//! however this one ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::boot::boot_id;
use crate::file_stem::file_stem;
use crate::job::JobKey;
use crate::job_record::JobRecord;
use crate::replace::replace_in_own_directory;
use crate::versioned;

const FORMAT: &str = "pfo-job/1";

/// How the names of the files end.
const RECORD: &str = "json";
const FRONTIER: &str = "frontier";

/// The directory of these files.
#[derive(Debug)]
pub struct JobFiles {
    directory: PathBuf,
    boot_id: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    boot_id: String,
    job: JobRecord,
}

impl JobFiles {
    /// The files beside a ledger.
    #[must_use]
    pub fn beside(ledger: &Path) -> Self {
        Self { directory: ledger.with_file_name("jobs"), boot_id: boot_id() }
    }

    /// Puts a record in the place of the job's former one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, record: &JobRecord) -> io::Result<()> {
        let content =
            OnDisk { format: FORMAT.into(), boot_id: self.boot_id.clone(), job: record.clone() };
        replace_in_own_directory(&self.path(&record.key()), &serde_json::to_vec(&content)?)
    }

    /// Puts a frontier in the place of the job's former one. It counts only with a record that has it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_frontier(&self, key: &JobKey, frontier: &[u8]) -> io::Result<()> {
        replace_in_own_directory(&self.path(key).with_extension(FRONTIER), frontier)
    }

    /// The bytes of a job's frontier, if there are any.
    #[must_use]
    pub fn frontier(&self, key: &JobKey) -> Option<Vec<u8>> {
        fs::read(self.path(key).with_extension(FRONTIER)).ok()
    }

    /// Removes what is there of a job.
    pub fn remove(&self, key: &JobKey) {
        let path = self.path(key);
        let _ = fs::remove_file(path.with_extension(FRONTIER));
        let _ = fs::remove_file(path);
    }

    /// Every record of this boot. Whatever else is in the directory is removed.
    #[must_use]
    pub fn read(&self) -> Vec<JobRecord> {
        let Ok(files) = fs::read_dir(&self.directory) else {
            return Vec::new();
        };
        let read = |path: PathBuf| match self.read_one(&path) {
            Ok(record) => Some(record),
            Err(why) => {
                tracing::warn!("removed the record of a job {}: {why}", path.display());
                let _ = fs::remove_file(path);
                None
            }
        };
        let (frontiers, records): (Vec<_>, Vec<_>) = files
            .filter_map(|file| Some(file.ok()?.path()))
            .partition(|path| path.extension().is_some_and(|end| end == FRONTIER));
        let records: Vec<_> = records.into_iter().filter_map(read).collect();
        let known: Vec<_> = records.iter().map(|record| self.path(&record.key())).collect();
        for frontier in frontiers {
            if !known.contains(&frontier.with_extension(RECORD)) {
                let _ = fs::remove_file(frontier);
            }
        }
        records
    }

    fn read_one(&self, path: &Path) -> Result<JobRecord, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let record = parse(&bytes, &self.boot_id)?;
        if self.path(&record.key()) != path {
            return Err(format!("it is of job {}", record.job));
        }
        Ok(record)
    }

    fn path(&self, key: &JobKey) -> PathBuf {
        self.directory.join(format!("{}.{RECORD}", file_stem(key.uid, &key.name)))
    }
}

/// The record in the bytes of a file.
///
/// # Errors
/// In words, if they are no record, or one of another boot.
pub fn parse(bytes: &[u8], boot_id: &str) -> Result<JobRecord, String> {
    let content: OnDisk = versioned::parse(bytes, FORMAT)?;
    if content.boot_id != boot_id {
        return Err("it is of another boot".into());
    }
    Ok(content.job)
}

#[cfg(test)]
mod tests {
    use pfo_protocol::SwapTarget;

    use super::*;
    use crate::job::Job;

    fn record(job: &str) -> JobRecord {
        let job = Job::new(JobKey { uid: 7, name: job.parse().unwrap() }, 1);
        job.swap(&SwapTarget::DefaultClocks, 3).unwrap();
        JobRecord::of(&job, false).unwrap()
    }

    fn files() -> (tempfile::TempDir, JobFiles) {
        let directory = tempfile::tempdir().unwrap();
        let files = JobFiles::beside(&directory.path().join("ledger.json"));
        (directory, files)
    }

    #[test]
    fn a_record_is_found_again_until_it_is_removed() {
        let (_directory, files) = files();
        assert!(files.read().is_empty());
        let (a, b) = (record("a"), record("b"));
        files.write(&a).unwrap();
        files.write(&b).unwrap();
        files.write(&a).unwrap();
        let mut found = files.read();
        found.sort_by_key(JobRecord::key);
        assert_eq!(found, [a.clone(), b.clone()]);
        files.remove(&a.key());
        assert_eq!(files.read(), [b]);
    }

    #[test]
    fn no_name_of_a_job_leads_out_of_the_directory_or_to_the_file_of_another() {
        let (directory, files) = files();
        let names = ["../../x", "a/b", "a%2Fb", "a_b", "..", &"/".repeat(128)];
        names.iter().for_each(|name| files.write(&record(name)).unwrap());
        assert_eq!(files.read().len(), names.len());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_frontier_stays_as_long_as_the_record_of_its_job() {
        let (_directory, files) = files();
        let key = record("a").key();
        files.write_frontier(&key, b"lost").unwrap();
        assert!(files.read().is_empty());
        assert_eq!(files.frontier(&key), None, "nobody knows it");
        files.write(&record("a")).unwrap();
        files.write_frontier(&key, b"known").unwrap();
        assert_eq!(files.read().len(), 1);
        assert_eq!(files.frontier(&key).as_deref(), Some(&b"known"[..]));
        files.remove(&key);
        assert_eq!(files.frontier(&key), None);
    }

    #[test]
    fn what_is_no_record_of_this_boot_is_removed() {
        let (_directory, files) = files();
        let path = files.path(&record("a").key());
        let good = |files: &JobFiles| {
            files.write(&record("a")).unwrap();
            fs::read_to_string(&path).unwrap()
        };
        let spoil: [fn(String) -> String; 4] = [
            |good| good.replace("pfo-job/1", "pfo-job/2"),
            |good| good.replace("\"boot_id\":\"", "\"boot_id\":\"x"),
            |good| good.replace("\"uid\":7", "\"uid\":8"),
            |good| good.replace("\"uid\"", "\"more\":1,\"uid\""),
        ];
        for spoil in spoil {
            fs::write(&path, spoil(good(&files))).unwrap();
            assert!(files.read().is_empty() && !path.exists());
        }
        good(&files);
        assert_eq!(files.read().len(), 1);
    }
}
