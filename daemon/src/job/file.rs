//! The records of jobs, each in a file beside the ledger: the next daemon knows what a job runs, however this
//! one ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pfo_service::{boot_id, file_stem, parse_versioned, replace_in_own_directory};
use serde::{Deserialize, Serialize};

use super::JobKey;
use super::record::JobRecord;

const FORMAT: &str = "pfo-job/1";

/// How the names of the files end.
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

    /// Puts a record in the place of the job's former one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&self, record: &JobRecord) -> io::Result<()> {
        let content =
            OnDisk { format: FORMAT.into(), boot_id: self.boot_id.clone(), job: record.clone() };
        replace_in_own_directory(&self.path(&record.key()), &serde_json::to_vec(&content)?)
    }

    /// Removes what is there of a job.
    pub(super) fn remove(&self, key: &JobKey) {
        let _ = fs::remove_file(self.path(key));
    }

    /// Every record of this boot. Whatever else is in the directory is removed.
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
/// In words, if they are no record, or one of another boot.
pub(crate) fn parse_job(bytes: &[u8], boot_id: &str) -> Result<JobRecord, String> {
    let content: OnDisk = parse_versioned(bytes, FORMAT)?;
    if content.boot_id != boot_id {
        return Err("it is of another boot".into());
    }
    Ok(content.job)
}
