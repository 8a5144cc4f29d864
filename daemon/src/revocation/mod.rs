//! Revoked leases. A job does not get one again while a process that held it lives, unless it is
//! allowed to: its trainer would otherwise request and get it again within a second.

mod file;

use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use pfo_protocol::{GpuUuid, Refusal, RefusalCode, Uid};
use pfo_service::{Process, lock};

pub(crate) use self::file::RevocationFile;
#[cfg(feature = "fuzzing")]
pub(crate) use self::file::parse_revocations;
use crate::job::JobKey;

/// Each revocation keeps a descriptor of every process.
const MOST_FROM_ONE_USER: usize = 16;

/// One lease, or all of a job.
#[derive(Debug)]
pub(crate) struct Revocation {
    /// The user whose leases are revoked.
    pub job: JobKey,
    /// Only on this GPU.
    pub gpu: Option<GpuUuid>,
    /// The user who revoked them.
    pub by: Uid,
    /// The time of the revocation.
    pub since: SystemTime,
    /// The processes that held them.
    pub processes: Vec<Process>,
}

impl Revocation {
    fn concerns(&self, job: &JobKey, gpu: &GpuUuid) -> bool {
        self.job == *job && self.gpu.as_ref().is_none_or(|own| own == gpu)
    }

    /// How many of the processes that held the leases live.
    pub(crate) fn living(&self) -> usize {
        self.processes.iter().filter(|process| process.lives()).count()
    }
}

/// All revoked leases.
#[derive(Debug)]
pub(crate) struct Revocations {
    standing: Mutex<Vec<Revocation>>,
    file: RevocationFile,
}

impl Revocations {
    /// The revocations that the previous daemon left in the file; this one keeps them there, too.
    pub(crate) fn kept_in(file: RevocationFile) -> Self {
        Self { standing: Mutex::new(file.read()), file }
    }

    /// The revocations in force.
    pub(crate) fn standing(&self) -> MutexGuard<'_, Vec<Revocation>> {
        let mut standing = lock(&self.standing);
        standing.retain(|revocation| revocation.living() > 0);
        standing
    }

    /// Adds one.
    ///
    /// # Errors
    /// If the user who revokes has too many in force.
    pub(crate) fn add(&self, revocation: Revocation) -> Result<(), Refusal> {
        let mut standing = self.standing();
        let own = standing.iter().filter(|other| other.by == revocation.by).count();
        if revocation.by != Uid::ROOT && own >= MOST_FROM_ONE_USER {
            let by = revocation.by;
            let message = format!("user {by} has {own} revocations in force, the most allowed");
            let remedy = "lift some with `pfoctl lease allow`";
            return Err(Refusal::new(RefusalCode::LimitReached, message, remedy));
        }
        standing.push(revocation);
        self.keep(&standing);
        Ok(())
    }

    /// Lifts the matching revocations; returns them.
    pub(crate) fn lift(&self, is_meant: impl Fn(&Revocation) -> bool) -> Vec<Revocation> {
        let mut standing = self.standing();
        let lifted = standing.extract_if(.., |revocation| is_meant(revocation)).collect();
        self.keep(&standing);
        lifted
    }

    fn keep(&self, standing: &[Revocation]) {
        if let Err(error) = self.file.write(standing) {
            tracing::warn!("the next pfod will not know what is revoked now: {error}");
        }
    }

    /// Checks that a job may have the lease of a GPU.
    ///
    /// # Errors
    /// A refusal that names who revoked it.
    pub(crate) fn check(&self, job: &JobKey, gpu: &GpuUuid) -> Result<(), Refusal> {
        let standing = self.standing();
        let Some(revocation) = standing.iter().find(|standing| standing.concerns(job, gpu)) else {
            return Ok(());
        };
        let (name, by, living) = (&job.name, revocation.by, revocation.living());
        let what = revocation.gpu.as_ref().map_or_else(String::new, |gpu| format!(" of GPU {gpu}"));
        let message = format!(
            "user {by} revoked the lease{what} of job {name}; {living} of the processes that held it are \
             still there"
        );
        let remedy = format!("end them, or ask for `pfoctl lease allow {name}`");
        Err(Refusal::new(RefusalCode::Revoked, message, remedy))
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use pfo_service::Running;

    fn revocations() -> (TempDir, Revocations) {
        let directory = tempfile::tempdir().unwrap();
        let revocations = kept_in(&directory);
        (directory, revocations)
    }

    fn kept_in(directory: &TempDir) -> Revocations {
        Revocations::kept_in(RevocationFile::beside(&directory.path().join("ledger.json")))
    }

    fn job(name: &str) -> JobKey {
        JobKey { uid: Uid(7), name: name.parse().unwrap() }
    }

    fn revocation(gpu: Option<&str>, process: &Running) -> Revocation {
        Revocation {
            job: job("a"),
            gpu: gpu.map(|gpu| gpu.parse().unwrap()),
            by: Uid(7),
            since: SystemTime::now(),
            processes: vec![process.process()],
        }
    }

    fn may(revocations: &Revocations, name: &str, gpu: &str) -> bool {
        revocations.check(&job(name), &gpu.parse().unwrap()).is_ok()
    }

    #[test]
    fn a_lease_is_not_given_again_until_the_processes_that_held_it_have_ended() {
        let (_directory, revocations) = revocations();
        let mut process = Running::start();
        revocations.add(revocation(None, &process)).unwrap();
        assert!(!may(&revocations, "a", "GPU-1") && may(&revocations, "b", "GPU-1"));
        let refusal = revocations.check(&job("a"), &"GPU-1".parse().unwrap()).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Revoked);
        assert!(
            refusal.message.starts_with("user 7 revoked the lease of job a; 1 of"),
            "{refusal}"
        );
        process.end();
        assert!(may(&revocations, "a", "GPU-1"));
        assert!(revocations.standing().is_empty());
    }

    #[test]
    fn the_revocation_of_one_gpu_leaves_the_job_the_others() {
        let ((_directory, revocations), mut process) = (revocations(), Running::start());
        revocations.add(revocation(Some("GPU-1"), &process)).unwrap();
        assert!(!may(&revocations, "a", "GPU-1") && may(&revocations, "a", "GPU-2"));
        process.end();
    }

    #[test]
    fn nobody_fills_the_daemons_descriptors_with_revocations() {
        let ((_directory, revocations), mut process) = (revocations(), Running::start());
        for _ in 0..MOST_FROM_ONE_USER {
            revocations.add(revocation(None, &process)).unwrap();
        }
        let refusal = revocations.add(revocation(None, &process)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::LimitReached);
        revocations.add(Revocation { by: Uid(8), ..revocation(None, &process) }).unwrap();
        process.end();
    }

    #[test]
    fn the_next_daemon_knows_what_is_revoked_from_processes_that_live() {
        let ((directory, revocations), mut process) = (revocations(), Running::start());
        let mut other = Running::start();
        revocations.add(revocation(None, &process)).unwrap();
        revocations.add(Revocation { job: job("b"), ..revocation(Some("GPU-1"), &other) }).unwrap();
        let next = kept_in(&directory);
        assert!(!may(&next, "a", "GPU-1") && !may(&next, "b", "GPU-1") && may(&next, "b", "GPU-2"));
        assert_eq!(next.standing().len(), 2);
        other.end();
        assert!(may(&kept_in(&directory), "b", "GPU-1"));
        assert_eq!(next.lift(|revocation| revocation.job == job("a")).len(), 1);
        assert!(may(&kept_in(&directory), "a", "GPU-1"));
        process.end();
    }

    #[test]
    fn what_is_no_file_of_this_boot_revokes_nothing() {
        let ((directory, revocations), mut process) = (revocations(), Running::start());
        revocations.add(revocation(None, &process)).unwrap();
        let path = directory.path().join("revocations.json");
        let good = std::fs::read_to_string(&path).unwrap();
        let spoil = [
            ("revocations/1", "revocations/2"),
            ("boot_id\": \"", "boot_id\": \"x"),
            ("by_uid", "to"),
        ];
        for (right, wrong) in spoil {
            std::fs::write(&path, good.replace(right, wrong)).unwrap();
            assert!(kept_in(&directory).standing().is_empty(), "{wrong}");
        }
        std::fs::write(&path, good).unwrap();
        assert_eq!(kept_in(&directory).standing().len(), 1);
        process.end();
    }
}
