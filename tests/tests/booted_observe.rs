//! `docs/observe.md` for a newcomer: a clean Debian, a user without rights, the wheel, and a driver that
//! aborts whoever changes anything.

use std::fs;

use pfo_tests::{Debian, PROGRAMS, PackagedNode, programs};

/// Where the wheel of `make wheel` is.
const WHEELS: &str = "target/wheels";

/// The wheel for every Python from 3.9 on.
fn bring_wheel(node: &PackagedNode) -> String {
    let wheels = fs::read_dir(programs::source_root().join(WHEELS)).unwrap();
    let mut names = wheels.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let name = names.find(|name| name.starts_with("pfo_gpu-") && name.contains("-abi3-"));
    let name = name.expect("`make wheel` builds it");
    let wheel = programs::source_root().join(WHEELS).join(&name);
    fs::copy(wheel, node.debian.shared().join(&name)).unwrap();
    format!("/shared/{name}")
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn a_newcomer_gets_from_pip_install_to_the_page_of_a_training() {
    let Some(node) = PackagedNode::boot_with_gpus(Debian::Trixie, "2xA100") else { return };
    node.machine.fault("setters", "crash", None);
    node.debian.run("useradd --create-home newcomer").printed();
    let wheel = bring_wheel(&node);
    let install = format!("python3 -m venv ~/pfo && ~/pfo/bin/pip install --no-index {wheel}");
    node.debian.run_as("newcomer", &install).printed();
    // The programs of a release are in a folder of their own; the training prints what it likes.
    let observe = format!(
        "cd && PFO_BIN_DIR={PROGRAMS} pfo/bin/python -m pfo_gpu observe --report page.html -- \
         {PROGRAMS}/pfo-sim-trainer launch --stages 2 --microbatches 4 --steps 40 --time-scale 0.3"
    );
    let ran = node.debian.run_as("newcomer", &observe);
    assert_eq!(ran.code, Some(0), "{ran}");
    let page = fs::read_to_string(node.debian.file("/home/newcomer/page.html")).unwrap();
    for words in ["set nothing", "Predicted, without longer steps", "ask the administrator"] {
        assert!(page.contains(words) && ran.stderr.contains(words), "{words}: {ran}\n{page}");
    }
    assert_eq!(node.debian.run("ls --almost-all /tmp | grep pfo-").stdout, "");
    for gpu in 0..node.machine.gpu_count() {
        assert!(node.machine.calls(gpu).is_empty(), "GPU {gpu}");
    }
}
