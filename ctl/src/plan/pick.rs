//! `pfoctl plan pick`: writes the plan for a pipeline that waits for a straggler.

use clap::Args;
use pfo_planner::{Plan, Straggler};

use crate::error::Error;
use crate::output::Output;
use crate::planning::file;
use crate::planning::format::Format;
use crate::planning::frontier_file::load;
use crate::status::quantity::{change, joules, seconds};
use crate::text::harmless;

/// Write the plan of least energy for a pipeline that waits for a straggler
///
/// Pipelines that train together wait for the slowest at the end of each step; the others lose
/// nothing if they are as slow. The plan is never slower than the one of least energy.
#[derive(Args)]
pub(crate) struct Pick {
    /// The frontier, as `plan optimize` or `plan import` writes it
    #[arg(value_name = "FRONTIER")]
    frontier: String,

    /// Iteration time of the straggler, as a factor of the fastest iteration, such as 1.2
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    straggler: Straggler,

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
        let place = frontier.pick_for_straggler(self.straggler)?;
        let plan = frontier.plan(place)?;
        let text = self.format.write(&plan)?;
        if self.output == "-" {
            return output.text(&text);
        }
        file::write(&self.output, text.as_bytes())?;
        let fastest = frontier.plan(0)?;
        let summary = summary(&plan, &fastest);
        output.text(&format!("{}\n", harmless(&format!("{}: {summary}", self.output))))
    }
}

fn summary(plan: &Plan, fastest: &Plan) -> String {
    let (Some(picked), Some(fastest)) = (plan.predicted, fastest.predicted) else {
        return "no prediction".to_owned();
    };
    format!(
        "{} {}, {} time and {} energy compared with the fastest plan",
        seconds(picked.iteration_time_s),
        joules(picked.iteration_energy_j),
        change(picked.iteration_time_s / fastest.iteration_time_s - 1.0),
        change(picked.iteration_energy_j / fastest.iteration_energy_j - 1.0),
    )
}
