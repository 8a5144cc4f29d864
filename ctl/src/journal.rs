//! The last warnings of both daemons in the systemd journal, as `pfo-journal` reads them. That is a program of its own
//! because it links libsystemd, which `pfoctl` runs without.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pfo_protocol::JobSelector;
use serde::Deserialize;

use crate::user;

/// How far `pfo-journal` looks back unless it is told otherwise, in words.
pub(crate) const PERIOD: &str = "in the last day";

/// How long `pfo-journal` may take.
const LONGEST: Duration = Duration::from_secs(5);

/// The most that it may print, in bytes.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// How often to look whether it has ended after its last line.
const LOOK: Duration = Duration::from_millis(5);

/// Exit codes of `pfo-journal`, from `sysexits.h`.
const NO_JOURNAL: i32 = 66;
const NOT_ALLOWED: i32 = 77;

/// Warnings of a daemon with the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warning {
    newest_us: i64,
    pub(crate) count: usize,
    pub(crate) daemon: String,
    pub(crate) message: String,
}

/// Why no warnings are known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    #[error("pfo-journal, which reads the journal, is not installed")]
    NotInstalled,
    #[error("this machine has no journal of systemd")]
    NoJournal,
    #[error("user {user} may not read the journal")]
    NotAllowed { user: String },
    #[error("{} did not end within {} s", reader.display(), LONGEST.as_secs())]
    Slow { reader: PathBuf },
    #[error("{} printed more than {} MiB", reader.display(), MOST_BYTES >> 20)]
    Long { reader: PathBuf },
    #[error("{} printed something that is no entry of a journal", reader.display())]
    Garbled { reader: PathBuf },
    #[error("{} failed: {status}", reader.display())]
    Failed { reader: PathBuf, status: ExitStatus },
    #[error("{} does not run: {source}", reader.display())]
    Broken { reader: PathBuf, source: std::io::Error },
}

impl JournalError {
    /// What to do about it.
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::NotInstalled => "the package of pfod has it; `make build` builds it where \
                                   libsystemd-dev is installed"
                .into(),
            Self::NoJournal => "look for the warnings where both daemons write their log".into(),
            Self::NotAllowed { user } => format!(
                "have an administrator run `usermod -aG systemd-journal {user}`, then {}",
                user::how_to_use_new_groups()
            ),
            Self::Slow { reader } | Self::Failed { reader, .. } | Self::Broken { reader, .. } => {
                format!("run {} to see why", reader.display())
            }
            Self::Long { .. } => "`journalctl --unit=pfod --unit=pfo-agent` shows them".into(),
            Self::Garbled { .. } => "install the same release of pfoctl and pfo-journal".into(),
        }
    }
}

/// An entry of the journal, as `pfo-journal` prints it.
#[derive(Deserialize)]
struct Entry {
    time_us: i64,
    daemon: String,
    message: String,
}

impl Warning {
    /// When the newest of them came, on this machine's clock, such as `Nov 28 13:10:05`.
    pub(crate) fn time(&self, zone: &TimeZone) -> String {
        let time = Timestamp::from_microsecond(self.newest_us).unwrap_or_default();
        time.to_zoned(zone.clone()).strftime("%b %e %H:%M:%S").to_string()
    }
}

/// The last warnings of both daemons, or those about one job; the newest first, equal ones merged.
pub(crate) fn warnings(job: Option<&JobSelector>) -> Result<Vec<Warning>, JournalError> {
    let reader = reader().ok_or(JournalError::NotInstalled)?;
    let mut command = Command::new(&reader);
    if let Some(JobSelector { job, uid }) = job {
        command.arg("--job").arg(job.as_str());
        command.args(uid.iter().flat_map(|uid| ["--uid".to_owned(), uid.0.to_string()]));
    }
    merged(&printed(command, &reader)?).ok_or(JournalError::Garbled { reader })
}

/// The program: what `PFO_JOURNAL` names, or where it is beside this one.
fn reader() -> Option<PathBuf> {
    let named = std::env::var_os("PFO_JOURNAL").map(PathBuf::from);
    let own = std::env::current_exe().unwrap_or_default();
    let directory = own.parent().unwrap_or(Path::new("/usr/bin"));
    let beside = ["pfo-journal", "../libexec/pfo/pfo-journal"].map(|path| directory.join(path));
    let candidates = named.map_or_else(|| beside.to_vec(), |named| vec![named]);
    candidates.into_iter().find(|path| path.is_file())
}

/// What the reader prints, if it ends well and in time.
fn printed(mut command: Command, reader: &Path) -> Result<Vec<u8>, JournalError> {
    let until = Instant::now() + LONGEST;
    let broken = |source| JournalError::Broken { reader: reader.to_owned(), source };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(broken)?;
    let stdout = child.stdout.take();
    let printed = stdout.map_or(Ok(Vec::new()), |stdout| read(stdout, reader, until));
    let status = ended(&mut child, if printed.is_ok() { until } else { Instant::now() });
    let (printed, reader) = (printed?, reader.to_owned());
    match status.map_err(broken)? {
        None => Err(JournalError::Slow { reader }),
        Some(status) => match status.code() {
            Some(0) => Ok(printed),
            Some(NO_JOURNAL) => Err(JournalError::NoJournal),
            Some(NOT_ALLOWED) => Err(JournalError::NotAllowed { user: user::own_name() }),
            _ => Err(JournalError::Failed { reader, status }),
        },
    }
}

fn read(mut stdout: ChildStdout, reader: &Path, until: Instant) -> Result<Vec<u8>, JournalError> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 * 1024]);
    while bytes.len() <= MOST_BYTES {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let ready = poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], timeout);
        if left.is_zero() || ready == Ok(0) {
            return Err(JournalError::Slow { reader: reader.to_owned() });
        }
        if ready == Err(Errno::EINTR) {
            continue;
        }
        match stdout.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(source) => return Err(JournalError::Broken { reader: reader.to_owned(), source }),
        }
    }
    Err(JournalError::Long { reader: reader.to_owned() })
}

/// How the program ended; none if it had to be killed.
fn ended(child: &mut Child, until: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill()?;
            return child.wait().map(|_| None);
        }
        sleep(LOOK);
    }
}

/// The warnings that these lines are; none if one is something else.
fn merged(printed: &[u8]) -> Option<Vec<Warning>> {
    let mut warnings = Vec::<Warning>::new();
    for line in printed.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Entry { time_us, daemon, message } = serde_json::from_slice(line).ok()?;
        let is_equal = |other: &&mut Warning| other.daemon == daemon && other.message == message;
        match warnings.iter_mut().find(is_equal) {
            Some(equal) => equal.count += 1,
            None => warnings.push(Warning { newest_us: time_us, count: 1, daemon, message }),
        }
    }
    Some(warnings)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Warnings that came one second after the other, the newest first.
    pub(crate) fn warned(messages: &[&str]) -> Vec<Warning> {
        let times = (0..).map(|place| 1_795_871_405_000_000 - 1_000_000 * place);
        let lines: String =
            times.zip(messages).map(|(time, message)| line(time, message)).collect();
        merged(lines.as_bytes()).unwrap()
    }

    fn line(time_us: i64, message: &str) -> String {
        let entry = serde_json::json!({
            "time_us": time_us, "daemon": "pfod", "priority": 4, "message": message, "job": null,
        });
        format!("{entry}\n")
    }

    /// What comes of a reader that is this script.
    fn said_of(script: &str) -> Result<Vec<u8>, JournalError> {
        let directory = tempfile::tempdir().unwrap();
        let reader = directory.path().join("pfo-journal");
        fs::write(&reader, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&reader, fs::Permissions::from_mode(0o755)).unwrap();
        printed(Command::new(&reader), &reader)
    }

    #[test]
    fn equal_warnings_are_one_with_the_time_of_the_newest() {
        let text = line(30, "hot") + &line(20, "late") + &line(10, "hot");
        let warning = |newest_us, count, message: &str| Warning {
            newest_us,
            count,
            daemon: "pfod".into(),
            message: message.into(),
        };
        assert_eq!(
            merged(text.as_bytes()),
            Some(vec![warning(30, 2, "hot"), warning(20, 1, "late")])
        );
        assert_eq!(merged(b"oops\n"), None);
    }

    #[test]
    fn the_time_of_a_warning_is_that_of_the_machine() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        assert_eq!(warned(&["hot"])[0].time(&zone), "Nov 28 14:10:05");
    }

    #[test]
    fn a_reader_that_hangs_is_ended() {
        for script in ["echo; exec sleep 1000", "exec >/dev/null; exec sleep 1000"] {
            let said = said_of(script).unwrap_err();
            assert!(matches!(said, JournalError::Slow { .. }), "{script}: {said}");
        }
    }

    #[test]
    fn a_reader_that_prints_without_end_is_ended() {
        let said = said_of("exec cat /dev/zero").unwrap_err();
        assert!(matches!(said, JournalError::Long { .. }), "{said}");
    }

    #[test]
    fn a_reader_says_by_its_exit_code_why_there_is_nothing() {
        let said = |script| said_of(script).unwrap_err();
        assert!(matches!(said("exit 66"), JournalError::NoJournal));
        assert!(matches!(said("exit 77"), JournalError::NotAllowed { .. }));
        assert!(said("exit 77").remedy().contains("usermod -aG systemd-journal "));
        let failed = said("exit 127");
        assert!(failed.to_string().ends_with("failed: exit status: 127"), "{failed}");
    }
}
