//! The kernel's half of the driver, and the device nodes through which its library reaches it.

use std::fs::{self, DirEntry};
use std::io::ErrorKind;
use std::iter;
use std::os::unix::fs::FileTypeExt;

use super::finding::Finding;
use super::root::Root;

const CHECK: &str = "kernel-module";
const NODES: &str = "device-nodes";

const VERSION: &str = "/proc/driver/nvidia/version";
const CONTROL: &str = "/dev/nvidiactl";
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Looks for the module and its nodes.
pub(crate) fn check(root: &Root) -> Vec<Finding> {
    let Ok(version) = root.read(VERSION) else {
        return vec![Finding::wrong(
            CHECK,
            format!("the module nvidia is not loaded: there is no {VERSION}"),
            "`modprobe nvidia`; if that fails, install the driver and see `dmesg`",
        )];
    };
    let version = version.lines().next().unwrap_or_default();
    let version = version.strip_prefix("NVRM version:").unwrap_or(version).trim();
    vec![Finding::ok(CHECK, version), nodes(root)]
}

fn nodes(root: &Root) -> Finding {
    let remedy = "`nvidia-modprobe -c 0`, or `systemctl enable --now nvidia-persistenced`, makes \
                  them at each start";
    let gpus = minors(root).into_iter().map(|minor| format!("/dev/nvidia{minor}"));
    for node in iter::once(CONTROL.to_owned()).chain(gpus) {
        match root.metadata(&node) {
            Ok(found) if found.file_type().is_char_device() => {}
            Ok(_) => {
                let message = format!("{node} is no device node");
                return Finding::wrong(NODES, message, format!("remove it; {remedy}"));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Finding::wrong(NODES, format!("there is no {node}"), remedy);
            }
            Err(error) => {
                return Finding::unknown(NODES, format!("{node}: {error}"), "run as root");
            }
        }
    }
    Finding::ok(NODES, format!("{CONTROL} and the nodes of GPUs are there"))
}

/// The minor numbers of the GPUs' nodes.
fn minors(root: &Root) -> Vec<u32> {
    let minor = |gpu: DirEntry| {
        let facts = fs::read_to_string(gpu.path().join("information")).ok()?;
        let line = facts.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
        line.trim().parse().ok()
    };
    let gpus = fs::read_dir(root.path(GPUS)).into_iter().flatten().flatten();
    let mut minors: Vec<_> = gpus.filter_map(minor).collect();
    minors.sort_unstable();
    // Where the module tells nothing of them, the first one has this number.
    if minors.is_empty() { vec![0] } else { minors }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::finding::Level;
    use super::*;

    fn summary(findings: &[Finding]) -> Vec<(&'static str, Level)> {
        findings.iter().map(|finding| (finding.check, finding.level)).collect()
    }

    #[test]
    fn a_missing_module_a_missing_node_and_a_file_in_its_place_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path().to_owned());
        assert_eq!(summary(&check(&root)), [(CHECK, Level::Wrong)]);

        fs::create_dir_all(root.path("/proc/driver/nvidia")).unwrap();
        fs::create_dir(root.path("/dev")).unwrap();
        fs::write(root.path(VERSION), "NVRM version: NVIDIA 570.1\nGCC version: x\n").unwrap();
        let findings = check(&root);
        assert_eq!(summary(&findings), [(CHECK, Level::Ok), (NODES, Level::Wrong)]);
        assert_eq!(findings[0].message, "NVIDIA 570.1");
        assert_eq!(findings[1].message, "there is no /dev/nvidiactl");

        fs::write(root.path(CONTROL), "").unwrap();
        assert_eq!(check(&root)[1].message, "/dev/nvidiactl is no device node");

        fs::remove_file(root.path(CONTROL)).unwrap();
        for node in [CONTROL, "/dev/nvidia0"] {
            symlink("/dev/null", root.path(node)).unwrap();
        }
        assert_eq!(summary(&check(&root)), [(CHECK, Level::Ok), (NODES, Level::Ok)]);

        for (bus, minor) in [("0000:07:00.0", 0), ("0000:0a:00.0", 3)] {
            let gpu = root.path(GPUS).join(bus);
            fs::create_dir_all(&gpu).unwrap();
            let facts = format!("Model: \t\t NVIDIA A40\nDevice Minor: \t {minor}\n");
            fs::write(gpu.join("information"), facts).unwrap();
        }
        assert_eq!(check(&root)[1].message, "there is no /dev/nvidia3");
        assert!(check(&root)[1].remedy.as_ref().unwrap().contains("nvidia-modprobe"));
    }
}
