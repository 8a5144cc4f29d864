//! `pfoctl plan evaluate`: what a plan costs on a profile, whatever made it.

use clap::Args;
use pfo_planner::{PerStage, Plan, PowerByClock, Watts, interval, replay};
use serde::Serialize;

use crate::arguments::number;
use crate::error::Error;
use crate::failure::Failure;
use crate::output::{Look, Output};
use crate::planning::file;
use crate::planning::measured::PrintedWarning;
use crate::planning::replayed::ReplayArguments;
use crate::planning::rest::{Expected, RestArguments};
use crate::status::quantity::{change, joules, percent, seconds};
use crate::status::table::{Cell, Table};
use pfo_experiment::Cost;

/// Replay a plan over a measured profile
#[derive(Args)]
pub(crate) struct Evaluate {
    /// Time and energy of each instruction, as `plan optimize` takes it
    #[arg(value_name = "PROFILE.csv")]
    profile: String,

    /// The plan, pfo-plan/1 JSON or a plan file of lowtime, Perseus or Zeus; - reads standard input
    #[arg(value_name = "PLAN.json|PLAN.py")]
    plan: String,

    #[command(flatten)]
    replayed: ReplayArguments,

    #[command(flatten)]
    rest: RestArguments,

    /// P2P-blocking power: what a GPU draws while it waits, or one for each stage [default: that in the
    /// plan]
    #[arg(
        long,
        value_name = "WATTS,…",
        allow_negative_numbers = true,
        value_parser = number::watts_of_stages
    )]
    p2p_power: Option<PerStage<Watts>>,

    /// Print JSON: time and energy, their expected ranges, instructions, the same at the highest clocks,
    /// and warnings about the profile
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Evaluation {
    #[serde(flatten)]
    cost: Cost,
    /// Where time and energy are expected: the lower and the upper end.
    expected: Expected,
    instructions: usize,
    /// Calls that set another clock, over all stages.
    clock_changes: usize,
    /// The share of the instructions' time in which they run at another clock than planned.
    off_plan_share: f64,
    all_max: Cost,
    /// The plan if waits had no clocks of their own; only of plans in which they have.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_waits: Option<Cost>,
    saving: f64,
    slowdown: f64,
    /// Warnings about the profile.
    warnings: Vec<PrintedWarning>,
}

impl Evaluate {
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let bad = Failure::bad_file(&self.plan);
        let plan = file::read(&self.plan)?;
        let (measured, plan) = self.replayed.read(&self.profile, &self.plan, &plan)?;
        let profile = &measured.profile;
        let p2p_power = self
            .p2p_power
            .map(PerStage::<PowerByClock>::from)
            .or_else(|| plan.waiting_power())
            .ok_or_else(|| Failure::NoPower { name: file::shown(&self.plan).to_owned() })?;

        let replayed = replay(profile, &plan, &p2p_power).map_err(&bad)?;
        let instructions = interval(profile, &plan, &p2p_power).map_err(&bad)?;
        let expected =
            self.rest.expected(instructions, profile, &plan, &p2p_power).map_err(&bad)?;
        let all_max = Cost::at_highest_clocks(profile, &plan, &p2p_power).map_err(&bad)?;
        let mut without_waits = None;
        if !plan.waits.is_empty() {
            let plan = Plan { waits: Vec::new(), ..plan };
            without_waits = Some(replay(profile, &plan, &p2p_power).map_err(&bad)?.into());
        }
        let cost = Cost::from(replayed);
        let evaluation = Evaluation {
            cost,
            expected,
            instructions: replayed.instructions,
            clock_changes: replayed.clock_changes,
            off_plan_share: replayed.off_plan_share,
            all_max,
            without_waits,
            saving: cost.saving_on(&all_max),
            slowdown: cost.slowdown_on(&all_max),
            warnings: measured.printed_warnings(),
        };
        if self.json {
            return output.json(&evaluation);
        }
        let look = output.look();
        output.text(&render(&evaluation, look))
    }
}

fn render(evaluation: &Evaluation, look: Look) -> String {
    let mut table = Table::new(look)
        .left("")
        .right("Iteration")
        .right("Energy")
        .right("Saving")
        .right("Slower");
    let Evaluation { cost, all_max, without_waits, .. } = evaluation;
    table.row([
        Cell::text("This plan"),
        Cell::text(seconds(cost.iteration_time_s)),
        Cell::text(joules(cost.iteration_energy_j)),
        Cell::text(percent(evaluation.saving)),
        Cell::text(change(evaluation.slowdown)),
    ]);
    if let Some(without) = without_waits {
        table.row([
            Cell::text("Without clocks for waits"),
            Cell::text(seconds(without.iteration_time_s)),
            Cell::text(joules(without.iteration_energy_j)),
            Cell::text(percent(without.saving_on(all_max))),
            Cell::text(change(without.slowdown_on(all_max))),
        ]);
    }
    table.row([
        Cell::text("Highest clocks"),
        Cell::text(seconds(all_max.iteration_time_s)),
        Cell::text(joules(all_max.iteration_energy_j)),
        Cell::empty(),
        Cell::empty(),
    ]);
    format!(
        "{}\nReplayed over the profile; {}\n{} instructions and {} changes of clock per step{}\n",
        table.render(),
        evaluation.expected.sentence(),
        evaluation.instructions,
        evaluation.clock_changes,
        match evaluation.off_plan_share {
            0.0 => String::new(),
            share => format!("; {} of their time at another clock than planned", percent(share)),
        }
    )
}

#[cfg(test)]
mod tests {
    use pfo_planner::Interval;

    use super::*;

    #[test]
    fn the_table_shows_the_saving_and_its_cost_in_time() {
        let evaluation = Evaluation {
            cost: Cost { iteration_time_s: 3.06, iteration_energy_j: 4500.0 },
            expected: Expected::of_instructions(Interval {
                iteration_time_s: [3.03, 3.1],
                iteration_energy_j: [4400.0, 4650.0],
            }),
            instructions: 192,
            clock_changes: 88,
            off_plan_share: 0.071,
            all_max: Cost { iteration_time_s: 3.0, iteration_energy_j: 5000.0 },
            without_waits: Some(Cost { iteration_time_s: 3.06, iteration_energy_j: 4600.0 }),
            saving: 0.1,
            slowdown: 0.02,
            warnings: Vec::new(),
        };
        insta::assert_snapshot!(render(&evaluation, Look::default()));
    }
}
