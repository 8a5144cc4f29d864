//! `pfoctl plan export`: takes one plan out of a frontier.

use clap::Args;
use pfo_planner::{Deadline, Frontier};

use super::format::Format;
use super::{Failure, file};
use crate::error::Error;
use crate::output::Output;

/// Write the plan of least energy that keeps a deadline
#[derive(Args)]
pub(crate) struct Export {
    /// What `plan optimize` wrote
    #[arg(value_name = "FRONTIER")]
    frontier: String,

    /// The longest iteration time: seconds (3.1), a factor of the fastest (1.02x), fastest or
    /// min-energy
    #[arg(long, value_name = "D")]
    deadline: Deadline,

    /// The plan's format
    #[arg(long, value_enum, default_value_t = Format::Pfo)]
    format: Format,

    /// The file to write; - is standard output
    #[arg(short, long, value_name = "PLAN.json", default_value = "-")]
    output: String,
}

impl Export {
    pub(super) fn run(self, output: &mut Output) -> Result<(), Error> {
        let frontier = load(&self.frontier)?;
        let place = frontier.pick(self.deadline).map_err(Failure::BadRequest)?;
        let plan = frontier.plan(place).map_err(Failure::BadRequest)?;
        let text = self.format.write(&plan).map_err(Failure::BadRequest)?;
        if self.output == "-" {
            return output.text(&text);
        }
        Ok(file::write(&self.output, text.as_bytes())?)
    }
}

/// Reads a frontier file.
pub(super) fn load(name: &str) -> Result<Frontier, Failure> {
    Frontier::from_bytes(&file::read(name)?)
        .map_err(|source| Failure::BadFile { name: file::shown(name).to_owned(), source })
}
