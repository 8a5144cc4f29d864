//! What a command that has ended led to.

use std::fmt;
use std::process::Output;

use serde_json::Value;

/// What a run of a command led to.
#[derive(Debug)]
pub struct Ran {
    /// The command and its arguments, if they are known.
    pub command: Option<String>,
    /// The exit code.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Self { command: None, code: output.status.code(), stdout, stderr }
    }
}

impl Ran {
    /// What it printed, as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// What it printed. Fails the test if it did not end well.
    pub fn printed(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// The report of `pfoctl tune --json`. Fails the test if the exit code says something else than the report.
    #[must_use]
    pub fn tune_report(&self) -> Value {
        let report = self.json();
        let code = match kept(&report).map(|kept| kept["certain"] == true) {
            None => 5,
            Some(true) => 0,
            Some(false) => 6,
        };
        assert_eq!(self.code, Some(code), "{self:?}");
        report
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(command) = &self.command {
            writeln!(f, "$ {command}")?;
        }
        write_lines(f, &self.stdout)?;
        if !self.stderr.is_empty() {
            writeln!(f, "[stderr]")?;
            write_lines(f, &self.stderr)?;
        }
        match self.code {
            Some(code) => writeln!(f, "[exit code {code}]"),
            None => writeln!(f, "[ended by a signal]"),
        }
    }
}

fn write_lines(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    match text.is_empty() || text.ends_with('\n') {
        true => write!(f, "{text}"),
        false => writeln!(f, "{text}\n[no newline]"),
    }
}

fn kept(report: &Value) -> Option<&Value> {
    report["tried"].as_array().into_iter().flatten().find(|tried| tried["verdict"] == "kept")
}

/// The plan that a report of `pfoctl tune --json` says is kept.
pub fn kept_plan(report: &Value) -> &Value {
    kept(report).unwrap_or_else(|| panic!("no plan is kept: {report}"))
}
