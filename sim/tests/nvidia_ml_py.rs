//! NVIDIA's own Python bindings load the simulated library and believe it.

mod machine;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use machine::{library_directory, test_on};

/// A Python that has the bindings: the project's own environment, or the system's.
fn python() -> Option<PathBuf> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../.venv/bin/python");
    [own, "python3"].map(PathBuf::from).into_iter().find(|python| {
        let import =
            Command::new(python).args(["-c", "import pynvml"]).stderr(Stdio::null()).status();
        import.is_ok_and(|status| status.success())
    })
}

#[test]
fn the_bindings_find_lock_measure_and_are_refused_as_on_a_real_machine() {
    let Some(python) = python() else {
        return println!("skipped: no Python here has nvidia-ml-py (`make setup` installs it)");
    };
    test_on(&["--gpus", "2xA100,1xV100", "--seed", "7"], |machine, _| {
        let library = library_directory();
        let status = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvidia_ml_py.py"))
            .env("LD_LIBRARY_PATH", library.path())
            .env("PFO_SIM_STATE", &machine.state)
            .status();
        assert!(status.unwrap().success());
    });
}
