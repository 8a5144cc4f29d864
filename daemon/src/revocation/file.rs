//! The revocations in force, in a file beside the ledger: they outlive the daemon, as do the
//! processes that they concern.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pfo_protocol::{GpuUuid, JobName, Uid};
use pfo_service::{Process, ProcessRecord, boot_id, parse_of_boot, replace, unix_s};
use serde::{Deserialize, Serialize};

use super::Revocation;
use crate::job::JobKey;

const FORMAT: &str = "pfo-revocations/1";

/// The file.
#[derive(Debug)]
pub(crate) struct RevocationFile {
    path: PathBuf,
    boot_id: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    boot_id: String,
    revocations: Vec<RevocationRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RevocationRecord {
    uid: Uid,
    job: JobName,
    gpu_uuid: Option<GpuUuid>,
    by_uid: Uid,
    since_unix_s: u64,
    processes: Vec<ProcessRecord>,
}

impl RevocationFile {
    /// The file beside a ledger.
    pub(crate) fn beside(ledger: &Path) -> Self {
        Self { path: ledger.with_file_name("revocations.json"), boot_id: boot_id() }
    }

    /// Replaces the revocations in the file by these.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) fn write(&self, revocations: &[Revocation]) -> io::Result<()> {
        if revocations.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let content = OnDisk {
            format: FORMAT.into(),
            boot_id: self.boot_id.clone(),
            revocations: revocations.iter().map(RevocationRecord::of).collect(),
        };
        replace(&self.path, &serde_json::to_vec_pretty(&content)?)
    }

    /// What the previous daemon left, as far as it concerns processes that live.
    pub(crate) fn read(&self) -> Vec<Revocation> {
        let Ok(bytes) = fs::read(&self.path) else { return Vec::new() };
        parse_revocations(&bytes, &self.boot_id).unwrap_or_else(|why| {
            tracing::warn!("lost the revocations in {}: {why}", self.path.display());
            Vec::new()
        })
    }
}

/// The revocations in the bytes of a file that concern processes that live.
///
/// # Errors
/// In words, if they are not revocations, or are of another boot.
pub(crate) fn parse_revocations(bytes: &[u8], boot_id: &str) -> Result<Vec<Revocation>, String> {
    let OnDisk { revocations, .. } = parse_of_boot(bytes, FORMAT, boot_id)?;
    Ok(revocations.into_iter().filter_map(RevocationRecord::restore).collect())
}

impl RevocationRecord {
    fn of(revocation: &Revocation) -> Self {
        Self {
            uid: revocation.job.uid,
            job: revocation.job.name.clone(),
            gpu_uuid: revocation.gpu.clone(),
            by_uid: revocation.by,
            since_unix_s: unix_s(revocation.since),
            processes: revocation.processes.iter().filter_map(Process::record).collect(),
        }
    }

    fn restore(self) -> Option<Revocation> {
        let processes: Vec<_> = self.processes.into_iter().filter_map(Process::again).collect();
        let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(self.since_unix_s))?;
        (!processes.is_empty()).then_some(Revocation {
            job: JobKey { uid: self.uid, name: self.job },
            gpu: self.gpu_uuid,
            by: self.by_uid,
            since,
            processes,
        })
    }
}
