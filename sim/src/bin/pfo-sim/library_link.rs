//! Puts a link to the simulated library where a dynamic loader looks for NVIDIA's.

use std::env;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::Path;

use nvidia_ml::error::SimError;

/// Makes `DIRECTORY/libnvidia-ml.so.1`, in place of an older link, and says what it points to.
pub(crate) fn make(directory: &Path) -> Result<(), SimError> {
    let program = env::current_exe().map_err(|e| SimError::file("find", "pfo-sim itself", e))?;
    let library = program.with_file_name("libnvidia_ml.so");
    if !library.exists() {
        let missing = io::Error::new(ErrorKind::NotFound, "build it with `cargo build -p pfo-sim`");
        return Err(SimError::file("find", library, missing));
    }
    fs::create_dir_all(directory).map_err(|e| SimError::file("create", directory, e))?;
    let link = directory.join("libnvidia-ml.so.1");
    match fs::symlink_metadata(&link) {
        Ok(existing) if existing.is_symlink() => {
            fs::remove_file(&link).map_err(|e| SimError::file("replace", &link, e))?;
        }
        _ => {}
    }
    symlink(&library, &link).map_err(|e| SimError::file("create", &link, e))?;
    println!("{} -> {}", link.display(), library.display());
    Ok(())
}
