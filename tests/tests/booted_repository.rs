//! The repository that `make repository` makes, as apt and dnf of a booted Debian see it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pfo_tests::{Debian, PackagedNode, programs};

/// Makes the repository of the built packages, signed with a key of its own, where a machine reads it.
fn serve(node: &PackagedNode) -> PathBuf {
    let keys = node.debian.shared().join("gnupg");
    fs::create_dir(&keys).unwrap();
    let user = "pfo tests <pfo@example.org>";
    let here = |command: &mut Command| {
        let ran = command.env("GNUPGHOME", &keys).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    };
    here(Command::new("gpg").args(["--batch", "--passphrase", "", "--quick-generate-key", user]));
    let root = programs::source_root();
    let served = node.debian.shared().join("repository");
    let mut make = Command::new(root.join("scripts/package-repository"));
    here(make.arg("pfo@example.org").arg(&served));
    here(Command::new("gpgconf").args(["--kill", "all"]));
    served
}

/// Has apt know it, as `docs/repository.md` says, and nothing else.
fn know(node: &PackagedNode) {
    let source = "Types: deb\nURIs: file:/shared/repository/apt\nSuites: stable\nComponents: main\n\
                  Signed-By: /etc/apt/keyrings/pfo.asc\n";
    fs::write(node.debian.shared().join("pfo.sources"), source).unwrap();
    node.debian
        .run(
            "rm -f /etc/apt/sources.list && install -d /etc/apt/keyrings \
             && cp /shared/repository/pfo.asc /etc/apt/keyrings/ \
             && cp /shared/pfo.sources /etc/apt/sources.list.d/",
        )
        .printed();
}

fn append(file: &Path, text: &str) {
    let mut content = fs::read(file).unwrap();
    content.extend_from_slice(text.as_bytes());
    fs::write(file, content).unwrap();
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn apt_installs_from_it_and_refuses_what_was_changed_after_it_was_signed() {
    let Some(node) = PackagedNode::boot(Debian::Trixie) else { return };
    let served = serve(&node);
    know(&node);
    node.debian.run("apt-get update").printed();
    node.debian.run("apt-get install --yes pfod libpfo0").printed();
    node.add_users();
    node.assert_serves();

    append(&served.join("apt/dists/stable/main/binary-amd64/Packages"), "\nPackage: worse\n");
    fs::remove_file(served.join("apt/dists/stable/main/binary-amd64/Packages.xz")).unwrap();
    fs::remove_dir_all(served.join("apt/dists/stable/main/binary-amd64/by-hash")).unwrap();
    node.debian.run("rm -rf /var/lib/apt/lists").printed();
    let changed = node.debian.run("apt-get update");
    assert!(changed.code != Some(0) && changed.stderr.contains("Hash Sum mismatch"), "{changed:?}");

    let release = served.join("apt/dists/stable/InRelease");
    let signed = fs::read_to_string(&release).unwrap();
    fs::write(&release, signed.replacen("Label: pfo", "Label: pfx", 1)).unwrap();
    fs::remove_file(served.join("apt/dists/stable/Release.gpg")).unwrap();
    node.debian.run("rm -rf /var/lib/apt/lists").printed();
    let forged = node.debian.run("apt-get update");
    assert!(forged.code != Some(0) && forged.stderr.contains("not signed"), "{forged:?}");
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn dnf_reads_it_and_refuses_one_that_was_changed_after_it_was_signed() {
    let Some(node) = PackagedNode::boot(Debian::Bookworm) else { return };
    let served = serve(&node);
    let repository = "[pfo]\nname=pfo\nbaseurl=file:///shared/repository/rpm\n\
                      gpgkey=file:///shared/repository/pfo.asc\ngpgcheck=1\nrepo_gpgcheck=1\n";
    fs::write(node.debian.shared().join("pfo.repo"), repository).unwrap();
    let ask = "install -D /shared/pfo.repo /etc/yum.repos.d/pfo.repo && rm -rf /var/cache/dnf \
               && dnf --assumeyes --quiet --repo=pfo list --available";
    let listed = node.debian.run(ask).printed();
    assert!(listed.contains("pfod") && listed.contains("libpfo0"), "{listed}");
    let check =
        "rpm --import /shared/repository/pfo.asc && rpm --checksig /shared/repository/rpm/*.rpm";
    let checked = node.debian.run(check).printed();
    assert!(checked.lines().all(|line| line.ends_with("digests signatures OK")), "{checked}");

    append(&served.join("rpm/repodata/repomd.xml"), "<!-- worse -->");
    let changed = node.debian.run(ask);
    // dnf leaves out a repository that it does not believe, and may end well all the same.
    assert!(!changed.stdout.contains("pfod"), "{changed:?}");
}
