//! `pfoctl plan show`: prints a frontier as a table, JSON or CSV.

use clap::Args;
use pfo_planner::{Frontier, PlanError, Point, Schedule, Timeline, Watts};
use serde::Serialize;

use crate::error::Error;
use crate::failure::Failure;
use crate::output::{Look, Output};
use crate::planning::file;
use crate::planning::frontier_file::load;
use crate::planning::replayed::ReplayArguments;
use crate::status::quantity::{change, joules, percent, seconds};
use crate::status::table::{Cell, Table, heading};
use pfo_experiment::Cost;

/// The most rows of a table without --all.
const MOST_ROWS: usize = 20;

/// Show iteration time, energy and saving of the plans of a frontier, or the step of a plan
#[derive(Args)]
pub(crate) struct Show {
    /// The frontier, as `plan optimize` or `plan import` writes it; with --envpipe, a plan
    #[arg(value_name = "FRONTIER|PLAN")]
    frontier: String,

    /// Show every plan instead of a selection
    #[arg(long, conflicts_with = "json")]
    all: bool,

    /// Print JSON: the pipeline of the frontier, and all of its points
    #[arg(long)]
    json: bool,

    /// Print CSV: time,energy (s, J) of every plan, fastest first
    #[arg(long, conflicts_with_all = ["json", "all"])]
    csv: bool,

    /// Print the step of a plan as EnvPipe does: for each stage its instructions with clock (MHz)
    /// and wait (ms), in brackets on the critical path
    #[arg(long, conflicts_with_all = ["json", "all", "csv"], requires = "profile")]
    envpipe: bool,

    /// The profile over which that plan is replayed
    #[arg(long, value_name = "PROFILE.csv", requires = "envpipe")]
    profile: Option<String>,

    #[command(flatten)]
    replayed: ReplayArguments,
}

#[derive(Debug, Serialize)]
struct Shown {
    gpu: Option<String>,
    schedule: Schedule,
    num_stages: u16,
    num_microbatches: u32,
    /// The mean of the stages.
    p2p_blocking_power_w: Watts,
    /// Of each stage, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    p2p_blocking_power_by_stage_w: Option<Vec<Watts>>,
    /// For each GPU; 0 if it was not given.
    site_power_w: Watts,
    /// Every instruction at the highest clock.
    all_max: Cost,
    /// Fastest first, up to the one of least energy.
    points: Vec<Cost>,
    /// Slower plans, for pipelines that wait for a straggler.
    beyond_min_energy: Vec<Cost>,
}

impl Show {
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        if let Some(profile) = self.profile.as_ref().filter(|_| self.envpipe) {
            return output.text(&self.step(profile)?);
        }
        let frontier = load(&self.frontier)?;
        if self.csv {
            return output.text(&csv(&frontier));
        }
        let shown = Shown::new(&frontier)?;
        if self.json {
            return output.json(&shown);
        }
        let look = output.look();
        let most_rows = if self.all { usize::MAX } else { MOST_ROWS };
        output.text(&shown.render(most_rows, look))
    }

    fn step(&self, profile: &str) -> Result<String, Failure> {
        let bytes = file::read(&self.frontier)?;
        let (measured, plan) = self.replayed.read(profile, &self.frontier, &bytes)?;
        let timeline =
            Timeline::new(&measured.profile, &plan).map_err(Failure::bad_file(&self.frontier))?;
        Ok(timeline.to_envpipe_table(0))
    }
}

impl Shown {
    fn new(frontier: &Frontier) -> Result<Self, PlanError> {
        let pipeline = frontier.pipeline();
        let (profile, p2p_power) = (pipeline.profile(), frontier.p2p_power());
        let cost = |point: Point| Cost {
            iteration_time_s: point.iteration_time_s,
            iteration_energy_j: point.iteration_energy_j,
        };
        let cheapest_s = frontier.points().last().map_or(0.0, |point| point.iteration_time_s);
        Ok(Self {
            gpu: frontier.gpu.clone(),
            schedule: pipeline.schedule(),
            num_stages: profile.num_stages(),
            num_microbatches: pipeline.num_microbatches(),
            p2p_blocking_power_w: p2p_power.mean(),
            p2p_blocking_power_by_stage_w: p2p_power.differing().map(<[Watts]>::to_vec),
            site_power_w: frontier.site_power(),
            all_max: Cost::at_highest_clocks(profile, &frontier.plan(0)?, p2p_power)?,
            points: frontier.points().map(cost).collect(),
            beyond_min_energy: frontier
                .plans()
                .filter(|plan| plan.iteration_time_s > cheapest_s)
                .map(cost)
                .collect(),
        })
    }

    fn render(&self, most_rows: usize, look: Look) -> String {
        let mut text = heading(
            &format!(
                "{}{} stages, {} microbatches, {}, P2P-blocking power {}{}",
                self.gpu.as_ref().map_or_else(String::new, |gpu| format!("{gpu}, ")),
                self.num_stages,
                self.num_microbatches,
                self.schedule,
                match &self.p2p_blocking_power_by_stage_w {
                    None => self.p2p_blocking_power_w.to_string(),
                    Some(_) => format!("{} on average", self.p2p_blocking_power_w),
                },
                match self.site_power_w {
                    power if power.0 > 0.0 => format!(", site power {power}"),
                    _ => String::new(),
                },
            ),
            look,
        );
        let mut table = Table::new(look)
            .left("Plan")
            .right("Iteration")
            .right("Energy")
            .right("Saving")
            .right("Slower");
        let mut row = |name: &str, cost: &Cost| {
            table.row([
                Cell::text(name),
                Cell::text(seconds(cost.iteration_time_s)),
                Cell::text(joules(cost.iteration_energy_j)),
                Cell::text(percent(cost.saving_on(&self.all_max))),
                Cell::text(change(cost.slowdown_on(&self.all_max))),
            ]);
        };
        row("highest clocks", &self.all_max);
        let last = self.points.len().saturating_sub(1);
        for index in selection(self.points.len(), most_rows) {
            let name = match index {
                0 => "fastest",
                _ if index == last => "min-energy",
                _ => "",
            };
            row(name, &self.points[index]);
        }
        text += &table.render();
        text += &format!(
            "\nSaving and slowdown are relative to every instruction at the highest clock. Plans: {}",
            self.points.len()
        );
        if let slower @ 1.. = self.beyond_min_energy.len() {
            text += &format!("; slower plans for stragglers: {slower}");
        }
        text.push('\n');
        text
    }
}

/// The points as Perseus' planner writes them, in numbers that are read back exactly.
fn csv(frontier: &Frontier) -> String {
    let rows =
        frontier.points().map(|p| format!("{},{}\n", p.iteration_time_s, p.iteration_energy_j));
    format!("time,energy\n{}", rows.collect::<String>())
}

/// `most` of `count` indices, evenly spread, with the first and the last.
fn selection(count: usize, most: usize) -> Vec<usize> {
    if count <= most {
        return (0..count).collect();
    }
    (0..most).map(|row| row * (count - 1) / (most - 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_has_the_first_and_the_last() {
        assert_eq!(selection(3, 20), [0, 1, 2]);
        let some = selection(200, 20);
        assert_eq!((some.len(), some[0], some[19]), (20, 0, 199));
        assert!(some.is_sorted());
    }

    #[test]
    fn the_table_names_the_fastest_and_the_cheapest_plan() {
        let cost = |time, energy| Cost { iteration_time_s: time, iteration_energy_j: energy };
        let shown = Shown {
            gpu: Some("A100".to_owned()),
            schedule: Schedule::OneForwardOneBackward,
            num_stages: 8,
            num_microbatches: 12,
            p2p_blocking_power_w: Watts(83.64),
            p2p_blocking_power_by_stage_w: None,
            site_power_w: Watts(0.0),
            all_max: cost(3.0, 5000.0),
            points: vec![cost(3.0, 4750.0), cost(3.3, 4500.0)],
            beyond_min_energy: vec![cost(3.5, 4510.0)],
        };
        insta::assert_snapshot!(shown.render(MOST_ROWS, Look::default()));
    }
}
