//! `pfoctl plan pick`: the plan for a pipeline that waits for a slower one anyway.

use clap::Args;
use pfo_planner::{Plan, Straggler};

use super::export::load;
use super::format::Format;
use super::{Failure, file};
use crate::error::Error;
use crate::output::Output;
use crate::status::quantity::{change, joules, seconds};
use crate::text::harmless;

/// Write the plan of least energy for a pipeline that a straggler slows
///
/// Pipelines that train together wait for the slowest at the end of each step; the others lose
/// nothing by taking its time. The plan is never slower than the one of least energy.
#[derive(Args)]
pub(crate) struct Pick {
    /// What `plan optimize` or `plan import` wrote
    #[arg(value_name = "FRONTIER")]
    frontier: String,

    /// How many times the fastest iteration the straggler's takes, such as 1.2
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    straggler: Straggler,

    /// The plan's format
    #[arg(long, value_enum, default_value_t = Format::Pfo)]
    format: Format,

    /// The file to write; - is standard output
    #[arg(short, long, value_name = "PLAN.json", default_value = "-")]
    output: String,
}

impl Pick {
    pub(super) fn run(self, output: &mut Output) -> Result<(), Error> {
        let frontier = load(&self.frontier)?;
        let place = frontier.pick_for_straggler(self.straggler).map_err(Failure::BadRequest)?;
        let plan = frontier.plan(place).map_err(Failure::BadRequest)?;
        let text = self.format.write(&plan).map_err(Failure::BadRequest)?;
        if self.output == "-" {
            return output.text(&text);
        }
        file::write(&self.output, text.as_bytes())?;
        let fastest = frontier.plan(0).map_err(Failure::BadRequest)?;
        let summary = summary(&plan, &fastest);
        output.text(&format!("{}\n", harmless(&format!("{}: {summary}", self.output))))
    }
}

fn summary(plan: &Plan, fastest: &Plan) -> String {
    let (Some(picked), Some(fastest)) = (plan.predicted, fastest.predicted) else {
        return "no prediction".to_owned();
    };
    format!(
        "{} {}, {} time and {} energy against the fastest plan",
        seconds(picked.iteration_time_s),
        joules(picked.iteration_energy_j),
        change(picked.iteration_time_s / fastest.iteration_time_s - 1.0),
        change(picked.iteration_energy_j / fastest.iteration_energy_j - 1.0),
    )
}
