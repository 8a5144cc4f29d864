//! The rpm packages, installed, upgraded and erased where there is an rpm and a booted systemd. Debian's
//! rpm expands no macros of Fedora's and runs no triggers of its systemd: the scriptlets need neither.

use std::process::Command;

use pfo_tests::{Debian, PackagedNode, UNIT_COUNT, UNITS, on_both_debians, programs};

on_both_debians! {
    a_fresh_install_is_as_packaged_and_serves_members_of_its_groups
    a_preset_of_the_site_decides_whether_pfo_runs
    an_upgrade_restarts_the_daemon_and_nothing_else_changes
    erasing_during_training_frees_every_clock_and_leaves_the_groups
    a_trainer_built_against_libpfo_devel_trains_with_libpfo0
}

fn a_fresh_install_is_as_packaged_and_serves_members_of_its_groups(debian: Debian) {
    let Some(node) = PackagedNode::boot(debian) else { return };
    node.install_rpms(&["pfod"]);
    node.add_users();
    node.assert_serves();
    // Owners, modes and contents.
    assert_eq!(node.debian.run("rpm --verify --nodeps pfod").printed(), "");
}

fn a_preset_of_the_site_decides_whether_pfo_runs(debian: Debian) {
    let Some(node) = PackagedNode::boot(debian) else { return };
    let preset = "mkdir --parents /etc/systemd/system-preset && \
                  echo 'disable pfo*' >/etc/systemd/system-preset/10-site.preset";
    node.debian.run(preset).printed();
    node.install_rpms(&["pfod"]);
    let units = node.debian.run(&format!("systemctl is-active {UNITS}")).stdout;
    assert_eq!(units, "inactive\n".repeat(UNIT_COUNT));
}

fn an_upgrade_restarts_the_daemon_and_nothing_else_changes(debian: Debian) {
    let Some(node) = PackagedNode::boot(debian) else { return };
    node.install_rpms(&["pfod"]);
    node.add_users();
    node.debian.run("echo '# mine' >>/etc/pfo/pfod.toml").printed();
    node.debian.run("systemctl disable --now pfod-admin.socket; systemctl restart pfod.service");
    node.train("training", "alice");
    let (before, daemon) = (node.lasting(), node.daemon());

    let next = node.debian.shared().join("next.rpm");
    let mut package = Command::new("cargo");
    package
        .current_dir(programs::source_root())
        .args(["generate-rpm", "--package=daemon", "--set-metadata=release = \"2\""])
        .arg("--metadata-overwrite=packaging/rpm/pfod.toml")
        .arg("--output")
        .arg(&next);
    assert!(package.status().unwrap().success());
    node.rpm("--upgrade /shared/next.rpm").printed();
    assert_eq!(node.lasting(), before);
    assert_ne!(node.daemon(), daemon, "the old daemon runs on");
    node.until_locked();
    node.debian.run("systemctl stop training").printed();
    node.assert_nothing_locked();
}

fn erasing_during_training_frees_every_clock_and_leaves_the_groups(debian: Debian) {
    let Some(node) = PackagedNode::boot(debian) else { return };
    node.install_rpms(&["pfod"]);
    node.train("training", "root");
    node.rpm("--erase pfod").printed();
    node.assert_nothing_locked();
    assert_eq!(node.debian.run("systemctl is-active training").printed(), "active\n");
    let left = node.debian.run(
        "find / -xdev -path /sys -prune -o -path /proc -prune -o -path /opt -prune -o \
         -name '*pfo*' -print; find /run -name 'pfo*'",
    );
    // What was measured stays: the ledger of savings.
    assert_eq!(left.stdout, "/var/lib/pfo-agent\n");
    assert_eq!(node.debian.run("ls /var/lib/pfo-agent").printed(), "ledger\n");
    assert_eq!(
        node.debian.run("getent group pfo pfo-admin pfo-agent").printed().lines().count(),
        3
    );
}

fn a_trainer_built_against_libpfo_devel_trains_with_libpfo0(debian: Debian) {
    let Some(node) = PackagedNode::boot(debian) else { return };
    node.install_rpms(&["pfod", "libpfo0", "libpfo-devel"]);
    let inside = |path| node.debian.file(path).display().to_string();
    let built = Command::new("cc")
        .arg(programs::source_root().join("shim/examples/c/trainer.c"))
        .arg(format!("-I{}", inside("/usr/include")))
        .arg(format!("-L{}", inside("/usr/lib64")))
        .args(["-lpfo", "-o"])
        .arg(node.debian.shared().join("trainer"))
        .status();
    assert!(built.unwrap().success());
    // Debian's libraries are elsewhere, so that its dynamic linker needs the path.
    let said = node.train_in_c("root", "LD_LIBRARY_PATH=/usr/lib64");
    assert_eq!((&said.json()["problem"], &said.json()["connected"]), (&0.into(), &true.into()));
}
