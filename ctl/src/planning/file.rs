//! Files in and out. A file that is written appears whole or not at all.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::unfinished;
use crate::failure::Failure;

/// The largest file that is read, in bytes; standard input may never end.
const LARGEST: u64 = 1 << 30;

/// Device and number of each file that this process has read.
static READ: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// The name of a file in messages.
pub(crate) fn shown(name: &str) -> &str {
    if name == "-" { "standard input" } else { name }
}

/// Reads a file, or standard input for `-`.
pub(crate) fn read(name: &str) -> Result<Vec<u8>, Failure> {
    let failed = |source| Failure::Read { name: shown(name).to_owned(), source };
    let reader: Box<dyn Read> = if name == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(name).map_err(failed)?)
    };
    if let Ok(file) = fs::metadata(name) {
        READ.lock().unwrap_or_else(PoisonError::into_inner).insert((file.dev(), file.ino()));
    }
    let mut bytes = Vec::new();
    reader.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        return Err(Failure::TooLarge { name: shown(name).to_owned(), limit: LARGEST });
    }
    if bytes.is_empty() {
        return Err(Failure::Empty { name: shown(name).to_owned() });
    }
    Ok(bytes)
}

/// Replaces a file, or makes it.
///
/// # Errors
/// If it cannot be written, or was read before: what was measured is not lost to what is made of it.
pub(crate) fn write(name: &str, bytes: &[u8]) -> Result<(), Failure> {
    check_no_input(name)?;
    let failed = |error| Failure::Write { name: name.to_owned(), source: without_path(error) };
    replace(Path::new(name), bytes).map_err(failed)
}

fn check_no_input(name: &str) -> Result<(), Failure> {
    let is_input = |file: fs::Metadata| {
        let read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        file.is_file() && read.contains(&(file.dev(), file.ino()))
    };
    match fs::metadata(name).is_ok_and(is_input) {
        true => Err(Failure::OverInput { name: name.to_owned() }),
        false => Ok(()),
    }
}

/// The error without the path of the unfinished file, which tempfile adds.
pub(super) fn without_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.rsplit_once(" at path \"") {
        Some((reason, _)) => io::Error::new(error.kind(), reason),
        None => error,
    }
}

/// Checks that a file can be replaced or made.
pub(crate) fn check(name: &str) -> Result<(), Failure> {
    check_no_input(name)?;
    let target = target(Path::new(name));
    let checked = match fs::metadata(&target).ok().filter(|file| !file.is_file()) {
        Some(_) => File::options().write(true).open(target).map(drop),
        None => tempfile::tempfile_in(directory(&target)).map(drop),
    };
    let failed = |error| Failure::Write { name: name.to_owned(), source: without_path(error) };
    checked.map_err(failed)
}

/// The target of a link is meant.
fn target(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn directory(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let target = target(path);
    // A device or a pipe must not be replaced by a file.
    let existing = fs::metadata(&target).ok();
    if existing.as_ref().is_some_and(|file| !file.is_file()) {
        return File::options().write(true).open(target)?.write_all(bytes);
    }
    let directory = directory(&target);
    // As `open` would have made it: the umask takes away what it should.
    let mode = existing.map_or(0o666, |file| file.permissions().mode());
    let mut builder = tempfile::Builder::new();
    builder.permissions(Permissions::from_mode(mode));
    let mut file =
        unfinished::begin(|| builder.tempfile_in(directory), tempfile::NamedTempFile::path)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    unfinished::end(|| file.persist(target))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_is_replaced_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.json");
        replace(&path, b"old").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_read_is_not_written_over_whatever_it_is_called() {
        let directory = tempfile::tempdir().unwrap();
        let [input, link, output] = ["profile.csv", "link", "plan"]
            .map(|name| directory.path().join(name).display().to_string());
        fs::write(&input, b"measured").unwrap();
        std::os::unix::fs::symlink(&input, &link).unwrap();
        assert_eq!(read(&input).unwrap(), b"measured");
        for name in [&input, &link] {
            let said = write(name, b"made").unwrap_err().to_string();
            assert!(said.contains("stays as it is"), "{said}");
            assert!(check(name).is_err());
        }
        assert_eq!(fs::read(&input).unwrap(), b"measured");
        assert!(check(&output).is_ok() && write(&output, b"made").is_ok());
    }

    #[test]
    fn a_link_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("plan"), directory.path().join("link"));
        fs::write(&path, b"old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        replace(&link, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_device_is_written_to_and_stays() {
        replace(Path::new("/dev/null"), b"gone").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_missing_directory_is_an_error_that_names_the_file() {
        let message = write("/nowhere/plan.json", b"").unwrap_err().to_string();
        assert_eq!(
            message,
            "cannot write /nowhere/plan.json: No such file or directory (os error 2)"
        );
    }
}
