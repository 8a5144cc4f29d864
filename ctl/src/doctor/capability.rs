//! Whether the running `pfod` has the capability that the driver asks for on every call.

use pfo_protocol::Pid;

use super::finding::Finding;
use super::root::Root;

const CHECK: &str = "capability";

/// `CAP_SYS_ADMIN` of linux/capability.h.
const SYS_ADMIN: u64 = 1 << 21;

/// Looks at a process.
pub(crate) fn check(root: &Root, pid: Pid) -> Finding {
    let path = format!("/proc/{pid}/status");
    let Some(effective) = root.read(&path).ok().and_then(|status| effective(&status)) else {
        let message = format!("{path} does not say which capabilities pfod has");
        return Finding::unknown(CHECK, message, "run as root");
    };
    if effective & SYS_ADMIN != 0 {
        return Finding::ok(CHECK, format!("pfod (process {pid}) has CAP_SYS_ADMIN"));
    }
    Finding::wrong(
        CHECK,
        format!(
            "pfod (process {pid}) has no CAP_SYS_ADMIN: the driver refuses every change of a clock"
        ),
        "run pfod as root, with CAP_SYS_ADMIN in CapabilityBoundingSet=",
    )
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn the_capability_is_read_from_the_process_itself() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path().to_owned());
        assert_eq!(check(&root, Pid(7)).level, Level::Unknown);
        std::fs::create_dir_all(root.path("/proc/7")).unwrap();
        for (mask, level) in [
            ("0000000000200000", Level::Ok),
            ("000001ffffffffff", Level::Ok),
            ("000001ffffdfffff", Level::Wrong),
            ("0000000000000000", Level::Wrong),
            ("x", Level::Unknown),
        ] {
            let status = format!("Name:\tpfod\nCapPrm:\t0000000000200000\nCapEff:\t{mask}\n");
            std::fs::write(root.path("/proc/7/status"), status).unwrap();
            assert_eq!(check(&root, Pid(7)).level, level, "{mask}");
        }
    }
}
