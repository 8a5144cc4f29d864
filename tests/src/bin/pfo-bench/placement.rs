//! On which cores the two ends of a measurement run.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::Result;

/// Where sender and receiver are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    SameCore,
    OtherCore,
    /// Wherever the kernel puts them.
    Free,
}

/// The calling thread.
pub(crate) const SELF: Pid = Pid::from_raw(0);

impl Placement {
    /// Those that this machine has.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let mut all = vec![Self::SameCore, Self::OtherCore, Self::Free];
        if allowed_cores()?.len() < 2 {
            all.retain(|placement| *placement != Self::OtherCore);
        }
        Ok(all)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SameCore => "same core",
            Self::OtherCore => "other core",
            Self::Free => "not pinned",
        }
    }
}

/// The cores that this process may use, found out before any is pinned.
pub(crate) struct Cores(Vec<usize>);

impl Cores {
    pub(crate) fn of_this_process() -> Result<Self> {
        allowed_cores().map(Self)
    }

    /// Puts the sender (the calling thread) and receivers (by thread id) into place.
    pub(crate) fn place(&self, placement: Placement, receivers: &[Pid]) -> Result<()> {
        let (here, there) = match placement {
            Placement::SameCore => (&self.0[..1], &self.0[..1]),
            Placement::OtherCore => (&self.0[..1], &self.0[1..2]),
            Placement::Free => (&self.0[..], &self.0[..]),
        };
        pin(SELF, here)?;
        receivers.iter().try_for_each(|&receiver| pin(receiver, there))
    }
}

fn allowed_cores() -> Result<Vec<usize>> {
    let set = sched_getaffinity(SELF)?;
    Ok((0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect())
}

fn pin(thread: Pid, cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cores.iter().try_for_each(|&core| set.set(core))?;
    Ok(sched_setaffinity(thread, &set)?)
}
