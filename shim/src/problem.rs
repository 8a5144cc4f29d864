//! Why a session holds no lease: a code for programs, a message and a remedy for people.

use std::fmt;
use std::path::Path;

use nix::errno::Errno;
use pfo_protocol::{
    Closing, ClosingReason, FrameError, Refusal, RefusalCode, Unsupported, VERSION,
};

use crate::groups::GroupsFrom;

/// What kind of problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemCode {
    /// The daemon refused.
    Refused(RefusalCode),
    /// The daemon ended the session.
    Closed(ClosingReason),
    /// No daemon listens on the socket.
    NoDaemon,
    /// This user may not open the socket.
    AccessDenied,
    /// The daemon did not answer in time; the session keeps trying.
    NoAnswer,
    /// Daemon and library speak different versions of the protocol.
    Unsupported,
    /// What the daemon answered makes no sense.
    Garbled,
    /// The connection broke; the session connects again.
    ConnectionLost,
    /// Which GPU a CUDA ordinal means could not be found out.
    GpuUnresolved,
    /// The process could not start another thread.
    NoThread,
    /// The session belongs to the process that this one was forked from.
    Forked,
    /// This library failed at something that should have worked.
    Internal,
    /// The plan with which the job was to begin cannot be read, or does not fit a rank.
    PlanUnusable,
}

impl ProblemCode {
    /// The number in the C API.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Refused(code) => 1 + code as i32,
            Self::Closed(reason) => 100 + reason as i32,
            Self::NoDaemon => 150,
            Self::AccessDenied => 151,
            Self::NoAnswer => 152,
            Self::Unsupported => 153,
            Self::Garbled => 154,
            Self::ConnectionLost => 155,
            Self::GpuUnresolved => 156,
            Self::NoThread => 157,
            Self::Forked => 158,
            Self::Internal => 159,
            Self::PlanUnusable => 160,
        }
    }

    /// Whether trying again soon is of use: yes where the other side comes and goes by itself, no
    /// where a person has to change something first.
    pub(crate) const fn passes_by_itself(self) -> bool {
        matches!(
            self,
            Self::NoDaemon
                | Self::NoAnswer
                | Self::ConnectionLost
                | Self::Closed(ClosingReason::Idle | ClosingReason::ShuttingDown)
                | Self::Refused(RefusalCode::ShuttingDown)
        )
    }
}

/// Why there is no lease right now. Training runs on regardless, at default clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// For programs.
    pub code: ProblemCode,
    /// What is wrong.
    pub message: String,
    /// What to do about it; empty where nothing can be said.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

impl Problem {
    pub(crate) fn new(
        code: ProblemCode,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { code, message: message.into(), remedy: remedy.into() }
    }

    pub(crate) fn no_answer(socket: &Path) -> Self {
        Self::new(
            ProblemCode::NoAnswer,
            format!("pfod at {} has not answered yet", socket.display()),
            "run `pfoctl status`; the session opens as soon as pfod answers",
        )
    }

    pub(crate) fn unread(socket: &Path) -> Self {
        Self::new(
            ProblemCode::NoAnswer,
            format!("pfod at {} no longer reads what this rank reports", socket.display()),
            "run `pfoctl status` and `journalctl -u pfod`; the session continues as soon as pfod reads",
        )
    }

    pub(crate) fn connecting(socket: &Path, errno: Errno, groups: GroupsFrom) -> Self {
        let socket = socket.display();
        match errno {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ECONNREFUSED => Self::new(
                ProblemCode::NoDaemon,
                format!("no daemon at {socket}: {}", errno.desc()),
                "start pfod, or set PFO_SOCKET to its socket",
            ),
            Errno::EACCES | Errno::EPERM => Self::new(
                ProblemCode::AccessDenied,
                format!("this user may not open {socket}: {}", errno.desc()),
                groups.remedy(),
            ),
            Errno::EAGAIN => Self::new(
                ProblemCode::NoAnswer,
                format!("too many connections wait at {socket} already"),
                "run `pfoctl status` to see whether pfod answers",
            ),
            other => Self::new(
                ProblemCode::NoDaemon,
                format!("no connection to {socket}: {}", other.desc()),
                "",
            ),
        }
    }

    pub(crate) fn refused(refusal: Refusal) -> Self {
        Self::new(
            ProblemCode::Refused(refusal.code),
            printable(refusal.message),
            printable(refusal.remedy),
        )
    }

    pub(crate) fn closed(closing: Closing) -> Self {
        Self::new(ProblemCode::Closed(closing.reason), printable(closing.message), "")
    }

    pub(crate) fn unsupported(spoken: Unsupported) -> Self {
        Self::versions(&format!("versions {} to {}", spoken.oldest, spoken.newest))
    }

    fn versions(daemon: &str) -> Self {
        Self::new(
            ProblemCode::Unsupported,
            format!("pfod speaks {daemon} of the protocol, this library version {VERSION}"),
            "install the same release of pfod and libpfo",
        )
    }

    pub(crate) fn lost(detail: &str) -> Self {
        Self::new(
            ProblemCode::ConnectionLost,
            format!("the connection to pfod broke: {detail}"),
            "the session reconnects by itself",
        )
    }

    /// A frame that could not be read.
    pub(crate) fn frame(error: &FrameError) -> Self {
        match error {
            FrameError::Version(version) => Self::versions(&format!("version {version}")),
            FrameError::Io(error) => Self::lost(&error.to_string()),
            FrameError::Truncated => Self::lost("it ended"),
            garbage => Self::garbled(&garbage.to_string()),
        }
    }

    pub(crate) fn garbled(detail: &str) -> Self {
        Self::new(
            ProblemCode::Garbled,
            format!("the daemon's answer is invalid: {detail}"),
            "check that PFO_SOCKET is the socket of pfod",
        )
    }

    pub(crate) fn unresolved(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(ProblemCode::GpuUnresolved, message, remedy)
    }

    pub(crate) fn no_thread(error: &std::io::Error) -> Self {
        Self::new(
            ProblemCode::NoThread,
            format!("the session's background thread could not start: {error}"),
            "raise the limit of threads of the process",
        )
    }

    pub(crate) fn forked() -> Self {
        Self::new(
            ProblemCode::Forked,
            "the session belongs to the process that this one was forked from",
            "open a session in the process that trains",
        )
    }

    pub(crate) fn internal(detail: &str) -> Self {
        Self::new(ProblemCode::Internal, format!("libpfo failed: {detail}"), "please report this")
    }
}

/// The daemon's texts end up in the trainer's terminal and logs, so nothing in them may steer
/// those.
fn printable(mut text: String) -> String {
    if text.contains(char::is_control) {
        text = text.replace(char::is_control, " ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_reads_as_one_sentence_with_its_remedy() {
        let problem = Problem::refused(Refusal::new(RefusalCode::GpuHeld, "held by job x", "wait"));
        assert_eq!(problem.to_string(), "held by job x; wait");
        assert_eq!(problem.code.number(), 4);
    }

    #[test]
    fn control_characters_from_the_daemon_do_not_reach_a_terminal() {
        let problem = Problem::refused(Refusal::new(RefusalCode::Internal, "a\u{1b}[2Jb\n", ""));
        assert_eq!(problem.message, "a [2Jb ");
    }

    #[test]
    fn a_missing_socket_a_closed_door_and_a_full_queue_are_told_apart() {
        let code = |errno| Problem::connecting(Path::new("/x"), errno, GroupsFrom::Login).code;
        assert_eq!(code(Errno::ENOENT), ProblemCode::NoDaemon);
        assert_eq!(code(Errno::ECONNREFUSED), ProblemCode::NoDaemon);
        assert_eq!(code(Errno::EACCES), ProblemCode::AccessDenied);
        assert_eq!(code(Errno::EAGAIN), ProblemCode::NoAnswer);
    }
}
