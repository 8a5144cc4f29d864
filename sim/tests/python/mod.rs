//! A Python that has NVIDIA's own bindings.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The project's own environment, or else the system's; without the bindings, says that the test is
/// skipped.
pub(crate) fn with_bindings() -> Option<Command> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../.venv/bin/python");
    let python = [own, "python3"].map(PathBuf::from).into_iter().find(|python| {
        let import =
            Command::new(python).args(["-c", "import pynvml"]).stderr(Stdio::null()).status();
        import.is_ok_and(|status| status.success())
    });
    if python.is_none() {
        println!("skipped: no Python here has nvidia-ml-py (`make setup` installs it)");
    }
    python.map(Command::new)
}
