//! The file system that is looked at: this node's, or one that a test has made.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// Where `/` is.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// A file system below a directory.
    pub(crate) fn at(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Where a path is, that is absolute within.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// What a file says.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        fs::read_to_string(self.path(path))
    }

    /// What is known of a file, after links.
    pub(crate) fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        fs::metadata(self.path(path))
    }
}
