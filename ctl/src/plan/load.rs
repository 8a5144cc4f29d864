//! `pfoctl plan load`: hands the daemon a plan or a frontier to check against a job and keep.
//!
//! It is read here with the reader that the daemon uses, so that a mistake in a file is told with the
//! file's name and before anything is sent.

use std::fs::File;
use std::io::Read;

use clap::Args;
use pfo_planner::{Frontier, Plan};
use pfo_protocol::{
    FrontierStatus, JobSelector, LARGEST_PAYLOAD, PlanStatus, Request, Response, TrialRun,
};

use crate::connection::Connection;
use crate::error::Error;
use crate::job::JobArguments;
use crate::output::Output;
use crate::socket::Sockets;
use crate::status::plan_text::{described, described_frontier};
use crate::text::harmless;

/// The largest plan that is sent, in bytes. What else is in the request takes far less than the
/// difference: a job's name and a label.
const LARGEST_PLAN: usize = LARGEST_PAYLOAD - 4096;

/// The longest label, in bytes. It is one column of a table.
const LONGEST_LABEL: usize = 64;

/// Check a plan against a running job and keep it for `plan swap`, or a frontier for `job straggler`
#[derive(Args)]
pub(crate) struct Load {
    #[command(flatten)]
    job: JobArguments,

    #[command(flatten)]
    plan: PlanFile,

    /// Print JSON: the status of the plan or frontier
    #[arg(long)]
    json: bool,
}

/// What to call a plan.
#[derive(Args, Clone)]
pub(crate) struct PlanArguments {
    /// What to call the plan in status [default: the file's name]
    #[arg(long, value_name = "TEXT", value_parser = parse_label, requires = "plan")]
    label: Option<String>,
}

/// A plan or frontier that must be given.
#[derive(Args, Clone)]
struct PlanFile {
    /// The plan, pfo-plan/1 JSON as `pfoctl plan export` writes it, or the frontier, as
    /// `pfoctl plan optimize` does; - reads standard input
    #[arg(value_name = "PLAN.json|FRONTIER")]
    plan: String,

    #[command(flatten)]
    arguments: PlanArguments,
}

impl Load {
    /// Loads and tells what the plan or the frontier predicts.
    pub(crate) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let file = self.plan.arguments.read_any(&self.plan.plan)?;
        if Frontier::is_likely(&file.bytes) {
            return self.load_frontier(file, sockets, output);
        }
        let plan = file.plan()?;
        let mut connection = Connection::open(sockets)?;
        let loaded = plan.load(&mut connection, self.job.selector())?;
        if self.json {
            return output.json(&loaded);
        }
        let job = self.job.name();
        let plan = described(&loaded);
        let line = format!("job {job}: {plan} is loaded; `pfoctl plan swap {job}` takes it up");
        output.text(&format!("{}\n", harmless(&line)))
    }

    fn load_frontier(
        &self,
        file: ReadFile,
        sockets: &Sockets,
        output: &mut Output,
    ) -> Result<(), Error> {
        Frontier::from_bytes(&file.bytes)
            .map_err(|source| Error::BadPlan { name: file.shown, source })?;
        let mut connection = Connection::open(sockets)?;
        let (label, frontier) = (file.label, file.bytes);
        let request = Request::FrontierLoad { job: self.job.selector(), label, frontier };
        let loaded: FrontierStatus = match connection.ask(request)? {
            Response::Frontier(loaded) => loaded,
            other => return Err(connection.other_answer(&format!("{other:?}"))),
        };
        if self.json {
            return output.json(&loaded);
        }
        let job = self.job.name();
        let frontier = described_frontier(&loaded);
        let line = format!("job {job}: {frontier} is loaded; `pfoctl job straggler {job}` uses it");
        output.text(&format!("{}\n", harmless(&line)))
    }
}

/// A file that was read.
struct ReadFile {
    shown: String,
    label: String,
    bytes: Vec<u8>,
}

/// A plan that was read and is one.
pub(crate) struct ReadPlan {
    label: String,
    bytes: Vec<u8>,
}

impl PlanArguments {
    /// Reads and checks the plan of that name.
    pub(crate) fn read(&self, name: &str) -> Result<ReadPlan, Error> {
        self.read_any(name)?.plan()
    }

    fn read_any(&self, name: &str) -> Result<ReadFile, Error> {
        let shown = if name == "-" { "standard input" } else { name };
        let read = |source| Error::ReadPlan { name: shown.to_owned(), source };
        let reader: Box<dyn Read> = if name == "-" {
            Box::new(std::io::stdin())
        } else {
            Box::new(File::open(name).map_err(read)?)
        };
        let mut bytes = Vec::new();
        // One byte more than allowed, so that an endless file is told from one that just fits.
        reader.take(LARGEST_PLAN as u64 + 1).read_to_end(&mut bytes).map_err(read)?;
        if bytes.len() > LARGEST_PLAN {
            return Err(Error::PlanTooLarge { name: shown.to_owned(), limit: LARGEST_PLAN });
        }
        let label = self.label.clone().unwrap_or_else(|| default_label(shown));
        Ok(ReadFile { shown: shown.to_owned(), label, bytes })
    }
}

impl ReadFile {
    fn plan(self) -> Result<ReadPlan, Error> {
        let Self { shown, label, bytes } = self;
        match Plan::from_json(&bytes) {
            Ok(_) => Ok(ReadPlan { label, bytes }),
            Err(source) => Err(Error::BadPlan { name: shown, source }),
        }
    }
}

impl ReadPlan {
    /// The plan, to be measured.
    pub(crate) fn trial(self) -> TrialRun {
        TrialRun::Plan { label: self.label, plan: self.bytes }
    }

    /// Loads the plan for a job.
    pub(crate) fn load(
        self,
        connection: &mut Connection,
        job: JobSelector,
    ) -> Result<PlanStatus, Error> {
        let request = Request::PlanLoad { job, label: self.label, plan: self.bytes };
        match connection.ask(request)? {
            Response::Loaded(plan) => Ok(plan),
            other => Err(connection.other_answer(&format!("{other:?}"))),
        }
    }
}

fn default_label(name: &str) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    let printable: String = file.chars().filter(|c| !c.is_control()).collect();
    let end = printable.floor_char_boundary(LONGEST_LABEL);
    printable[..end].to_owned()
}

fn parse_label(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > LONGEST_LABEL {
        return Err(format!("a label has 1 to {LONGEST_LABEL} bytes, this one has {}", text.len()));
    }
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(format!("a label is one line of text, this one contains {c:?}")),
        None => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_called_after_its_file_unless_a_label_says_otherwise() {
        assert_eq!(default_label("/tmp/plans/1.02x.json"), "1.02x.json");
        assert_eq!(default_label("standard input"), "standard input");
        assert_eq!(default_label(&"é".repeat(100)).len(), LONGEST_LABEL);
    }

    #[test]
    fn a_label_that_would_break_a_table_is_refused() {
        assert!(parse_label("").is_err());
        assert!(parse_label("two\nlines").unwrap_err().contains(r"'\n'"));
        assert!(parse_label(&"x".repeat(65)).unwrap_err().contains("65"));
        assert_eq!(parse_label("1.02x, A100"), Ok("1.02x, A100".to_owned()));
    }
}
