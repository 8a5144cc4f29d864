//! What was measured under each plan, against the first window at default clocks, and what the
//! plan had predicted.

use pfo_protocol::{JobStatus, Uid, Window};

use super::quantity::{change, joules, percent, seconds, span};
use super::table::{Cell, Table, Tone, heading};
use crate::output::Look;

/// One row for each window, oldest first; none if nothing was measured.
pub(crate) fn render(job: &JobStatus, user: &dyn Fn(Uid) -> String, look: Look) -> Option<String> {
    if !job.windows.iter().any(is_measured) {
        return None;
    }
    let baseline = job.windows.iter().find(|window| window.plan.is_none() && is_measured(window));
    let mut table = Table::new(look)
        .left("Plan")
        .right("Steps")
        .right("Time/step")
        .right("Slowdown")
        .right("Pred. time")
        .right("Energy/step")
        .right("Saving")
        .right("Pred. energy");
    for window in &job.windows {
        let measured = Some(window).filter(|window| is_measured(window));
        // The baseline has nothing to be compared with but itself.
        let compared = measured
            .zip(baseline)
            .filter(|(window, baseline)| !std::ptr::eq::<Window>(*window, *baseline));
        let plan = window.plan.as_ref();
        table.row([
            Cell::text(name(window)),
            Cell::number(window.steps),
            Cell::option(measured.map(|window| seconds(window.iteration_time_s))),
            Cell::option(compared.map(|(window, baseline)| {
                change(window.iteration_time_s / baseline.iteration_time_s - 1.0)
            })),
            Cell::option(plan.and_then(|plan| plan.predicted_time_s).map(seconds)),
            Cell::option(measured.and_then(|window| window.iteration_energy_j).map(joules)),
            compared.and_then(saving).unwrap_or_else(Cell::empty),
            Cell::option(plan.and_then(|plan| plan.predicted_energy_j).map(joules)),
        ]);
    }
    let (owner, time) = (user(job.uid), span(job.measured_for_s));
    let title = format!("Measured for job {} of {owner} in the last {time}", job.job);
    let mut text = heading(&title, look) + &table.render();
    text.extend(partial_pipeline(job));
    Some(text)
}

fn is_measured(window: &Window) -> bool {
    let uses_energy = window.iteration_energy_j.is_none_or(|energy_j| energy_j > 0.0);
    window.steps > 0 && window.iteration_time_s > 0.0 && uses_energy
}

fn name(window: &Window) -> String {
    match &window.plan {
        Some(plan) => format!("{} {}", plan.number, plan.label),
        None => "default clocks".to_owned(),
    }
}

fn saving((window, baseline): (&Window, &Window)) -> Option<Cell> {
    Some(saved(1.0 - window.iteration_energy_j? / baseline.iteration_energy_j?))
}

/// A share of the energy that was saved.
pub(super) fn saved(saved: f64) -> Cell {
    let tone = match saved {
        saved if saved >= 0.0005 => Tone::Good,
        saved if saved <= -0.0005 => Tone::Bad,
        _ => Tone::Plain,
    };
    Cell::text(percent(saved)).tone(tone)
}

/// A plan predicts the energy of one rank of each stage. If this node measured fewer or more ranks,
/// the two cannot be compared.
fn partial_pipeline(job: &JobStatus) -> Option<String> {
    let partial = |window: &&Window| window.plan.is_some() && window.ranks != job.pp_degree;
    job.windows.iter().find(partial).map(|window| {
        format!(
            "Predicted energy is that of one rank for each of {} stages; {} ranks were measured \
             here.\n",
            job.pp_degree, window.ranks
        )
    })
}

#[cfg(test)]
mod tests {
    use pfo_protocol::PlanStatus;

    use super::*;

    fn window(plan: Option<u32>, steps: u64, time: f64, energy: impl Into<Option<f64>>) -> Window {
        let plan = plan.map(|number| PlanStatus {
            number,
            label: "p.json".to_owned(),
            predicted_time_s: None,
            predicted_energy_j: None,
            suspended: None,
            power_limits_w: Vec::new(),
        });
        let iteration_energy_j = energy.into();
        Window { plan, ranks: 4, steps, iteration_time_s: time, iteration_energy_j }
    }

    fn rendered(windows: Vec<Window>) -> Option<String> {
        let job = JobStatus {
            job: "j".parse().unwrap(),
            uid: Uid::ROOT,
            pp_degree: 4,
            plan: None,
            loaded: None,
            measured_by: None,
            swap_at_step: None,
            measured_for_s: 7500.0,
            energy_j: Some(0.0),
            windows,
            ranks: Vec::new(),
        };
        render(&job, &|_| "root".to_owned(), Look::default())
    }

    #[test]
    fn the_saving_is_against_the_first_window_at_default_clocks() {
        let text = rendered(vec![
            window(None, 10, 1.0, 1000.0),
            window(Some(1), 10, 1.01, 850.0),
            window(None, 10, 1.0, 1020.0),
        ])
        .unwrap();
        let line = |start: &str| text.lines().rfind(|line| line.starts_with(start)).unwrap();
        assert!(line("1 p.json").contains("+1.0 %"), "{text}");
        assert!(line("1 p.json").contains("15.0 %"), "{text}");
        assert!(line("default").contains("-2.0 %"), "{text}");
    }

    #[test]
    fn without_a_window_at_default_clocks_no_saving_is_claimed() {
        let text = rendered(vec![window(Some(1), 10, 1.0, 850.0)]).unwrap();
        assert!(!text.contains('%') && !text.contains("Saving"), "{text}");
    }

    #[test]
    fn a_job_without_an_energy_counter_shows_its_times_and_no_energy() {
        let text =
            rendered(vec![window(None, 10, 1.0, None), window(Some(1), 10, 1.01, None)]).unwrap();
        assert!(text.contains("+1.0 %"), "{text}");
        for energy in [" J", "Energy/step", "Saving"] {
            assert!(!text.contains(energy), "{energy}: {text}");
        }
    }

    #[test]
    fn a_window_without_a_whole_step_is_no_baseline_and_shows_no_figures() {
        assert_eq!(rendered(vec![window(None, 0, 0.0, 0.0)]), None);
        let text =
            rendered(vec![window(None, 0, 0.0, 0.0), window(Some(1), 3, 1.0, 850.0)]).unwrap();
        assert!(!text.contains("Saving") && !text.contains("NaN"), "{text}");
    }
}
