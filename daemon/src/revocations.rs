//! Leases that were taken back. Whoever lost one does not get it again while a process that held it
//! lives, unless somebody allows it: a trainer would otherwise ask again within a second, and get it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pfo_protocol::{GpuUuid, Refusal, RefusalCode};

use crate::job::JobKey;

/// Each keeps a descriptor of every process.
const MOST_FROM_ONE_USER: usize = 16;

/// One lease, or all of a job.
#[derive(Debug)]
pub struct Revocation {
    /// Whose leases.
    pub job: JobKey,
    /// Only of this GPU.
    pub gpu: Option<GpuUuid>,
    /// The user who took them back.
    pub by: u32,
    /// When.
    pub since: SystemTime,
    /// The processes that held them.
    pub processes: Vec<OwnedFd>,
}

impl Revocation {
    fn concerns(&self, job: &JobKey, gpu: &GpuUuid) -> bool {
        self.job == *job && self.gpu.as_ref().is_none_or(|own| own == gpu)
    }

    /// How many of the processes that held the leases live.
    #[must_use]
    pub fn living(&self) -> usize {
        self.processes.iter().filter(|process| lives(process)).count()
    }
}

fn lives(process: &OwnedFd) -> bool {
    // A process descriptor becomes readable when the process ends.
    poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(0)
}

/// Every lease that is not to be given again.
#[derive(Debug, Default)]
pub struct Revocations {
    standing: Mutex<Vec<Revocation>>,
}

impl Revocations {
    /// The revocations that stand now.
    pub fn standing(&self) -> MutexGuard<'_, Vec<Revocation>> {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing.retain(|revocation| revocation.living() > 0);
        standing
    }

    /// Adds one.
    ///
    /// # Errors
    /// If its author has too many.
    pub fn add(&self, revocation: Revocation) -> Result<(), Refusal> {
        let mut standing = self.standing();
        let own = standing.iter().filter(|other| other.by == revocation.by).count();
        if revocation.by != 0 && own >= MOST_FROM_ONE_USER {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!("{own} revocations of user {} stand, and no more may", revocation.by),
                "lift some with `pfoctl lease allow`",
            ));
        }
        standing.push(revocation);
        Ok(())
    }

    /// Says whether a job may have the lease of a GPU.
    ///
    /// # Errors
    /// A refusal that names who took it back.
    pub fn check(&self, job: &JobKey, gpu: &GpuUuid) -> Result<(), Refusal> {
        let standing = self.standing();
        let Some(revocation) = standing.iter().find(|standing| standing.concerns(job, gpu)) else {
            return Ok(());
        };
        let (name, by, living) = (&job.name, revocation.by, revocation.living());
        let what = revocation.gpu.as_ref().map_or_else(String::new, |gpu| format!(" of GPU {gpu}"));
        Err(Refusal::new(
            RefusalCode::Revoked,
            format!(
                "user {by} revoked the lease{what} of job {name}; {living} of the processes that \
                 held it are still there"
            ),
            format!("end them, or ask for `pfoctl lease allow {name}`"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::sys::pidfd_open;

    struct Process(Child);

    impl Process {
        fn start() -> Self {
            Self(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
        }

        fn end(&mut self) {
            drop(self.0.stdin.take());
            self.0.wait().unwrap();
        }
    }

    fn job(name: &str) -> JobKey {
        JobKey { uid: 7, name: name.parse().unwrap() }
    }

    fn revocation(gpu: Option<&str>, process: &Process) -> Revocation {
        Revocation {
            job: job("a"),
            gpu: gpu.map(|gpu| gpu.parse().unwrap()),
            by: 7,
            since: SystemTime::now(),
            processes: vec![pidfd_open(process.0.id()).unwrap()],
        }
    }

    fn may(revocations: &Revocations, name: &str, gpu: &str) -> bool {
        revocations.check(&job(name), &gpu.parse().unwrap()).is_ok()
    }

    #[test]
    fn a_lease_is_not_given_again_until_the_processes_that_held_it_have_ended() {
        let revocations = Revocations::default();
        let mut process = Process::start();
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
        let (revocations, mut process) = (Revocations::default(), Process::start());
        revocations.add(revocation(Some("GPU-1"), &process)).unwrap();
        assert!(!may(&revocations, "a", "GPU-1") && may(&revocations, "a", "GPU-2"));
        process.end();
    }

    #[test]
    fn nobody_fills_the_daemons_descriptors_with_revocations() {
        let (revocations, mut process) = (Revocations::default(), Process::start());
        for _ in 0..MOST_FROM_ONE_USER {
            revocations.add(revocation(None, &process)).unwrap();
        }
        let refusal = revocations.add(revocation(None, &process)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::LimitReached);
        revocations.add(Revocation { by: 8, ..revocation(None, &process) }).unwrap();
        process.end();
    }
}
