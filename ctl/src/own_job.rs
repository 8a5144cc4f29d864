//! A job that pfoctl starts itself: a helper, which works on GPUs while they are measured. It is an
//! ordinary training job, and ends when its standard input is closed.

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::{GpuUuid, JobName, JobStatus};

use crate::arguments::JobArguments;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::exit::Exit;
use crate::explained::Explained;

/// How long one may take until it works: its libraries load, and NCCL connects its GPUs.
const PREPARATION: Duration = Duration::from_secs(180);

/// How long it may take to end.
const ENDING: Duration = Duration::from_secs(15);

const POLL: Duration = Duration::from_millis(50);

/// Why a helper does not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnJobError {
    #[error("cannot run the helper {command:?}: {source}")]
    Start { command: String, source: io::Error },
    #[error("the helper {command:?} ended before the measurement was over: {status}")]
    Ended { command: String, status: ExitStatus },
    #[error("the helper {command:?} ran no step on its GPUs within {seconds} s")]
    Slow { command: String, seconds: u64 },
}

impl Explained for OwnJobError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }

    fn remedy(&self) -> Option<String> {
        let remedy = "the default helper requires PyTorch and the Python package pfo-gpu of this release \
                      in python3; --helper names another one";
        Some(remedy.to_owned())
    }
}

/// A helper that runs. It ends when this is dropped.
pub(crate) struct OwnJob {
    command: String,
    child: Child,
}

impl OwnJob {
    /// Starts `command --gpus UUID,… --job NAME`, which reaches `pfod` at this socket; the command is
    /// split at its spaces.
    pub(crate) fn start(
        command: &str,
        gpus: &[GpuUuid],
        job: &JobName,
        socket: Option<&Path>,
    ) -> Result<Self, OwnJobError> {
        let gpus: Vec<_> = gpus.iter().map(GpuUuid::as_str).collect();
        let mut words = command.split_whitespace();
        let program = words.next().unwrap_or_default();
        let child = Command::new(program)
            .args(words)
            .args(["--gpus", &gpus.join(","), "--job", job.as_str()])
            .envs(socket.map(|socket| ("PFO_SOCKET", socket)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|source| OwnJobError::Start { command: command.to_owned(), source })?;
        Ok(Self { command: command.to_owned(), child })
    }

    /// Waits until its job has this number of ranks and each has run a step.
    pub(crate) fn until_works(
        &mut self,
        daemons: &Daemons,
        job: &JobArguments,
        ranks: usize,
    ) -> Result<(), Error> {
        let until = Instant::now() + PREPARATION;
        let works = |job: &JobStatus| {
            job.ranks.len() == ranks
                && job.ranks.iter().all(|rank| rank.step.is_some_and(|step| step > 0))
        };
        while !job.find(&daemons.pfod()?.status()?.jobs).is_some_and(works) {
            self.check()?;
            if Instant::now() > until {
                let (command, seconds) = (self.command.clone(), PREPARATION.as_secs());
                return Err(OwnJobError::Slow { command, seconds }.into());
            }
            sleep(POLL);
        }
        Ok(())
    }

    /// Checks that it still runs.
    pub(crate) fn check(&mut self) -> Result<(), OwnJobError> {
        let command = || self.command.clone();
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(OwnJobError::Ended { command: command(), status }),
            Err(source) => Err(OwnJobError::Start { command: command(), source }),
        }
    }
}

impl Drop for OwnJob {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let until = Instant::now() + ENDING;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            sleep(POLL);
        }
        // It has ended, or its time is over.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(command: &str) -> Result<OwnJob, OwnJobError> {
        let gpus = ["GPU-a", "GPU-b"].map(|uuid| uuid.parse().unwrap());
        OwnJob::start(command, &gpus, &"j".parse().unwrap(), None)
    }

    #[test]
    fn a_helper_that_does_not_exist_or_has_ended_is_named() {
        let missing = start("/no/such helper").err().unwrap().to_string();
        assert!(missing.contains("/no/such helper"), "{missing}");
        let mut ended = start("false").unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while ended.check().is_ok() && Instant::now() < until {
            sleep(POLL);
        }
        assert!(ended.check().unwrap_err().to_string().contains("\"false\" ended"));
    }

    #[test]
    fn a_helper_ends_with_its_standard_input() {
        // It ignores its arguments.
        let mut helper = start("sh -c cat").unwrap();
        assert!(helper.check().is_ok());
        let began = Instant::now();
        drop(helper);
        assert!(began.elapsed() < ENDING);
    }
}
