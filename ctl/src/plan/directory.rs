//! A directory of files that appears whole or not at all.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Makes a directory with these files. One that exists must be empty: older files among the new
/// ones would be taken for them.
pub(super) fn write(path: &Path, files: &[(String, String)]) -> io::Result<()> {
    if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
        let message = "the directory is not empty; give a new one";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let new = tempfile::Builder::new()
        // As `mkdir` would have made it: the umask takes away what it should.
        .permissions(Permissions::from_mode(0o777))
        .tempdir_in(parent)?;
    for (name, content) in files {
        fs::write(new.path().join(name), content)?;
    }
    fs::rename(new.path(), path)?;
    // It has another name now, so there is nothing left to clean up.
    let _ = new.keep();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_is_filled_and_a_full_one_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("plans");
        fs::create_dir(&path).unwrap();
        write(&path, &[("a".to_owned(), "1".to_owned())]).unwrap();
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");
        let error = write(&path, &[("b".to_owned(), "2".to_owned())]).unwrap_err();
        assert!(error.to_string().contains("not empty"), "{error}");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
