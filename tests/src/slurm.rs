//! A booted Debian with simulated GPUs, on which Debian's Slurm runs jobs and constrains devices.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::debian::{Debian, PROGRAMS};
use crate::machine::LIBRARY;
use crate::packaged_node::{PackagedNode, here};
use crate::programs;
use crate::ran::Ran;
use crate::wait;

/// Minors of character devices of major 1 that everybody may open for reading and writing and that
/// no job needs: zero, full, random, urandom. The device cgroup decides by these numbers.
const MINORS: [u32; 4] = [5, 7, 8, 9];

/// Slurm looks for an address that is not the loopback's.
const ADDRESS: &str = "10.0.0.1";

const CONFIG: &str = "\
ClusterName=pfo
SlurmctldHost=HOST
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm
SlurmdSpoolDir=/var/spool/slurmd
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
KillWait=2
GresTypes=gpu
NodeName=HOST CPUs=8 CoresPerSocket=8 Gres=gpu:4
PartitionName=all Nodes=ALL Default=YES
";

/// A task of a job step: says which device files it can open, and trains.
const TASK: &str = r#"#!/bin/sh
for gpu in 0 1 2 3; do
    if (exec 3<>/dev/nvidia$gpu) 2>/dev/null; then opens="$opens $gpu"; fi
done
echo "task $SLURM_PROCID opens$opens"
RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec /shared/trainer "$@"
"#;

/// A node of a cluster, and its controller.
pub struct Slurm {
    /// The node.
    pub node: PackagedNode,
}

impl Slurm {
    /// Boots a machine with the packages, alice, who may train, and a Slurm that is idle; or says
    /// why that is skipped.
    #[must_use]
    pub fn boot(debian: Debian) -> Option<Self> {
        let node = PackagedNode::without_driver(debian)?;
        let mut install = format!("ln -s {PROGRAMS}/libnvidia_ml.so /usr/lib/{LIBRARY}");
        for (gpu, minor) in MINORS.iter().enumerate() {
            install += &format!(" && mknod --mode=666 /dev/nvidia{gpu} c 1 {minor}");
        }
        node.debian.run(&install).printed();
        node.install(&["pfod", "libpfo0"]);
        node.add_users();
        node.build_trainer();
        let task = node.debian.shared().join("task");
        fs::write(&task, TASK).unwrap();
        fs::set_permissions(task, fs::Permissions::from_mode(0o755)).unwrap();
        let slurm = Self { node };
        slurm.install();
        slurm.configure("");
        Some(slurm)
    }

    /// Prepares what Slurm's packages leave to administrators.
    fn install(&self) {
        let debian = &self.node.debian;
        let install = format!(
            "ip address add {ADDRESS}/32 dev lo && echo {ADDRESS} $(hostname) >>/etc/hosts && \
             install --directory --owner=slurm /var/lib/slurm && mkdir -p /var/spool/slurmd && \
             echo 'Name=gpu File=/dev/nvidia[0-3]' >/etc/slurm/gres.conf && \
             printf 'CgroupPlugin=cgroup/v2\\nConstrainDevices=yes\\n' >/etc/slurm/cgroup.conf"
        );
        debian.run(&install).printed();
        if !debian.run("cat /proc/1/cgroup").printed().starts_with("0::") {
            let source = programs::source_root().join("tests/src/one_hierarchy.c");
            let library = debian.shared().join("one_hierarchy.so");
            here(Command::new("cc").args(["-shared", "-fPIC"]).arg(source).arg("-o").arg(library));
            let preload = "Environment=LD_PRELOAD=/shared/one_hierarchy.so";
            self.add_to_unit("slurmd", preload);
        }
        debian.run("systemctl start munge").printed();
    }

    /// Adds a line to the `[Service]` of a unit.
    pub fn add_to_unit(&self, unit: &str, line: &str) {
        let directory = format!("/etc/systemd/system/{unit}.service.d");
        let add = format!(
            "mkdir -p {directory} && printf '[Service]\\n{line}\\n' >{directory}/test.conf && \
             systemctl daemon-reload"
        );
        self.node.debian.run(&add).printed();
    }

    /// Builds the SPANK plugin against the headers of this Slurm, and installs what an administrator
    /// copies: the plugin, the prolog and the epilogs.
    pub fn install_extras(&self) {
        let (debian, root) = (&self.node.debian, programs::source_root().join("packaging/slurm"));
        let shared = debian.shared();
        let headers = debian.file("/usr/include");
        let build = shared.join("slurm");
        here(Command::new("cp").arg("--recursive").arg(root).arg(&build));
        here(
            Command::new("make")
                .current_dir(&build)
                .arg("--always-make")
                .arg(format!("CPPFLAGS=-I{}", headers.display())),
        );
        let install = "cd /shared/slurm && install -D -m 644 pfo.so -t /usr/lib/pfo/slurm/ && \
                       echo 'optional /usr/lib/pfo/slurm/pfo.so' >/etc/slurm/plugstack.conf && \
                       install prolog epilog task-epilog /etc/slurm/";
        debian.run(install).printed();
    }

    /// Starts Slurm anew, with these lines in its configuration, and waits until it is idle.
    pub fn configure(&self, lines: &str) {
        let debian = &self.node.debian;
        fs::write(debian.shared().join("slurm.conf"), format!("{CONFIG}{lines}")).unwrap();
        let start = "sed s/HOST/$(hostname)/ /shared/slurm.conf >/etc/slurm/slurm.conf && \
                     systemctl restart slurmctld && systemctl restart slurmd";
        debian.run(start).printed();
        wait::until_is("the node is idle", &"idle\n".to_owned(), || {
            debian.run("sinfo --noheader --format=%T").stdout
        });
    }

    /// Runs a job step of a user to its end.
    pub fn srun(&self, user: &str, step: &str) -> Ran {
        self.node.debian.run_as(user, &format!("srun --quiet {step}"))
    }

    /// The leases that the ranks of a job were given so far: rank and number of the GPU's device file.
    #[must_use]
    pub fn leases(&self, job: &str) -> Vec<(u32, usize)> {
        let machine = &self.node.machine;
        let named = |uuid: &str| (0..MINORS.len()).find(|gpu| machine.uuid(*gpu).as_str() == uuid);
        let minor = |uuid: &str| machine.gpu(named(uuid).unwrap()).minor() as usize;
        let entries = self.node.debian.leases(job);
        let mut leases: Vec<_> = entries
            .iter()
            .map(|entry| {
                let text = |name: &str| entry[name].as_str().unwrap().to_owned();
                (text("PFO_RANK").parse().unwrap(), minor(&text("PFO_GPU_UUID")))
            })
            .collect();
        leases.sort_unstable();
        leases
    }

    /// Waits until the journal has these leases of a job, and no others.
    pub fn assert_leases(&self, job: &str, leases: &[(u32, usize)]) {
        wait::until_is(&format!("leases of {job}"), &leases.to_vec(), || self.leases(job));
    }
}
