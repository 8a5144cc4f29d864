//! Unfinished sweeps, each in a file: the next agent continues them, however this one ends.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use pfo_service::{file_stem, parse_versioned, replace_in_own_directory};

use crate::job::JobKey;
use crate::sweep::record::SweepRecord;

const FORMAT: &str = "pfo-sweep/1";

/// The agent writes no longer file.
const LONGEST: u64 = 32 << 20;

#[derive(Debug)]
pub(crate) struct SweepFiles(PathBuf);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    sweep: SweepRecord,
}

impl SweepFiles {
    /// The files below the directory of what outlives the node's boot.
    pub(crate) fn under(state: &Path) -> Self {
        Self(state.join("sweeps"))
    }

    /// Puts a record in the place of the job's former one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(&self, record: &SweepRecord) -> io::Result<()> {
        replace_in_own_directory(&self.path(&record.key()), &content(record)?)
    }

    pub(crate) fn remove(&self, key: &JobKey) {
        let _ = fs::remove_file(self.path(key));
    }

    /// Every record. A file that is no record is left where it is, and reported.
    pub(crate) fn read(&self) -> Vec<SweepRecord> {
        let Ok(files) = fs::read_dir(&self.0) else { return Vec::new() };
        let paths = files.filter_map(|file| Some(file.ok()?.path()));
        let records = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
        let read = |path: PathBuf| match self.read_one(&path) {
            Ok(record) => Some(record),
            Err(why) => {
                tracing::warn!(
                    "cannot continue the sweep of {}: {why}; remove the file and begin it again",
                    path.display()
                );
                None
            }
        };
        records.filter_map(read).collect()
    }

    fn read_one(&self, path: &Path) -> Result<SweepRecord, String> {
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| error.to_string())?;
        file.take(LONGEST).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        let record = parse(&bytes)?;
        if self.path(&record.key()) != path {
            return Err(format!("it is of job {}", record.job));
        }
        Ok(record)
    }

    fn path(&self, key: &JobKey) -> PathBuf {
        self.0.join(format!("{}.json", file_stem(key.uid, &key.name)))
    }
}

/// The content of a record's file.
///
/// # Errors
/// None for a record that was measured or parsed.
pub(crate) fn content(record: &SweepRecord) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&OnDisk { format: FORMAT.into(), sweep: record.clone() })
}

/// The record in the content of a file.
///
/// # Errors
/// In words, if there is none.
pub(crate) fn parse(bytes: &[u8]) -> Result<SweepRecord, String> {
    let content: OnDisk = parse_versioned(bytes, FORMAT)?;
    Ok(content.sweep)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::record::tests::record;

    #[test]
    fn a_sweep_is_found_again_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let files = SweepFiles::under(directory.path());
        assert!(files.read().is_empty());
        let record = record(Some(0.1), 3);
        files.write(&record).unwrap();
        assert_eq!(files.read(), std::slice::from_ref(&record));
        files.remove(&record.key());
        assert!(files.read().is_empty());
    }

    #[test]
    fn what_is_no_sweep_or_that_of_another_job_is_not_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let files = SweepFiles::under(directory.path());
        let record = record(None, 3);
        let path = files.path(&record.key());
        let spoil: [fn(String) -> String; 4] = [
            |good| good.replace("pfo-sweep/1", "pfo-sweep/2"),
            |good| good.replace("\"uid\":7", "\"uid\":8"),
            |good| good.replace("\"uid\"", "\"more\":1,\"uid\""),
            |good| good[..good.len() / 2].to_owned(),
        ];
        for spoil in spoil {
            files.write(&record).unwrap();
            fs::write(&path, spoil(fs::read_to_string(&path).unwrap())).unwrap();
            assert!(files.read().is_empty());
        }
        files.write(&record).unwrap();
        assert_eq!(files.read().len(), 1);
    }
}
