//! `pfoctl plan bound`: how far plans are from the least energy that any plan can take.

use clap::Args;
use pfo_planner::{Due, Frontier, WrittenDeadline};
use serde::Serialize;

use crate::error::Error;
use crate::failure::Failure;
use crate::output::{Look, Output};
use crate::planning::frontier_file::load;
use crate::status::quantity::{joules, percent_finely, seconds};
use crate::status::table::{Cell, Table};

/// Show how far plans are from the least energy that any plan can take
///
/// The plans are those that `plan export` writes for the same deadlines, with the wait until then.
/// The bound is the energy of a step whose instructions could change between measured clocks at any
/// moment, so no plan takes less.
#[derive(Args)]
pub(crate) struct Bound {
    /// The frontier, as `plan optimize` or `plan import` writes it
    #[arg(value_name = "FRONTIER")]
    frontier: String,

    /// Iteration times, as `plan export` takes them
    #[arg(
        long,
        value_name = "D,…",
        value_delimiter = ',',
        default_value = "fastest,1.01x,1.02x,1.05x,1.1x,min-energy,1.5x"
    )]
    deadline: Vec<WrittenDeadline>,

    /// Print JSON: an array with each row of the table
    #[arg(long)]
    json: bool,
}

/// One iteration time.
#[derive(Debug, Serialize)]
struct Row {
    deadline: String,
    time_s: f64,
    /// Joules of the plan until then.
    energy_j: f64,
    /// Joules that every plan takes until then at least.
    least_energy_j: f64,
    /// What the plan takes more, as a share.
    gap: f64,
}

impl Bound {
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let rows = self.rows(&load(&self.frontier)?)?;
        if self.json {
            return output.json(&rows);
        }
        let look = output.look();
        output.text(&render(&rows, look))
    }

    fn rows(&self, frontier: &Frontier) -> Result<Vec<Row>, Failure> {
        let bound = frontier.bound();
        let row = |written: &WrittenDeadline| {
            let deadline = frontier.deadline(written)?;
            let time_s = frontier.seconds(deadline);
            let plan = frontier.plan_for(Due::Waiting(time_s))?;
            let energy_j = frontier.energy_until_j(&plan, time_s);
            let least_energy_j = bound.energy_j(time_s);
            let gap = energy_j / least_energy_j - 1.0;
            Ok(Row { deadline: deadline.to_string(), time_s, energy_j, least_energy_j, gap })
        };
        self.deadline.iter().map(row).collect()
    }
}

fn render(rows: &[Row], look: Look) -> String {
    let mut table = Table::new(look)
        .left("Deadline")
        .right("Time")
        .right("Energy")
        .right("Bound")
        .right("Above it");
    for row in rows {
        table.row([
            Cell::text(&row.deadline),
            Cell::text(seconds(row.time_s)),
            Cell::text(joules(row.energy_j)),
            Cell::text(joules(row.least_energy_j)),
            Cell::text(percent_finely(row.gap)),
        ]);
    }
    format!(
        "{}\nEnergy is that of a step and of the wait until the deadline; no plan takes less than \
         the bound\n",
        table.render()
    )
}
