//! `pfoctl` as somebody runs it.

use std::process::{Child, Command, Stdio};

use crate::identity::Identity;
use crate::node::Node;
use crate::programs;
use crate::ran::Ran;

impl Node {
    /// Begins to run `pfoctl`.
    #[must_use]
    pub fn begin_pfoctl(&self, user: &Identity, arguments: &[&str]) -> Child {
        let mut command = Command::new(programs::program_for_all("pfoctl", self.directory()));
        command
            .args(arguments)
            .env("PFO_SOCKET", self.socket())
            .env("PFO_ADMIN_SOCKET", self.admin_socket())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        user.assume(&mut command).spawn().unwrap()
    }

    /// Runs `pfoctl`.
    #[must_use]
    pub fn pfoctl(&self, user: &Identity, arguments: &[&str]) -> Ran {
        let command = Some(format!("pfoctl {}", arguments.join(" ")));
        let output = self.begin_pfoctl(user, arguments).wait_with_output().unwrap();
        Ran { command, ..output.into() }
    }

    /// Writes a plan to a file that everybody may read; returns its path.
    #[must_use]
    pub fn plan_file(&self, name: &str, plan: &[u8]) -> String {
        let path = self.directory().join(name);
        std::fs::write(&path, plan).unwrap();
        path.display().to_string()
    }
}
