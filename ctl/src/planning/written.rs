//! One plan of a frontier, written to the requested place, and its prediction.

use pfo_planner::{Deadline, Frontier, Plan, PlanError, Prediction, replay};

use super::file;
use super::format::Format;
use super::rest::RestArguments;
use crate::error::Error;
use crate::output::Output;
use crate::status::quantity::{change, joules, seconds};
use crate::text::harmless;

/// Writes a plan to a file and says what it comes to, or to standard output for `-`.
pub(crate) fn write(
    name: &str,
    plan: &Plan,
    frontier: &Frontier,
    (format, rest): (Format, &RestArguments),
    output: &mut Output,
) -> Result<(), Error> {
    let bare = without_waits(plan, frontier, format)?;
    let plan = bare.as_ref().unwrap_or(plan);
    let text = format.write(plan)?;
    if name == "-" {
        return output.text(&text);
    }
    file::write(name, text.as_bytes())?;
    let power = frontier.waiting_power(plan);
    let profile = frontier.pipeline().profile();
    let expected = rest.expected(frontier.interval(plan)?, profile, plan, &power)?;
    let fastest = frontier.plan(0)?.predicted;
    let summary = match plan.predicted.zip(fastest) {
        Some((predicted, fastest)) => {
            let cheapest_s = frontier.seconds(Deadline::MinEnergy);
            summary(predicted, fastest, cheapest_s) + "; " + &expected.sentence()
        }
        None => "no prediction".to_owned(),
    };
    let left_out = if bare.is_some() { "; this format has no clocks for waits" } else { "" };
    output.text(&format!("{}\n", harmless(&format!("{name}: {summary}{left_out}"))))
}

/// The plan as others read it: their formats have no clocks for waits, and it costs more without them.
pub(crate) fn without_waits(
    plan: &Plan,
    frontier: &Frontier,
    format: Format,
) -> Result<Option<Plan>, PlanError> {
    if format == Format::Pfo || plan.waits.is_empty() {
        return Ok(None);
    }
    let mut bare = Plan { waits: Vec::new(), ..plan.clone() };
    let power = frontier.waiting_power(plan);
    bare.predicted = Some(replay(frontier.pipeline().profile(), &bare, &power)?.into());
    Ok(Some(bare))
}

fn summary(plan: Prediction, fastest: Prediction, cheapest_s: f64) -> String {
    let mut summary = format!(
        "{} {}, {} time and {} energy compared with the fastest plan",
        seconds(plan.iteration_time_s),
        joules(plan.iteration_energy_j),
        change(plan.iteration_time_s / fastest.iteration_time_s - 1.0),
        change(plan.iteration_energy_j / fastest.iteration_energy_j - 1.0),
    );
    if plan.iteration_time_s > cheapest_s {
        summary += &format!(
            "; it saves energy only where the step waits that long anyway, min-energy takes {}",
            seconds(cheapest_s)
        );
    }
    summary
}
