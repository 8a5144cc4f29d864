//! Replacing a file as a whole: a reader finds either the old content or the new one, on disk when
//! [`replace`] returns.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Mutex;

use crate::lock;

/// Held while a file is replaced: two threads at once would write the same new file.
static REPLACING: Mutex<()> = Mutex::new(());

/// Replaces the file at `path` by one with the content `bytes`.
///
/// # Errors
/// If it could not be written; the file then is as before.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let _replacing = lock(&REPLACING);
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Like [`replace`], and creates the file's directory, accessible only to its owner, if it is
/// missing.
///
/// # Errors
/// If the directory or the file could not be written; the file then is as before.
pub fn replace_in_own_directory(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    replace(path, bytes)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn of_two_who_replace_a_file_at_once_each_succeeds() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        thread::scope(|scope| {
            for number in 0..8u8 {
                let path = &path;
                scope.spawn(move || (0..20).for_each(|_| replace(path, &[number; 64]).unwrap()));
            }
        });
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == 64 && bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
    }
}
