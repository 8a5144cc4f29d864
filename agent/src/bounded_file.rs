//! Files that others write, which are read within bounds.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The largest file that is read, in bytes.
pub(crate) const LARGEST: u64 = 64 * 1024;

/// The text of a regular file of at most [`LARGEST`] bytes.
///
/// # Errors
/// If it cannot be read, is no regular file, no text, or too large.
pub(crate) fn text_of(path: &Path) -> io::Result<String> {
    text_within(path, LARGEST)
}

/// Reads a regular file as text, and refuses one that is larger than `most` bytes.
///
/// # Errors
/// As [`text_of`].
pub(crate) fn text_within(path: &Path, most: u64) -> io::Result<String> {
    // To open a pipe waits for who writes.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    File::open(path)?.take(most.saturating_add(1)).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::other(format!("it is larger than {most} bytes")));
    }
    Ok(text)
}
