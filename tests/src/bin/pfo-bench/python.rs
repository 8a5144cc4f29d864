//! A Python that measures, by a script of ours.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use pfo_tests::programs;

use crate::Result;

/// The environment that `scripts/setup --bench` installs the package into, as a user would.
const PYTHON: &str = "target/python/bin/python";
const SCRIPT: &str = "tests/bench/run_python.py";

/// A running script, which runs line by line, and ends with its standard input when this is dropped.
pub(crate) struct Python {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// What to start it with; none, and a reason, where the package is not installed.
pub(crate) fn command() -> std::result::Result<Command, &'static str> {
    let root = programs::source_root();
    if !root.join(PYTHON).exists() {
        return Err("What Python costs was not measured: `make bench` installs the package for it");
    }
    let mut command = Command::new(root.join(PYTHON));
    command.arg(root.join(SCRIPT));
    Ok(command)
}

impl Python {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let to = process.stdin.take().ok_or("it has no standard input")?;
        let from = process.stdout.take().ok_or("it has no standard output")?;
        Ok(Self { process, to, from: BufReader::new(from) })
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        if line.is_empty() {
            return Err(format!("{SCRIPT}: {}", self.process.wait()?).into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Lets it continue.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        Ok(self.to.write_all(b"\n")?)
    }

    /// The numbers in a line.
    pub(crate) fn numbers(line: &str) -> Result<Vec<u64>> {
        Ok(line.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?)
    }
}
