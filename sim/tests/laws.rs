//! A second computation of the simulator's laws, in another language and through NVML only, agrees
//! with what a simulated GPU does.

mod machine;
mod python;

use std::path::Path;

use machine::test_on;

#[test]
fn an_a100_does_what_its_published_laws_say() {
    let Some(mut python) = python::with_bindings() else { return };
    let owner = nix::unistd::geteuid().to_string();
    test_on(&["--gpus", "A100", "--owner-uid", &owner], |machine, _| {
        let library = machine::library_directory();
        let status = python
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/laws.py"))
            .arg(Path::new(env!("CARGO_BIN_EXE_pfo-sim-trainer")))
            .env("LD_LIBRARY_PATH", library.path())
            .env("PFO_SIM_STATE", &machine.state)
            .status();
        assert!(status.unwrap().success());
    });
}
