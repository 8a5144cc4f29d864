//! What a run of `pfoctl` left behind, and all of it as text for a snapshot.

use std::ffi::OsStr;
use std::fmt;
use std::process::{Child, Command, Output, Stdio};

/// Holds everything that one or more runs printed, with their exit codes, against the snapshot of
/// this test. `make snapshots` writes it anew.
macro_rules! assert_printed {
    ($($ran:expr),+ $(,)?) => {
        insta::assert_snapshot!([$($ran.to_string()),+].join("\n"))
    };
}

/// `pfoctl` with these arguments, whose output nothing around the tests changes.
pub(crate) fn pfoctl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pfoctl"));
    command.args(arguments).stdin(Stdio::null());
    for variable in ["PFO_ADMIN_SOCKET", "PFO_AGENT_SOCKET", "PFO_SOCKET", "COLUMNS"] {
        command.env_remove(variable);
    }
    command
}

/// How `pfoctl` ended.
#[derive(Debug)]
pub(crate) struct Ran {
    arguments: Vec<String>,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        Self::new(command, output)
    }

    /// Waits for the end of what this command started.
    pub(crate) fn ended(command: &Command, child: Child) -> Self {
        Self::new(command, child.wait_with_output().unwrap())
    }

    fn new(command: &Command, output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let argument = |argument: &OsStr| argument.to_str().unwrap().to_owned();
        Self {
            arguments: command.get_args().map(argument).collect(),
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// The JSON on standard output.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("$ pfoctl {}\n", self.arguments.join(" "));
        add_lines(&mut text, &self.stdout);
        if !self.stderr.is_empty() {
            text.push_str("[stderr]\n");
            add_lines(&mut text, &self.stderr);
        }
        match self.code {
            Some(code) => text.push_str(&format!("[exit code {code}]\n")),
            None => text.push_str("[ended by a signal]\n"),
        }
        f.write_str(&with_fixed_paths(&text))
    }
}

fn add_lines(text: &mut String, lines: &str) {
    text.push_str(lines);
    if !lines.is_empty() && !lines.ends_with('\n') {
        text.push_str("[no newline]\n");
    }
}

/// The random part of the names of temporary directories is always the same.
fn with_fixed_paths(text: &str) -> String {
    const RANDOM_CHARACTERS: usize = 6;
    let start = format!("{}/.tmp", std::env::temp_dir().display());
    let mut parts = text.split(start.as_str());
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "/tmp/test" + &part[RANDOM_CHARACTERS..])
}
