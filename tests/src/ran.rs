//! What a command that has ended led to.

use std::process::Output;

use serde_json::Value;

/// What a run of a command led to.
#[derive(Debug)]
pub struct Ran {
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
        Self { code: output.status.code(), stdout, stderr }
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
}

/// The plan that a report of `pfoctl tune --json` says is kept.
pub fn kept_plan(report: &Value) -> &Value {
    let tried = report["tried"].as_array().into_iter().flatten();
    let mut kept = tried.filter(|tried| tried["verdict"] == "kept");
    kept.next().unwrap_or_else(|| panic!("no plan is kept: {report}"))
}
