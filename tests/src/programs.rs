//! Where the programs under test are: beside the test itself, as `cargo build --workspace` leaves them.

use std::env;
use std::path::{Path, PathBuf};

/// The directory of the programs, unless this names another.
const VARIABLE: &str = "PFO_BIN_DIR";

fn directory() -> PathBuf {
    if let Some(directory) = env::var_os(VARIABLE) {
        return directory.into();
    }
    // target/PROFILE/deps/TEST
    let test = env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
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
