//! Where the programs under test are: beside the test itself, as `cargo build --workspace` leaves them.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names another directory than that of the test itself.
const VARIABLE: &str = "PFO_BIN_DIR";

/// The directory of the programs under test.
#[must_use]
pub fn directory() -> PathBuf {
    if let Some(directory) = env::var_os(VARIABLE) {
        return directory.into();
    }
    // A test is target/PROFILE/deps/TEST, a program target/PROFILE/PROGRAM.
    let this = env::current_exe().unwrap();
    let directory = this.parent().unwrap();
    if directory.ends_with("deps") { directory.parent().unwrap() } else { directory }.to_owned()
}

fn built(file: &Path) -> PathBuf {
    let path = directory().join(file);
    assert!(
        path.exists(),
        "there is no {}: run `make test`, or `cargo build --workspace --all-targets` first",
        path.display()
    );
    path
}

/// A program of the workspace.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    built(Path::new(name))
}

/// A program of the workspace where other users can run it too: itself or, if they cannot reach the
/// workspace, a copy in `directory`.
#[must_use]
pub fn program_for_all(name: &str, directory: &Path) -> PathBuf {
    for_all(program(name), directory)
}

/// An example of the workspace, as [`program_for_all`].
#[must_use]
pub fn example_for_all(name: &str, directory: &Path) -> PathBuf {
    for_all(example(name), directory)
}

fn for_all(path: PathBuf, directory: &Path) -> PathBuf {
    let open_to_all = |path: &Path| path.metadata().unwrap().mode() & 0o001 != 0;
    if path.canonicalize().unwrap().ancestors().all(open_to_all) {
        return path;
    }
    let copy = directory.join(path.file_name().unwrap());
    if !copy.exists() {
        fs::copy(path, &copy).unwrap();
    }
    copy
}

/// An example of the workspace.
#[must_use]
pub fn example(name: &str) -> PathBuf {
    built(&Path::new("examples").join(name))
}

/// A shared library of the workspace.
#[must_use]
pub fn library(name: &str) -> PathBuf {
    built(Path::new(name))
}

/// The root of the source tree.
#[must_use]
pub fn source_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
