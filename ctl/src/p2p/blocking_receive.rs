//! The process that keeps two GPUs in a blocking receive while they are measured. It is an ordinary
//! training job of two ranks, and ends when its standard input is closed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::{GpuUuid, JobName};

use super::P2pError;

/// How long it may take to end.
const ENDING: Duration = Duration::from_secs(15);

const POLL: Duration = Duration::from_millis(50);

/// A running helper. It ends when this is dropped.
pub(super) struct BlockingReceive {
    command: String,
    child: Child,
}

impl BlockingReceive {
    /// Starts `command --gpus A,B --job NAME`, which reaches `pfod` at this socket; the command is
    /// split at its spaces.
    pub(super) fn start(
        command: &str,
        gpus: [&GpuUuid; 2],
        job: &JobName,
        socket: Option<&Path>,
    ) -> Result<Self, P2pError> {
        let mut words = command.split_whitespace();
        let program = words.next().unwrap_or_default();
        let child = Command::new(program)
            .args(words)
            .args(["--gpus", &format!("{},{}", gpus[0], gpus[1]), "--job", job.as_str()])
            .envs(socket.map(|socket| ("PFO_SOCKET", socket)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|source| P2pError::Helper { command: command.to_owned(), source })?;
        Ok(Self { command: command.to_owned(), child })
    }

    /// Checks that it still runs.
    pub(super) fn check(&mut self) -> Result<(), P2pError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                Err(P2pError::HelperEnded { command: self.command.clone(), status })
            }
            Err(source) => Err(P2pError::Helper { command: self.command.clone(), source }),
        }
    }
}

impl Drop for BlockingReceive {
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

    fn start(command: &str) -> Result<BlockingReceive, P2pError> {
        let [a, b] = ["GPU-a", "GPU-b"].map(|uuid| uuid.parse().unwrap());
        BlockingReceive::start(command, [&a, &b], &"j".parse().unwrap(), None)
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
