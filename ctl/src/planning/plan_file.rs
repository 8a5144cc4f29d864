//! A plan file that is handed to a daemon, and what to call the plan in status.

use clap::Args;
use pfo_planner::Plan;
use pfo_protocol::{ClockTable, TrialRun};

use super::{clock_table, file};
use crate::failure::Failure;

/// The longest label, in bytes. It is one column of a table.
const LONGEST_LABEL: usize = 64;

/// What to call a plan.
#[derive(Args, Clone)]
pub(crate) struct LabelArguments {
    /// Name of the plan in status [default: the name of the file]
    #[arg(long, value_name = "TEXT", value_parser = parse_label, requires = "plan")]
    label: Option<String>,
}

/// A plan, ready to be sent.
pub(crate) struct LabelledPlan {
    pub(crate) label: String,
    pub(crate) table: ClockTable,
}

impl LabelArguments {
    /// Reads and checks the plan in a file.
    pub(crate) fn read(&self, name: &str) -> Result<LabelledPlan, Failure> {
        self.plan(name, &file::read(name)?)
    }

    /// The plan in a file that was read already.
    pub(crate) fn plan(&self, name: &str, bytes: &[u8]) -> Result<LabelledPlan, Failure> {
        let plan = Plan::from_json(bytes)
            .map_err(|source| Failure::BadPlan { name: file::shown(name).to_owned(), source })?;
        LabelledPlan::new(self.of(name), &plan)
    }

    /// The label of a file.
    pub(crate) fn of(&self, name: &str) -> String {
        self.label.clone().unwrap_or_else(|| default_label(file::shown(name)))
    }
}

impl LabelledPlan {
    pub(crate) fn new(label: String, plan: &Plan) -> Result<Self, Failure> {
        let table = clock_table::of(plan)
            .map_err(|source| Failure::NoClockTable { name: label.clone(), source })?;
        Ok(Self { label, table })
    }

    /// The plan, to be measured.
    pub(crate) fn trial(self) -> TrialRun {
        TrialRun::Plan { label: self.label, table: self.table }
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
