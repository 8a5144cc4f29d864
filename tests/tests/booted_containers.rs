//! `docs/containers.md`, followed to the letter: its commands with Debian's Podman, with root and without.

use std::fs;
use std::process::Command;

use pfo_tests::{Container, Debian, Ran, programs, wait};
use serde_json::Value;

const GPUS: usize = 4;

/// Minors of character devices of major 1 that everybody may open and nobody needs: zero, full,
/// random, urandom.
const MINORS: [u32; GPUS] = [5, 7, 8, 9];

/// What systemd-nspawn and the old cgroups of this machine ask of Podman, and no node does.
const NESTED: &str = "\
[containers]
keyring = false
cgroups = \"disabled\"
netns = \"host\"
default_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]
[engine]
cgroup_manager = \"cgroupfs\"
";

const STORAGE: &str = "\
[storage]
driver = \"vfs\"
graphroot = \"/var/lib/containers/storage\"
runroot = \"/run/containers/storage\"
";

/// An image with a shell, the trainer and libpfo, made without a registry.
const IMAGE: &str = "\
set -e
cd $(mktemp -d)
mkdir -p usr/bin usr/lib64 usr/lib/x86_64-linux-gnu usr/local/bin etc tmp run proc sys dev
ln -s usr/bin bin && ln -s usr/lib lib && ln -s usr/lib64 lib64
cp /bin/sh usr/bin/
cp /usr/bin/sleep /usr/bin/cat usr/bin/
cp --dereference /lib64/ld-linux-x86-64.so.2 usr/lib64/
cp --dereference /usr/lib/x86_64-linux-gnu/lib[cm].so.6 usr/lib/x86_64-linux-gnu/
cp --dereference /usr/lib/x86_64-linux-gnu/libgcc_s.so.1 usr/lib/x86_64-linux-gnu/
cp /shared/libpfo.so.0 usr/lib/x86_64-linux-gnu/
cp /shared/train usr/local/bin/
chmod 755 .
tar --create --owner=0 --group=0 . >/shared/image.tar
chmod 644 /shared/image.tar";

/// A node with Podman, pfo, and alice, who may train.
struct Node {
    debian: Container,
    gpus: Vec<String>,
}

impl Node {
    fn boot() -> Option<Self> {
        let debian = Container::boot(Debian::TrixieWithPodman)?;
        debian.install_pfo("4xA40");
        let gpus = debian.simulated_gpus();
        let mut devices = Vec::new();
        for (gpu, minor) in gpus.iter().zip(MINORS) {
            let device = format!("/dev/nvidia{}", gpu["minor"]);
            let make = format!("rm --force {device} && mknod --mode=666 {device} c 1 {minor}");
            debian.run(&make).printed();
            devices.push(serde_json::json!({
                "name": gpu["uuid"],
                "containerEdits": {"deviceNodes": [{"path": device}]},
            }));
        }
        let gpus: Vec<_> =
            gpus.iter().map(|gpu| gpu["uuid"].as_str().unwrap().to_owned()).collect();
        // As nvidia-ctk writes it.
        let specification = serde_json::json!({
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": devices,
            "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
        });
        let shared = debian.shared();
        fs::write(shared.join("nvidia.json"), specification.to_string()).unwrap();
        fs::write(shared.join("containers.conf"), NESTED).unwrap();
        fs::write(shared.join("storage.conf"), STORAGE).unwrap();
        build_trainer(&debian);
        debian
            .run(
                "useradd --create-home --groups pfo alice
                 # As on any machine: containers of users may mount their own.
                 mkdir /mnt/proc /mnt/sys && mount -t proc proc /mnt/proc
                 mount -t sysfs sysfs /mnt/sys
                 install -D -m 644 /shared/nvidia.json -t /etc/cdi/
                 install -D -m 644 /shared/containers.conf /shared/storage.conf -t /etc/containers/
                 printf '#!/bin/sh\\nexec \"$@\"\\n' >/usr/bin/sudo && chmod 755 /usr/bin/sudo
                 install --directory --owner=alice --mode=700 /tmp/alice",
            )
            .printed();
        debian.run(IMAGE).printed();
        let node = Self { debian, gpus };
        for user in ["alice", "root"] {
            node.follow(user, "podman import /shared/image.tar trainer").printed();
        }
        Some(node)
    }

    /// Runs a command of the page as a user, on the first GPU.
    fn follow(&self, user: &str, command: &str) -> Ran {
        self.debian.run_as(user, &self.script(user, command))
    }

    fn script(&self, user: &str, command: &str) -> String {
        let home = if user == "root" { "/root" } else { "/home/alice" };
        let [gpu, other, ..] = self.gpus.as_slice() else { panic!("{GPUS} GPUs") };
        format!(
            "export HOME={home} XDG_RUNTIME_DIR=/tmp/{user} IMAGE=trainer GPU={gpu} \
             OTHER_GPU={other}\nmkdir -p /tmp/{user}; cd /\n{command}"
        )
    }

    /// Runs a command of the page in a unit of its own, and waits until its job has a lease.
    fn start(&self, user: &str, job: &str, command: &str) {
        let script = format!("{job}.sh");
        fs::write(self.debian.shared().join(&script), self.script(user, command)).unwrap();
        // What Podman leaves behind for its user's next container must not be killed.
        self.debian
            .run(&format!(
                "systemd-run --quiet --unit=in-{job} --uid={user} --property=KillMode=process \
                 /bin/sh /shared/{script}"
            ))
            .printed();
        wait::until_ok("it trains", || match self.leases(job).len() {
            0 => Err(self.debian.journal(&format!("--unit=in-{job} --output=cat"))),
            _ => Ok(()),
        });
    }

    /// The users and GPUs of the leases that a job was given so far.
    fn leases(&self, job: &str) -> Vec<(String, String)> {
        let text = |entry: &Value, name: &str| entry[name].as_str().unwrap().to_owned();
        let entries = self.debian.leases(job);
        entries.iter().map(|entry| (text(entry, "PFO_UID"), text(entry, "PFO_GPU_UUID"))).collect()
    }

    /// Checks that a container trained with a lease of its GPU, in the name of this uid.
    fn assert_leased(&self, ran: &Ran, job: &str, uid: &str) {
        assert!(ran.stdout.contains("\"connected\": true"), "{ran:?}");
        // Podman warns that there is no session of systemd.
        assert!(ran.code == Some(0) && !ran.stderr.contains("default clocks"), "{ran:?}");
        let lease = (uid.to_owned(), self.gpus[0].clone());
        wait::until_is(&format!("leases of {job}"), &vec![lease], || self.leases(job));
    }

    fn uid(&self, user: &str) -> String {
        self.debian.run(&format!("id --user {user}")).printed().trim().to_owned()
    }
}

/// Builds the example trainer and libpfo into the directory that is `/shared` inside.
fn build_trainer(debian: &Container) {
    let root = programs::source_root();
    let (shared, library) = (debian.shared(), debian.shared().join("libpfo.so.0"));
    fs::copy(programs::directory().join("libpfo.so"), &library).unwrap();
    let ran: Ran = Command::new("cc")
        .arg(root.join("shim/examples/c/trainer.c"))
        .arg("-I")
        .arg(root.join("shim/include"))
        .arg(&library)
        .arg("-o")
        .arg(shared.join("train"))
        .output()
        .unwrap()
        .into();
    ran.printed();
}

/// The commands of the page, in their order.
fn commands() -> Vec<String> {
    let page = fs::read_to_string(programs::source_root().join("docs/containers.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn the_page_about_containers_works_when_it_is_followed() {
    let [rootless, keep_id, as_root, greedy, directory] = commands().try_into().unwrap();
    let Some(node) = Node::boot() else { return };
    let alice = node.uid("alice");

    node.assert_leased(&node.follow("alice", &rootless), "llama", &alice);
    // The page says that the GPU need not be named.
    let unnamed = rootless.replace(" --env \"PFO_GPU=$GPU\"", "").replace("=llama", "=unnamed");
    node.assert_leased(&node.follow("alice", &unnamed), "unnamed", &alice);

    let keep_id = keep_id.replace("--userns", "--user 1234 --userns");
    let without = keep_id.replace(" --userns keep-id", "").replace("=llama-", "=sub-");
    let ran = node.follow("alice", &without);
    assert!(ran.stdout.contains("\"connected\": true"), "{ran:?}");
    let (sub, _) = node.leases("sub-unprivileged").remove(0);
    let range = node.debian.run("grep alice: /etc/subuid | cut -d: -f2").printed();
    let first: u32 = range.trim().parse().unwrap();
    assert_eq!(sub.parse::<u32>().unwrap(), first + 1234 - 1);
    let as_image_user = keep_id.replace("--user 1234 ", "");
    node.assert_leased(&node.follow("alice", &as_image_user), "llama-unprivileged", &alice);

    node.assert_leased(&node.follow("root", &as_root), "llama-of-root", &alice);
    let anonymous = as_root.lines().filter(|line| !line.contains("--group-add"));
    let anonymous: Vec<_> = anonymous.collect();
    let anonymous = anonymous.join("\n").replace("llama-of-root", "nobodys");
    let anonymous = anonymous.replace("--user \"$(id -u alice):$(id -g alice)\" ", "");
    node.assert_leased(&node.follow("root", &anonymous), "nobodys", "0");

    // What does not work says so, and trains.
    let ran = node.follow("alice", &greedy);
    assert!(ran.stdout.contains("\"connected\": false"), "{ran:?}");
    assert!(ran.stderr.contains("device file"), "{ran:?}");
    let ran = node.follow("alice", &rootless.replace("--group-add keep-groups", ""));
    assert!(ran.stdout.contains("\"connected\": false"), "{ran:?}");
    assert!(ran.stderr.contains("/run/pfo/pfod.sock"), "{ran:?}");
    assert!(ran.stderr.contains("--group-add keep-groups"), "{ran:?}");

    // A new socket is seen through the directory, and not through the former one's mount.
    let file = rootless.replace("=llama", "=llama-file").replace("$GPU", "$OTHER_GPU");
    let jobs = [(file, "llama-file"), (directory, "llama-directory")];
    for (command, job) in &jobs {
        node.start("alice", job, &command.replace(" train", " train 100000"));
    }
    node.debian
        .run("systemctl stop pfod.service pfod.socket && systemctl start pfod.socket pfod.service")
        .printed();
    wait::until_is("it trains again", &2, || node.leases("llama-directory").len());
    assert_eq!(node.leases("llama-file").len(), 1);
    node.follow("alice", "podman kill --all").printed();
    wait::until_is("nobody trains", &0.into(), || {
        node.debian.pfo_status()["daemon"]["sessions"].clone()
    });
}
