//! A directory of files that appears whole or not at all.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::file::without_path;
use super::unfinished;
use crate::failure::Failure;

/// Makes a directory with these files, each by its name. One that exists must be empty: older files
/// among the new ones would be taken for them.
pub(crate) fn write(
    name: &str,
    files: impl Iterator<Item = Result<(String, String), Failure>>,
) -> Result<(), Failure> {
    let failed = |error| Failure::Write { name: name.to_owned(), source: without_path(error) };
    let path = Path::new(name);
    if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
        let message = "the directory is not empty; give a new one";
        return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, message)));
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    // As `mkdir` would have made it: the umask takes away what it should.
    builder.permissions(Permissions::from_mode(0o777));
    let new = unfinished::begin(|| builder.tempdir_in(parent), tempfile::TempDir::path)
        .map_err(failed)?;
    for file in files {
        let (name, content) = file?;
        unfinished::add(|| fs::write(new.path().join(name), content)).map_err(failed)?;
    }
    unfinished::end(|| {
        fs::rename(new.path(), path)?;
        // It has another name now, so there is nothing left to clean up.
        let _ = new.keep();
        Ok(())
    })
    .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_is_filled_and_a_full_one_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("plans");
        let name = path.to_str().unwrap();
        let one = |file: &str| std::iter::once(Ok((file.to_owned(), "1".to_owned())));
        fs::create_dir(&path).unwrap();
        write(name, one("a")).unwrap();
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");
        let error = write(name, one("b")).unwrap_err();
        assert!(error.to_string().contains("not empty"), "{error}");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_made_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let files = [
            Ok(("a".to_owned(), "1".to_owned())),
            Err(Failure::NoPlans { directory: "b".to_owned() }),
        ];
        let path = place.path().join("plans");
        write(path.to_str().unwrap(), files.into_iter()).unwrap_err();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
