//! What the plans took, beside their predictions.

use pfo_protocol::JobName;
use serde::Serialize;

use super::contenders::Contender;
use crate::output::Look;
use crate::status::quantity::{change, joules, percent, seconds};
use crate::status::table::{Cell, Table, heading};
use crate::trial::Window;

/// Every plan that was run, in the order in which it was.
#[derive(Debug, Serialize)]
pub(super) struct MeasuredFrontier {
    default_clocks: Figures,
    plans: Vec<MeasuredPlan>,
}

/// What some steps took.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    steps: usize,
    iteration_time_s: f64,
    /// Standard deviation over steps; none of a single step.
    time_sd_s: Option<f64>,
    iteration_energy_j: f64,
    /// Standard deviation over steps; none of a single step.
    energy_sd_j: Option<f64>,
}

/// A plan that was run.
#[derive(Debug, Serialize)]
pub(super) struct MeasuredPlan {
    plan: String,
    #[serde(flatten)]
    measured: Figures,
    predicted_time_s: Option<f64>,
    /// None unless exactly one rank of each stage was measured, which the prediction is for.
    predicted_energy_j: Option<f64>,
}

impl From<&Window> for Figures {
    fn from(window: &Window) -> Self {
        Self {
            steps: window.steps(),
            iteration_time_s: window.time_s(),
            time_sd_s: window.time_sd_s(),
            iteration_energy_j: window.energy_j(),
            energy_sd_j: window.energy_sd_j(),
        }
    }
}

impl MeasuredPlan {
    pub(super) fn new(contender: &Contender, window: &Window, ranks: usize) -> Self {
        let predicted = contender.plan.predicted;
        let is_comparable = ranks == usize::from(contender.plan.num_stages);
        Self {
            plan: contender.label.clone(),
            measured: window.into(),
            predicted_time_s: predicted.map(|predicted| predicted.iteration_time_s),
            predicted_energy_j: predicted
                .filter(|_| is_comparable)
                .map(|predicted| predicted.iteration_energy_j),
        }
    }
}

impl MeasuredFrontier {
    pub(super) fn new(default_clocks: &Window) -> Self {
        Self { default_clocks: default_clocks.into(), plans: Vec::new() }
    }

    pub(super) fn add(&mut self, plan: MeasuredPlan) {
        self.plans.push(plan);
    }

    /// With the columns that `plan plot` reads, among others.
    pub(super) fn csv(&self) -> String {
        let mut text = String::from(
            "plan,time,energy,time_sd,energy_sd,steps,predicted_time,predicted_energy\n",
        );
        let or_nothing =
            |figure: Option<f64>| figure.map_or_else(String::new, |figure| figure.to_string());
        for MeasuredPlan { plan, measured, predicted_time_s, predicted_energy_j } in &self.plans {
            // A name is a file's; the reader knows no quotes.
            let plan: String =
                plan.chars().map(|c| if matches!(c, ',' | '"' | '\n') { '_' } else { c }).collect();
            text += &format!(
                "{plan},{},{},{},{},{},{},{}\n",
                measured.iteration_time_s,
                measured.iteration_energy_j,
                or_nothing(measured.time_sd_s),
                or_nothing(measured.energy_sd_j),
                measured.steps,
                or_nothing(*predicted_time_s),
                or_nothing(*predicted_energy_j),
            );
        }
        text
    }

    pub(super) fn render(&self, job: &JobName, look: Look) -> String {
        let mut table = Table::new(look)
            .left("Plan")
            .right("Time/step")
            .right("Scatter")
            .right("Predicted")
            .right("Off by")
            .right("Energy/step")
            .right("Scatter")
            .right("Predicted")
            .right("Off by")
            .right("Saving");
        let default = self.default_clocks;
        let row = |name: &str, measured: &Figures, predicted: [Option<f64>; 2], saving: Cell| {
            let [time, energy] = [measured.iteration_time_s, measured.iteration_energy_j];
            let off = |predicted: Option<f64>, measured: f64| {
                Cell::option(predicted.map(|predicted| change(measured / predicted - 1.0)))
            };
            [
                Cell::text(name),
                Cell::text(seconds(time)),
                Cell::option(measured.time_sd_s.map(|sd_s| percent(sd_s / time))),
                Cell::option(predicted[0].map(seconds)),
                off(predicted[0], time),
                Cell::text(joules(energy)),
                Cell::option(measured.energy_sd_j.map(|sd_j| percent(sd_j / energy))),
                Cell::option(predicted[1].map(joules)),
                off(predicted[1], energy),
                saving,
            ]
        };
        table.row(row("default clocks", &default, [None; 2], Cell::empty()));
        for plan in &self.plans {
            let saved = 1.0 - plan.measured.iteration_energy_j / default.iteration_energy_j;
            table.row(row(
                &plan.plan,
                &plan.measured,
                [plan.predicted_time_s, plan.predicted_energy_j],
                Cell::text(percent(saved)),
            ));
        }
        heading(&format!("Measured on job {job}"), look)
            + &table.render()
            + &match default.steps {
                1 => "One step has no scatter: --steps takes more.\n".to_owned(),
                steps => format!("Scatter is the standard deviation over {steps} steps.\n"),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frontier() -> MeasuredFrontier {
        let window = |time_s: f64, energy_j: f64| Window {
            times_s: vec![time_s - 0.1, time_s + 0.1],
            energies_j: vec![energy_j - 10.0, energy_j + 10.0],
        };
        let mut measured = MeasuredFrontier::new(&window(2.0, 1000.0));
        measured.add(MeasuredPlan {
            plan: "a,b.json".to_owned(),
            measured: (&window(2.02, 900.0)).into(),
            predicted_time_s: Some(2.0),
            predicted_energy_j: None,
        });
        measured
    }

    #[test]
    fn the_table_shows_measurement_scatter_and_prediction() {
        insta::assert_snapshot!(frontier().render(&"j".parse().unwrap(), Look::default()));
    }

    #[test]
    fn a_name_with_a_comma_adds_no_column_and_an_unknown_figure_is_empty() {
        insta::assert_snapshot!(frontier().csv());
    }
}
