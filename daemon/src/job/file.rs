//! The records of jobs, each in a file beside the ledger: the next daemon knows what a job runs,
//! however this one ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pfo_service::{boot_id, file_stem, parse_versioned, replace_in_own_directory};
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
    pub(crate) fn beside(ledger: &Path) -> Self {
        Self { directory: ledger.with_file_name("jobs"), boot_id: boot_id() }
    }

    /// Replaces the record of the job.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&self, record: &JobRecord) -> io::Result<()> {
        let content =
            OnDisk { format: FORMAT.into(), boot_id: self.boot_id.clone(), job: record.clone() };
        replace_in_own_directory(&self.path(&record.key()), &serde_json::to_vec(&content)?)
    }

    /// Removes the record of a job, if there is one.
    pub(super) fn remove(&self, key: &JobKey) {
        let _ = fs::remove_file(self.path(key));
    }

    /// Every record of this boot. Anything else in the directory is removed.
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
        files.filter_map(|file| read(file.ok()?.path())).collect()
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
    let content: OnDisk = parse_versioned(bytes, FORMAT)?;
    if content.boot_id != boot_id {
        return Err("it is of another boot".into());
    }
    Ok(content.job)
}

#[cfg(test)]
mod tests {
    use pfo_protocol::SwapTarget;

    use super::super::example;
    use super::*;

    fn record(job: &str) -> JobRecord {
        let job = example::job(job, 1);
        job.swap(SwapTarget::DefaultClocks, Some(3), 0).unwrap();
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
    fn whatever_is_no_record_of_this_boot_is_removed() {
        let (_directory, files) = files();
        let path = files.path(&record("a").key());
        let good = |files: &JobFiles| {
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
            let spoiled = spoil(good(&files));
            fs::write(&path, &spoiled).unwrap();
            assert!(files.read().is_empty() && !path.exists(), "{spoiled}");
        }
        good(&files);
        // Release 0.1 kept the job's frontier here.
        let frontier = path.with_extension("frontier");
        fs::write(&frontier, "frontier").unwrap();
        assert_eq!(files.read().len(), 1);
        assert!(!frontier.exists());
    }
}
