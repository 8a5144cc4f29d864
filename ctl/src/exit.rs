//! How `pfoctl` tells a script what became of its request. The numbers are part of the interface:
//! they may be added to, never change.

use std::process::ExitCode;

use pfo_protocol::RefusalCode;

/// What the process exits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// What was asked for is done.
    Done = 0,
    /// It was tried and failed.
    Failed = 1,
    /// The arguments or a file that they name are wrong; the daemon was not asked. Clap exits with
    /// the same number.
    Usage = 2,
    /// The daemon does not answer; the same request may succeed later.
    Unreachable = 3,
    /// The daemon or the permissions of its socket said no; the same request will fail again.
    Refused = 4,
    /// It was measured, and nothing that was tried is better than what there was.
    NothingKept = 5,
    /// Ctrl-C ended a wait, and what was waited for goes on, or a measurement, and the job is back
    /// at default clocks.
    Interrupted = 130,
}

/// The exit codes as `--help` and the man page show them.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done
  1    failed: the daemon tried and could not, or something unexpected happened
  2    usage: an argument or a file is wrong; nothing was changed
  3    unreachable: the daemon does not run or does not answer; trying again may help
  4    refused: not authorised, or the request does not fit the job or the GPU
  5    nothing kept: no plan that was tried saves energy within the slowdown that is allowed
  130  Ctrl-C ended a wait, and what was waited for goes on, or a measurement, and the job is back at
       default clocks";

impl Exit {
    /// What a refusal of the daemon means to a script.
    pub(crate) fn of_refusal(code: RefusalCode) -> Self {
        match code {
            RefusalCode::Malformed
            | RefusalCode::GpuUnavailable
            | RefusalCode::DriverUnavailable
            | RefusalCode::Internal => Self::Failed,
            RefusalCode::ShuttingDown => Self::Unreachable,
            _ => Self::Refused,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_exit_code() {
        for exit in [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::Unreachable,
            Exit::Refused,
            Exit::NothingKept,
            Exit::Interrupted,
        ] {
            let number = format!("  {:<5}", exit as u8);
            assert!(HELP.contains(&number), "{exit:?} is missing");
        }
    }

    #[test]
    fn a_refusal_that_time_may_cure_is_told_from_one_that_will_repeat() {
        assert_eq!(Exit::of_refusal(RefusalCode::ShuttingDown), Exit::Unreachable);
        assert_eq!(Exit::of_refusal(RefusalCode::NotAuthorized), Exit::Refused);
        assert_eq!(Exit::of_refusal(RefusalCode::PlanDoesNotFit), Exit::Refused);
        assert_eq!(Exit::of_refusal(RefusalCode::Internal), Exit::Failed);
    }
}
