//! What stands beside what jobs run, on disk, a file for each job: the next agent of this boot continues
//! with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pfo_fleet::{Run, Standing};
use pfo_protocol::{JobName, Uid};
use pfo_service::{boot_id, file_stem, parse_of_boot, replace_in_own_directory};
use serde::{Deserialize, Serialize};

use crate::job::JobKey;
use crate::straggler::Labelled;

const FORMAT: &str = "pfo-agent-standing/1";

/// A job as the next agent finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StandingRecord {
    /// Counts the changes of the job.
    pub(super) number: u64,
    /// What it runs for good.
    pub(super) run: Run,
    /// The number that `pfod` gave the plan; none at default clocks.
    pub(super) plan: Option<u32>,
    pub(super) standing: Standing,
    /// What `pfod` is requested to change to, until it is known whether it has.
    pub(super) next: Option<NextStanding>,
    /// Whether the plan is being compared with default clocks.
    pub(super) comparing: bool,
    /// The plans that the job may have to run again.
    pub(super) plans: Vec<(Run, Labelled)>,
}

/// What a job changes to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NextStanding {
    pub(super) run: Run,
    pub(super) standing: Standing,
}

impl Default for StandingRecord {
    fn default() -> Self {
        Self {
            number: 0,
            run: Run::DefaultClocks,
            plan: None,
            standing: Standing::default(),
            next: None,
            comparing: false,
            plans: Vec::new(),
        }
    }
}

impl StandingRecord {
    /// Whether the next agent needs none of it.
    pub(super) fn is_empty(&self) -> bool {
        self.standing == Standing::default() && self.next.is_none() && !self.comparing
    }

    /// Drops the plans that the job will not run again.
    pub(super) fn drop_plans(&mut self) {
        let Self { standing, next, plans, .. } = self;
        let before = standing.straggler.as_ref().map(|answered| &answered.before);
        let next = next.as_ref();
        let next_before = next.and_then(|next| next.standing.straggler.as_ref());
        let next_before = next_before.map(|answered| &answered.before);
        let needed = [before, next.map(|next| &next.run), next_before];
        plans.retain(|(run, _)| needed.contains(&Some(run)));
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    boot_id: String,
    uid: Uid,
    job: JobName,
    record: StandingRecord,
}

/// The directory of these files.
#[derive(Clone, Debug)]
pub(super) struct StandingFiles {
    directory: PathBuf,
    boot_id: String,
}

impl StandingFiles {
    /// The files below the directory of what does not outlive the node's boot.
    pub(super) fn under(runtime: &Path) -> Self {
        Self { directory: runtime.join("standing"), boot_id: boot_id() }
    }

    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&self, key: &JobKey, record: &StandingRecord) -> io::Result<()> {
        let path = self.path(key);
        if record.is_empty() {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let content = OnDisk {
            format: FORMAT.into(),
            boot_id: self.boot_id.clone(),
            uid: key.uid,
            job: key.name.clone(),
            record: record.clone(),
        };
        replace_in_own_directory(&path, &serde_json::to_vec(&content)?)
    }

    /// Every record of this boot. A file that is none is removed.
    pub(super) fn read(&self) -> Vec<(JobKey, StandingRecord)> {
        let Ok(files) = fs::read_dir(&self.directory) else { return Vec::new() };
        let mut found = Vec::new();
        for path in files.filter_map(|file| Some(file.ok()?.path())) {
            // One that an agent had just begun to write says nothing.
            if path.extension().is_none_or(|end| end != "json") {
                let _ = fs::remove_file(path);
                continue;
            }
            match self.read_one(&path) {
                Ok(record) => found.push(record),
                Err(why) => {
                    let shown = path.display();
                    tracing::warn!("dropped the guard and the straggler of {shown}: {why}");
                    let _ = fs::remove_file(path);
                }
            }
        }
        found
    }

    fn read_one(&self, path: &Path) -> Result<(JobKey, StandingRecord), String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let OnDisk { uid, job, record, .. } = parse_of_boot(&bytes, FORMAT, &self.boot_id)?;
        let key = JobKey { uid, name: job };
        if self.path(&key) != path {
            return Err(format!("it is of {key}"));
        }
        Ok((key, record))
    }

    fn path(&self, key: &JobKey) -> PathBuf {
        self.directory.join(format!("{}.json", file_stem(key.uid, &key.name)))
    }
}

#[cfg(test)]
mod tests {
    use pfo_fleet::Guard;

    use super::*;

    fn key() -> JobKey {
        JobKey { uid: Uid(7), name: "team/j.1".parse().unwrap() }
    }

    fn guarded() -> StandingRecord {
        let guard = Some(Guard::of(0.01, "here".parse().unwrap(), 7));
        let standing = Standing { guard, ..Standing::default() };
        StandingRecord { number: 3, standing, ..StandingRecord::default() }
    }

    #[test]
    fn the_next_agent_of_this_boot_finds_what_stands_and_none_of_another_boot_does() {
        let directory = tempfile::tempdir().unwrap();
        let files = StandingFiles::under(directory.path());
        assert_eq!(files.read(), []);
        files.write(&key(), &guarded()).unwrap();
        assert_eq!(StandingFiles::under(directory.path()).read(), [(key(), guarded())]);
        let other = StandingFiles { boot_id: "another".into(), ..files.clone() };
        assert_eq!(other.read(), []);
        assert!(!files.path(&key()).exists());
    }

    #[test]
    fn what_an_agent_had_just_begun_to_write_is_removed_and_what_was_there_counts() {
        let directory = tempfile::tempdir().unwrap();
        let files = StandingFiles::under(directory.path());
        files.write(&key(), &guarded()).unwrap();
        let new = files.path(&key()).with_extension("new");
        fs::write(&new, "{").unwrap();
        assert_eq!(files.read(), [(key(), guarded())]);
        assert!(!new.exists());
    }

    #[test]
    fn a_job_beside_whose_plan_nothing_stands_has_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let files = StandingFiles::under(directory.path());
        files.write(&key(), &guarded()).unwrap();
        files.write(&key(), &StandingRecord::default()).unwrap();
        files.write(&key(), &StandingRecord::default()).unwrap();
        assert_eq!(files.read(), []);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let files = StandingFiles::under(directory.path());
        files.write(&key(), &guarded()).unwrap();
        fs::write(files.path(&key()), "{").unwrap();
        assert_eq!(files.read(), []);
        assert!(!files.path(&key()).exists());
    }
}
