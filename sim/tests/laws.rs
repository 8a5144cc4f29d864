//! A second computation of the simulator's laws, in another language and through NVML only, agrees
//! with what a simulated GPU does.

use crate::machine;
use crate::python;
use std::path::Path;

use crate::machine::test_on;

#[test]
fn an_a100_does_what_its_published_laws_say() {
    obeys_its_laws("good");
}

#[test]
fn an_a100_that_is_badly_cooled_slows_down_as_its_laws_say() {
    obeys_its_laws("poor");
}

fn obeys_its_laws(cooling: &str) {
    let Some(mut python) = python::with_bindings() else { return };
    let owner = nix::unistd::geteuid().to_string();
    let hot: &[&str] = if cooling == "good" { &[] } else { &["--warm"] };
    let create = ["--gpus", "A100", "--owner-uid", &owner, "--cooling", cooling];
    test_on(&[&create[..], hot].concat(), |machine, _| {
        let library = machine::library_directory();
        let status = python
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/laws.py"))
            .arg(Path::new(env!("CARGO_BIN_EXE_pfo-sim-trainer")))
            .arg(cooling)
            .env("LD_LIBRARY_PATH", library.path())
            .env("PFO_SIM_STATE", &machine.state)
            .status();
        assert!(status.unwrap().success());
    });
}
