//! The data measured on real GPUs.
//!
//! It is no part of this repository: `PFO_DATA_DIR` says where it is, or it lies in `shared/data`
//! beside the project. Where it is absent, the tests that need it say so and pass.

use std::path::{Path, PathBuf};

/// Where a file of the measured data is, or nothing and a word about it.
pub(crate) fn data(path: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("PFO_DATA_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
        PathBuf::from,
    );
    let found = Some(directory.join(path)).filter(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: there is no {}", directory.join(path).display());
    }
    found
}
