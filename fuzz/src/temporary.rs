//! Files in memory, for targets whose reader takes a path.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::{env, fs, process};

/// Writes a file in memory, one of that name for each process and thread.
pub(crate) fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory().join(format!("{:?}-{name}", std::thread::current().id()));
    fs::write(&path, bytes).expect("the file can be written");
    path
}

/// A directory in memory, one for each process.
///
/// # Panics
/// If it cannot be created.
pub fn directory() -> &'static PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let place = if memory.is_dir() { memory } else { env::temp_dir() };
        let directory = place.join(format!("pfo-fuzz-{}", process::id()));
        fs::create_dir_all(&directory).expect("the directory can be created");
        directory
    })
}
