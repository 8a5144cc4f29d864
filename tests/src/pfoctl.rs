//! `pfoctl` as somebody runs it.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::identity::Identity;
use crate::node::Node;
use crate::programs;

/// What a run of `pfoctl` led to.
#[derive(Debug)]
pub struct Ran {
    /// The exit code.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

impl Ran {
    /// What it printed, as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Waits for a run that was begun.
    #[must_use]
    pub fn of(child: Child) -> Self {
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Self { code: output.status.code(), stdout, stderr }
    }
}

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
        Ran::of(self.begin_pfoctl(user, arguments))
    }

    /// Writes a plan to a file that everybody may read; returns its path.
    #[must_use]
    pub fn plan_file(&self, name: &str, plan: &[u8]) -> String {
        let path = self.directory().join(name);
        std::fs::write(&path, plan).unwrap();
        path.display().to_string()
    }
}
