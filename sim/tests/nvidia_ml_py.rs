//! NVIDIA's own Python bindings load the simulated library and believe it.

use crate::machine::{library_directory, test_on};
use crate::python;

#[test]
fn the_bindings_find_lock_measure_and_are_refused_as_on_a_real_machine() {
    let Some(mut python) = python::with_bindings() else { return };
    test_on(&["--ideal", "--gpus", "2xA100,1xV100", "--seed", "7"], |machine, _| {
        let library = library_directory();
        let status = python
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvidia_ml_py.py"))
            .env("LD_LIBRARY_PATH", library.path())
            .env("PFO_SIM_STATE", &machine.state)
            .status();
        assert!(status.unwrap().success());
    });
}
