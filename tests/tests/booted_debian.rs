//! The container that other tests rely on, and pfo does not.

use std::fs;

use pfo_tests::{Container, Debian};

fn a_container_is_a_machine_of_its_own(debian: Debian, version: &str) {
    let Some(debian) = Container::boot(debian) else { return };
    assert_eq!(debian.run("systemctl is-system-running").printed(), "running\n");
    assert!(debian.run("cat /etc/debian_version").printed().starts_with(version));

    debian.run("useradd --groups games alice").printed();
    assert_eq!(debian.run_as("alice", "id --groups --name").printed(), "alice games\n");
    let failed = debian.run("echo why >&2; exit 7");
    assert_eq!((failed.code, failed.stderr.as_str()), (Some(7), "why\n"));

    fs::write(debian.shared().join("inwards"), "to it").unwrap();
    assert_eq!(debian.run_as("alice", "cat /shared/inwards").printed(), "to it");
    debian.run("echo from it > /root/outwards").printed();
    assert_eq!(fs::read_to_string(debian.file("/root/outwards")).unwrap(), "from it\n");

    debian.run("echo noted | systemd-cat --identifier=test").printed();
    assert!(debian.journal("--identifier=test").contains("noted"));
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn a_container_is_a_debian_12_of_its_own() {
    a_container_is_a_machine_of_its_own(Debian::Bookworm, "12");
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn a_container_is_a_debian_13_of_its_own() {
    a_container_is_a_machine_of_its_own(Debian::Trixie, "13");
}
