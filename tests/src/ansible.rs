//! Ansible over SSH against a booted Debian, as an administrator runs it.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::container::Container;
use crate::programs;
use crate::ran::Ran;

/// A machine that Ansible reaches as root.
pub struct AnsibleHost<'a> {
    debian: &'a Container,
}

impl<'a> AnsibleHost<'a> {
    /// Lets root in with a key of its own.
    #[must_use]
    pub fn new(debian: &'a Container) -> Self {
        let key = debian.shared().join("key");
        let mut generate = Command::new("ssh-keygen");
        let made = generate.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
        assert!(made.unwrap().success());
        debian
            .run(
                "install -d -m 700 /root/.ssh && cp /shared/key.pub /root/.ssh/authorized_keys \
                 && install -d -m 755 /run/sshd",
            )
            .printed();
        Self { debian }
    }

    /// Runs the playbook of the source tree with these variables.
    pub fn play(&self, variables: &Value) -> Ran {
        let shared = self.debian.shared();
        let leader = self.debian.outside(1).expect("number 1 runs");
        // The container has no network: sshd speaks over the standard input and output of ssh.
        let reach = format!(
            "-i {} -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
             -o ProxyCommand='nsenter --target {leader} --all /usr/sbin/sshd -i'",
            shared.join("key").display(),
        );
        let inventory = serde_json::json!({"gpu_nodes": {"hosts": {"node": {
            "ansible_user": "root",
            "ansible_ssh_common_args": reach,
            "ansible_python_interpreter": "/usr/bin/python3",
        }}}});
        let file = |name: &str, value: &Value| {
            let path = shared.join(name);
            fs::write(&path, value.to_string()).unwrap();
            path
        };
        let root = programs::source_root();
        let playbook = root.join("packaging/ansible/nodes.yml");
        let mut command = Command::new(root.join(".venv/bin/ansible-playbook"));
        command
            .arg("--inventory")
            .arg(file("inventory.yml", &inventory))
            .arg("--extra-vars")
            .arg(format!("@{}", file("site.json", variables).display()))
            .arg(&playbook)
            .env("ANSIBLE_HOME", shared.join("ansible"))
            .env("ANSIBLE_NOCOLOR", "1")
            .env("ANSIBLE_SSH_ARGS", "-o ControlMaster=no")
            .current_dir(Path::new("/"));
        command.output().unwrap().into()
    }
}

/// How many tasks changed something, by the last line of what `ansible-playbook` printed.
///
/// # Panics
///
/// If it printed no such line.
#[must_use]
pub fn changed(ran: &Ran) -> u32 {
    let count = |line: &str| {
        let counted = line.split_whitespace().find_map(|word| word.strip_prefix("changed="));
        counted?.parse().ok()
    };
    let counted = ran.stdout.lines().rev().find_map(count);
    counted.unwrap_or_else(|| panic!("no recap in {ran:?}"))
}
