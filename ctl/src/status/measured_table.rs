//! What was measured under each plan, compared with default clocks, and what the plan had predicted.

use pfo_protocol::{JobStatus, PlanStatus, Uid};

use super::measured::Measured;
use super::plan_text;
use super::quantity::{change, joules, percent, seconds, span};
use super::table::{Cell, Table, Tone, heading};
use crate::output::Look;

/// One row for each plan; none if nothing was measured.
pub(crate) fn render(job: &JobStatus, user: &dyn Fn(Uid) -> String, look: Look) -> Option<String> {
    let rows = Measured::all(job);
    if rows.is_empty() {
        return None;
    }
    let mut table = Table::new(look)
        .left("Plan")
        .spare("Steps")
        .right("Time/step")
        .spare("Pred. time")
        .right("Slowdown")
        .right("Energy/step")
        .spare("Pred. energy")
        .right("Saving");
    for measured in &rows {
        let plan = measured.plan;
        table.row([
            Cell::text(name(plan)),
            Cell::number(measured.steps),
            Cell::text(seconds(measured.time_s)),
            Cell::option(plan.and_then(|plan| plan.predicted_time_s).map(seconds)),
            Cell::option(measured.slowdown.map(change)),
            Cell::option(measured.energy_j.map(joules)),
            Cell::option(plan.and_then(|plan| plan.predicted_energy_j).map(joules)),
            measured.saving.map_or_else(Cell::empty, saving_cell),
        ]);
    }
    let (owner, time) = (user(job.uid), span(job.measured_for_s));
    let title = format!("Measured for job {} of {owner} in the last {time}", job.job);
    let mut text = heading(&title, look) + &table.render();
    text.extend(partial_pipeline(job, &rows));
    Some(text)
}

/// What ran.
pub(crate) fn name(plan: Option<&PlanStatus>) -> String {
    plan.map_or_else(|| "default clocks".to_owned(), plan_text::name)
}

/// How a saving is meant, which is printed with one decimal.
pub(crate) fn tone_of_saving(saved: f64) -> Tone {
    match saved {
        saved if saved >= 0.0005 => Tone::Good,
        saved if saved <= -0.0005 => Tone::Bad,
        _ => Tone::Plain,
    }
}

/// What is saved, as it is meant.
pub(crate) fn saving_cell(saved: f64) -> Cell {
    Cell::text(percent(saved)).tone(tone_of_saving(saved))
}

/// A plan predicts the energy of one rank of each stage. If this node measured fewer or more ranks,
/// the two cannot be compared.
fn partial_pipeline(job: &JobStatus, rows: &[Measured]) -> Option<String> {
    let partial = |row: &&Measured| row.plan.is_some() && row.ranks != job.pp_degree;
    rows.iter().find(partial).map(|row| {
        format!(
            "Predicted energy is that of one rank for each of {} stages; {} ranks were measured \
             here.\n",
            job.pp_degree, row.ranks
        )
    })
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Window;

    use super::*;
    use crate::status::measured::tests::{job, window};

    fn rendered(windows: Vec<Window>) -> Option<String> {
        render(&job(windows), &|_| "root".to_owned(), Look::default())
    }

    #[test]
    fn a_saving_is_against_default_clocks_which_save_nothing() {
        let text = rendered(vec![
            window(None, 10, 1.0, 1000.0),
            window(Some(1), 10, 1.01, 850.0),
            window(None, 10, 1.0, 1000.0),
        ])
        .unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn what_was_measured_in_turns_is_one_row() {
        let turn = |plan, energy_j| {
            [window(None, 10, 1.0, 1000.0), window(Some(plan), 10, 1.01, energy_j)]
        };
        let turns = [(1, 890.0), (2, 900.0), (3, 910.0)];
        let text =
            rendered(turns.into_iter().flat_map(|(plan, j)| turn(plan, j)).collect()).unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn without_a_window_at_default_clocks_no_saving_is_claimed() {
        let text = rendered(vec![window(Some(1), 10, 1.0, 850.0)]).unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_job_without_an_energy_counter_shows_its_times_and_no_energy() {
        let text =
            rendered(vec![window(None, 10, 1.0, None), window(Some(1), 10, 1.01, None)]).unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_window_without_a_whole_step_is_not_shown() {
        assert_eq!(rendered(vec![window(None, 0, 0.0, 0.0)]), None);
        let text =
            rendered(vec![window(None, 0, 0.0, 0.0), window(Some(1), 3, 1.0, 850.0)]).unwrap();
        insta::assert_snapshot!(text);
    }
}
