//! The exit codes, by which a script knows the outcome. They are part of the interface: new ones
//! may be added, none changes.

use std::process::ExitCode;

use pfo_protocol::RefusalCode;

/// What the process exits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The request was carried out.
    Done = 0,
    /// The request was tried and failed.
    Failed = 1,
    /// The arguments or a file that they name are wrong; no daemon was asked. Clap exits with the
    /// same number.
    Usage = 2,
    /// A daemon does not answer; the same request may succeed later.
    Unreachable = 3,
    /// A daemon or the permissions of its socket refused; the same request will fail again.
    Refused = 4,
    /// Plans were measured, and none is better than default clocks.
    NothingKept = 5,
    /// A plan was kept that most likely, but not certainly, is within the allowed slowdown.
    KeptUncertain = 6,
    /// A daemon accepted the request, and a GPU's driver has not done it.
    NotInForce = 7,
    /// Ctrl-C ended a wait, which ends nothing else, or a measurement, after which the job returns
    /// to default clocks.
    Interrupted = 130,
}

/// The exit codes as `--help` and the man page show them.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done
  1    failed: a daemon could not do it, or something unexpected happened
  2    usage: an argument or a file is wrong; nothing was changed
  3    unreachable: a daemon, or the store of the fleet, does not run or does not
       answer; retrying may help
  4    refused: not authorised, or the request does not fit the job or the GPU
  5    nothing kept: no plan saves energy within the allowed slowdown
  6    kept, but not certain: the plan most likely is within the allowed slowdown
  7    not in force: pfod accepted the request, and the driver of a GPU did not do it
  130  interrupted: a wait was abandoned, or a measurement stopped and default
       clocks restored";

impl Exit {
    /// The code of a daemon's refusal.
    pub(crate) fn of_refusal(code: RefusalCode) -> Self {
        match code {
            RefusalCode::Malformed
            | RefusalCode::GpuUnavailable
            | RefusalCode::DriverUnavailable
            | RefusalCode::Internal => Self::Failed,
            RefusalCode::ShuttingDown => Self::Unreachable,
            RefusalCode::NotInForce => Self::NotInForce,
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
            Exit::KeptUncertain,
            Exit::NotInForce,
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
