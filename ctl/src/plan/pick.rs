//! `pfoctl plan pick`: writes the plan for a pipeline that waits for a straggler.

use clap::Args;
use pfo_planner::Straggler;

use crate::error::Error;
use crate::output::Output;
use crate::planning::format::Format;
use crate::planning::frontier_file::load;
use crate::planning::rest::RestArguments;
use crate::planning::written;

/// Write the plan of least energy for a pipeline that waits for a straggler
///
/// Pipelines that train together wait for the slowest at the end of each step; the others lose nothing if
/// they are as slow. Waiting takes energy, too: the plan takes least energy together with its wait until
/// the straggler is done.
#[derive(Args)]
pub(crate) struct Pick {
    /// The frontier, as `plan optimize` or `plan import` writes it
    #[arg(value_name = "FRONTIER")]
    frontier: String,

    /// Iteration time of the straggler, as a factor of the fastest iteration, such as 1.2
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    straggler: Straggler,

    #[command(flatten)]
    rest: RestArguments,

    /// Format of the plan
    #[arg(long, value_enum, default_value_t = Format::Pfo)]
    format: Format,

    /// The file to write; - is standard output
    #[arg(short, long, value_name = "PLAN.json", default_value = "-")]
    output: String,
}

impl Pick {
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let frontier = load(&self.frontier)?;
        let plan = frontier.plan_for(frontier.due_for(self.straggler))?;
        written::write(&self.output, &plan, &frontier, (self.format, &self.rest), output)
    }
}
