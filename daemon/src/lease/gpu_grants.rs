//! GPUs that an administrator, or the prolog of a scheduler, has given to users. Nobody else may
//! lease them, and who was given one needs no device file to prove it. The record is beside the
//! ledger, and outlives the daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pfo_protocol::{GpuGrant, GpuUuid, Refusal, RefusalCode, Uid};
use pfo_service::{lock, read_versioned, replace};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

const FORMAT: &str = "pfo-gpu-grants/1";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    granted: Vec<GpuGrant>,
}

/// The grants in force, at most one for each GPU.
#[derive(Debug)]
pub(crate) struct GpuGrants {
    path: PathBuf,
    standing: Mutex<Vec<GpuGrant>>,
    /// Notified when there are others.
    pub changed: Notify,
}

impl GpuGrants {
    /// As the previous daemon left them.
    pub(crate) fn beside(ledger: &Path) -> Self {
        let path = ledger.with_file_name("gpu-grants.json");
        let found = read_versioned(&path, FORMAT).unwrap_or_else(|why| {
            tracing::error!("lost the grants of GPUs in {}: {why}", path.display());
            None
        });
        let standing = found.map_or_else(Vec::new, |OnDisk { granted, .. }| granted);
        Self { path, standing: Mutex::new(standing), changed: Notify::new() }
    }

    /// All of them.
    pub(crate) fn standing(&self) -> Vec<GpuGrant> {
        lock(&self.standing).clone()
    }

    /// Whether a user was given a GPU.
    pub(crate) fn gives(&self, uid: Uid, gpu: &GpuUuid) -> bool {
        lock(&self.standing).iter().any(|grant| grant.uid == uid && grant.gpu_uuid == *gpu)
    }

    /// Checks that a GPU was not given to another user.
    ///
    /// # Errors
    /// A refusal.
    pub(crate) fn check(&self, uid: Uid, gpu: &GpuUuid) -> Result<(), Refusal> {
        let standing = lock(&self.standing);
        match standing.iter().find(|grant| grant.gpu_uuid == *gpu && grant.uid != uid) {
            None => Ok(()),
            Some(_) => Err(Refusal::new(
                RefusalCode::NotAuthorized,
                format!("an administrator has granted GPU {gpu} to another user than {uid}"),
                "use another GPU, or ask for `pfoctl revoke-grant` if that user's job is over",
            )),
        }
    }

    /// Adds grants. They replace those that the GPUs had, which are returned.
    ///
    /// # Errors
    /// If that cannot be recorded; nothing has changed then.
    pub(crate) fn add(&self, grants: &[GpuGrant]) -> io::Result<Vec<GpuGrant>> {
        let is_replaced = |old: &GpuGrant| grants.iter().any(|new| new.gpu_uuid == old.gpu_uuid);
        self.change(is_replaced, grants)
    }

    /// Ends grants; returns them.
    ///
    /// # Errors
    /// If that cannot be recorded; nothing has changed then.
    pub(crate) fn end(&self, is_meant: impl Fn(&GpuGrant) -> bool) -> io::Result<Vec<GpuGrant>> {
        self.change(is_meant, &[])
    }

    fn change(
        &self,
        is_over: impl Fn(&GpuGrant) -> bool,
        new: &[GpuGrant],
    ) -> io::Result<Vec<GpuGrant>> {
        let mut standing = lock(&self.standing);
        let (over, mut granted): (Vec<_>, Vec<_>) =
            standing.iter().cloned().partition(|grant| is_over(grant));
        granted.extend_from_slice(new);
        let content = OnDisk { format: FORMAT.into(), granted };
        replace(&self.path, &serde_json::to_vec_pretty(&content)?)?;
        *standing = content.granted;
        self.changed.notify_one();
        Ok(over)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn grant(gpu: &str, uid: u32) -> GpuGrant {
        let (since_unix_s, until_unix_s) = (1000, None);
        let gpu_uuid = gpu.parse().unwrap();
        GpuGrant { gpu_uuid, uid: Uid(uid), by_uid: Uid::ROOT, since_unix_s, until_unix_s }
    }

    fn may(grants: &GpuGrants, uid: u32, gpu: &str) -> bool {
        grants.check(Uid(uid), &gpu.parse().unwrap()).is_ok()
    }

    #[test]
    fn who_was_given_a_gpu_may_lease_it_and_nobody_else_in_the_next_daemon_too() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger.json");
        GpuGrants::beside(&ledger).add(&[grant("GPU-1", 7), grant("GPU-2", 8)]).unwrap();
        let next = GpuGrants::beside(&ledger);
        assert!(may(&next, 7, "GPU-1") && !may(&next, 8, "GPU-1") && !may(&next, 0, "GPU-1"));
        assert!(may(&next, 8, "GPU-2") && may(&next, 7, "GPU-3") && may(&next, 8, "GPU-3"));
        let gives = |uid, gpu: &str| next.gives(Uid(uid), &gpu.parse().unwrap());
        assert!(gives(7, "GPU-1") && !gives(7, "GPU-2") && !gives(7, "GPU-3"));
        assert_eq!(next.end(|grant| grant.uid == Uid(7)).unwrap(), [grant("GPU-1", 7)]);
        assert!(may(&next, 8, "GPU-1"));
        assert_eq!(GpuGrants::beside(&ledger).standing(), [grant("GPU-2", 8)]);
    }

    #[test]
    fn a_gpu_belongs_to_the_last_one_who_was_given_it() {
        let directory = tempfile::tempdir().unwrap();
        let grants = GpuGrants::beside(&directory.path().join("ledger.json"));
        assert_eq!(grants.add(&[grant("GPU-1", 7)]).unwrap(), []);
        assert_eq!(grants.add(&[grant("GPU-1", 8)]).unwrap(), [grant("GPU-1", 7)]);
        assert!(!may(&grants, 7, "GPU-1") && may(&grants, 8, "GPU-1"));
        assert_eq!(grants.standing().len(), 1);
    }

    #[test]
    fn what_cannot_be_recorded_changes_nothing_and_what_cannot_be_read_grants_nothing() {
        let nowhere = GpuGrants::beside("/no/such/directory/ledger.json".as_ref());
        nowhere.add(&[grant("GPU-1", 7)]).unwrap_err();
        assert!(may(&nowhere, 8, "GPU-1") && nowhere.standing().is_empty());
        let directory = tempfile::tempdir().unwrap();
        for content in ["", "{", r#"{"format": "pfo-gpu-grants/2", "granted": []}"#] {
            fs::write(directory.path().join("gpu-grants.json"), content).unwrap();
            let grants = GpuGrants::beside(&directory.path().join("ledger.json"));
            assert!(grants.standing().is_empty(), "{content}");
        }
    }
}
