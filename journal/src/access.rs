//! Whether this user may read the system journal. libsystemd leaves out files that it may not open, and then finds
//! nothing.

use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

/// Where journald keeps the journal, in a directory that the machine's id names.
const DIRECTORIES: [&str; 2] = ["/var/log/journal", "/run/log/journal"];

/// Why there is nothing to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// journald keeps none here.
    NoJournal,
    /// Its files are closed to this user.
    NotAllowed,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoJournal => "this machine has no journal",
            Self::NotAllowed => {
                "this user may not read the journal; members of the group systemd-journal may"
            }
        })
    }
}

/// Whether the journal of this machine is there, and open to this user.
pub(crate) fn check() -> Result<(), Obstacle> {
    let id = fs::read_to_string("/etc/machine-id").map_err(|_| Obstacle::NoJournal)?;
    check_in(DIRECTORIES.map(|directory| Path::new(directory).join(id.trim())))
}

fn check_in(directories: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<(), Obstacle> {
    let mut obstacle = Obstacle::NoJournal;
    for directory in directories {
        match File::open(directory.as_ref().join("system.journal")) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                obstacle = Obstacle::NotAllowed;
            }
            Err(_) => {}
        }
    }
    Err(obstacle)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_journal_that_is_closed_is_distinguished_from_none() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent");
        assert_eq!(check_in([&absent]), Err(Obstacle::NoJournal));
        let file = directory.path().join("system.journal");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
        let checked = check_in([absent.as_path(), directory.path()]);
        let expected = if File::open(&file).is_ok() { Ok(()) } else { Err(Obstacle::NotAllowed) };
        assert_eq!(checked, expected);
    }
}
