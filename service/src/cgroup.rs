//! The control groups of a process: where the service manager or a scheduler put it.

use std::fs;

use pfo_vocabulary::Pid;

/// The paths of a process's control groups, each once; the root is left out. A process that has
/// ended has none.
pub(crate) fn cgroups_of(pid: Pid) -> Vec<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .map_or_else(|_| Vec::new(), |text| parse(&text))
}

/// The paths in a file like `/proc/PID/cgroup`, of every hierarchy: cgroups(7).
fn parse(text: &str) -> Vec<String> {
    let path = |line: &str| Some(line.splitn(3, ':').nth(2)?.to_owned());
    let mut paths: Vec<_> = text.lines().filter_map(path).filter(|path| path != "/").collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_of_both_versions_are_read_and_colons_are_part_of_them() {
        assert_eq!(parse("0::/system.slice/a:b.service\n"), ["/system.slice/a:b.service"]);
        let hybrid = "4:devices:/slurm/uid_7/job_1\n1:name=systemd:/a\n3:cpu,cpuacct:/a\n0::/\n";
        assert_eq!(parse(hybrid), ["/a", "/slurm/uid_7/job_1"]);
        assert!(parse("").is_empty() && parse("nonsense").is_empty());
    }

    #[test]
    fn a_process_that_has_ended_is_in_none() {
        assert!(cgroups_of(Pid(u32::MAX)).is_empty());
    }
}
