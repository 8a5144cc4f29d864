//! The records of jobs, each in a file beside the ledger: the next daemon knows what a job runs,
//! however this one ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pfo_keeper::only_observes;
use pfo_service::{boot_id, file_stem, parse_of_boot, replace_in_own_directory};
use serde::{Deserialize, Serialize};

use super::JobKey;
use super::record::JobRecord;

const FORMAT: &str = "pfo-job/1";

/// The extension of the files' names.
const RECORD: &str = "json";

/// The directory of these files.
#[derive(Debug)]
pub(crate) struct JobFiles {
    directory: PathBuf,
    boot_id: String,
    /// Jobs whose records stay as they are for the next daemon, and are not for this one.
    left_out: Vec<JobKey>,
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
    pub(crate) fn beside(ledger: &Path) -> Self {
        // A plan that was followed as if it were set must not be set by the next daemon.
        let directory =
            ledger.with_file_name(if only_observes() { "jobs-observed" } else { "jobs" });
        Self { directory, boot_id: boot_id(), left_out: Vec::new() }
    }

    /// Replaces the record of the job.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&mut self, record: &JobRecord) -> io::Result<()> {
        self.left_out.retain(|key| *key != record.key());
        let content =
            OnDisk { format: FORMAT.into(), boot_id: self.boot_id.clone(), job: record.clone() };
        replace_in_own_directory(&self.path(&record.key()), &serde_json::to_vec(&content)?)
    }

    /// Removes the record of a job, if there is one and it is not left out.
    pub(super) fn remove(&self, key: &JobKey) {
        if !self.left_out.contains(key) {
            let _ = fs::remove_file(self.path(key));
        }
    }

    /// Leaves out the record of a job until it is replaced. Returns its path.
    pub(super) fn leave_out(&mut self, key: &JobKey) -> PathBuf {
        self.left_out.push(key.clone());
        self.path(key)
    }

    /// Removes the records that are left out.
    pub(super) fn remove_left_out(&mut self) {
        for key in std::mem::take(&mut self.left_out) {
            self.remove(&key);
        }
    }

    /// Every record of this boot that is not left out. Anything else in the directory is removed.
    pub(super) fn read(&self) -> Vec<JobRecord> {
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
        let records = files.filter_map(|file| read(file.ok()?.path()));
        records.filter(|record| !self.left_out.contains(&record.key())).collect()
    }

    fn read_one(&self, path: &Path) -> Result<JobRecord, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let record = parse_job(&bytes, &self.boot_id)?;
        if self.path(&record.key()) != path {
            return Err(format!("it is the record of job {}", record.job));
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
/// In words, if they are not a record, or one of another boot.
pub(crate) fn parse_job(bytes: &[u8], boot_id: &str) -> Result<JobRecord, String> {
    parse_of_boot(bytes, FORMAT, boot_id).map(|OnDisk { job, .. }| job)
}

#[cfg(test)]
mod tests {
    use pfo_protocol::SwapTarget;

    use super::super::example;
    use super::*;

    fn record(job: &str) -> JobRecord {
        let job = example::job(job, 1);
        job.swap(SwapTarget::DefaultClocks, (Some(3), None), 0).unwrap();
        JobRecord::of(&job, false).unwrap()
    }

    fn files() -> (tempfile::TempDir, JobFiles) {
        let directory = tempfile::tempdir().unwrap();
        let files = JobFiles::beside(&directory.path().join("ledger.json"));
        (directory, files)
    }

    #[test]
    fn a_record_is_found_again_until_it_is_removed() {
        let (_directory, mut files) = files();
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
        let (directory, mut files) = files();
        let names = ["../../x", "a/b", "a%2Fb", "a_b", "..", &"/".repeat(128)];
        names.iter().for_each(|name| files.write(&record(name)).unwrap());
        assert_eq!(files.read().len(), names.len());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn whatever_is_no_record_of_this_boot_is_removed() {
        let (_directory, mut files) = files();
        let path = files.path(&record("a").key());
        let good = |files: &mut JobFiles| {
            files.write(&record("a")).unwrap();
            fs::read_to_string(&path).unwrap()
        };
        let spoil: [fn(String) -> String; 6] = [
            |good| good.replace("pfo-job/1", "pfo-job/2"),
            |good| good.replace("\"boot_id\":\"", "\"boot_id\":\"x"),
            |good| good.replace("\"uid\":7", "\"uid\":8"),
            |good| good.replace("\"number\":1", "\"number\":1,\"more\":1"),
            |good| good[..good.len() / 2].to_owned(),
            |_| String::new(),
        ];
        for spoil in spoil {
            let spoiled = spoil(good(&mut files));
            fs::write(&path, &spoiled).unwrap();
            assert!(files.read().is_empty() && !path.exists(), "{spoiled}");
        }
        good(&mut files);
        // Release 0.1 kept the job's frontier here.
        let frontier = path.with_extension("frontier");
        fs::write(&frontier, "frontier").unwrap();
        assert_eq!(files.read().len(), 1);
        assert!(!frontier.exists());
    }

    #[test]
    fn a_record_that_is_left_out_is_there_for_the_next_daemon_unless_it_is_replaced_or_removed() {
        let (directory, mut files) = files();
        let records = [record("a")];
        let key = records[0].key();
        let next = || JobFiles::beside(&directory.path().join("ledger.json")).read();
        files.write(&records[0]).unwrap();
        assert!(files.leave_out(&key).exists());
        files.remove(&key);
        assert!(files.read().is_empty());
        assert_eq!(next(), records);
        files.write(&records[0]).unwrap();
        files.remove_left_out();
        assert_eq!(files.read(), records, "the job has another one");
        files.leave_out(&key);
        files.remove_left_out();
        assert!(next().is_empty());
    }
}
