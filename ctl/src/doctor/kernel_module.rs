//! The kernel's half of the driver, and the device nodes through which its library reaches it.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;

use super::finding::Finding;
use super::root::Root;

const CHECK: &str = "kernel-module";
const NODES: &str = "device-nodes";

const VERSION: &str = "/proc/driver/nvidia/version";
const CONTROL: &str = "/dev/nvidiactl";

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
    // A GPU has one for its minor number, from 0 on.
    for node in [CONTROL, "/dev/nvidia0"] {
        match root.metadata(node) {
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

#[cfg(test)]
mod tests {
    use std::fs;
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
    }
}
