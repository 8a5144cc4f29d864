//! Replacing a file as a whole: a reader finds either the old content or the new one, on disk when
//! [`replace`] returns.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Puts `bytes` in the place of the file at `path`.
///
/// # Errors
/// If it could not be written; the file is then as before.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
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

/// As [`replace`], and creates the file's directory, readable by nobody else, if it is missing.
///
/// # Errors
/// If the directory or the file could not be written; the file is then as before.
pub fn replace_in_own_directory(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    replace(path, bytes)
}
