//! What was measured under each plan, against the first window at default clocks, and what the
//! plan had predicted.

use pfo_protocol::{JobStatus, PlanStatus, Uid, Window};

use super::quantity::{change, joules, percent, seconds, span};
use super::table::{Cell, Table, Tone, heading};
use crate::output::Look;

/// One row for each window, oldest first; none if nothing was measured.
pub(crate) fn render(job: &JobStatus, user: &dyn Fn(Uid) -> String, look: Look) -> Option<String> {
    if !job.windows.iter().any(is_measured) {
        return None;
    }
    let baseline = baseline(job);
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
        // Default clocks save nothing, whatever differs between two windows of them.
        let compared = measured.zip(baseline).filter(|(window, _)| window.plan.is_some());
        let plan = window.plan.as_ref();
        table.row([
            Cell::text(name(window)),
            Cell::number(window.steps),
            Cell::option(measured.map(|window| seconds(window.iteration_time_s))),
            Cell::option(compared.map(|(window, baseline)| change(slowdown(window, baseline)))),
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

/// The first window at default clocks.
fn baseline(job: &JobStatus) -> Option<&Window> {
    job.windows.iter().find(|window| window.plan.is_none() && is_measured(window))
}

/// A window and what to compare it with.
pub(crate) struct Measured<'a> {
    /// The figures.
    pub(crate) window: &'a Window,
    baseline: Option<&'a Window>,
}

impl<'a> Measured<'a> {
    /// What was measured of a job, oldest first.
    pub(crate) fn all(job: &'a JobStatus) -> impl DoubleEndedIterator<Item = Self> {
        let first = baseline(job);
        job.windows.iter().filter(|window| is_measured(window)).map(move |window| {
            // Default clocks save nothing, whatever differs between two windows of them.
            let baseline = first.filter(|_| window.plan.is_some());
            Self { window, baseline }
        })
    }

    /// What was measured of what the job runs now.
    pub(crate) fn in_force(job: &'a JobStatus) -> Option<Self> {
        let number = |plan: &Option<PlanStatus>| plan.as_ref().map(|plan| plan.number);
        let last = Self::all(job).next_back()?;
        (number(&last.window.plan) == number(&job.plan)).then_some(last)
    }

    /// How much longer a step takes than at default clocks, as a share.
    pub(crate) fn slowdown(&self) -> Option<f64> {
        self.baseline.map(|baseline| slowdown(self.window, baseline))
    }

    /// How much less energy a step takes than at default clocks, as a share.
    pub(crate) fn saved(&self) -> Option<f64> {
        saved(self.window, self.baseline?)
    }
}

fn slowdown(window: &Window, baseline: &Window) -> f64 {
    window.iteration_time_s / baseline.iteration_time_s - 1.0
}

fn saved(window: &Window, baseline: &Window) -> Option<f64> {
    Some(1.0 - window.iteration_energy_j? / baseline.iteration_energy_j?)
}

/// How a saving is meant, which is printed with one decimal.
pub(crate) fn tone_of_saving(saved: f64) -> Tone {
    match saved {
        saved if saved >= 0.0005 => Tone::Good,
        saved if saved <= -0.0005 => Tone::Bad,
        _ => Tone::Plain,
    }
}

fn is_measured(window: &Window) -> bool {
    let uses_energy = window.iteration_energy_j.is_none_or(|energy_j| energy_j > 0.0);
    window.steps > 0 && window.iteration_time_s > 0.0 && uses_energy
}

/// What ran.
pub(crate) fn name(window: &Window) -> String {
    match &window.plan {
        Some(plan) => format!("{} {}", plan.number, plan.label),
        None => "default clocks".to_owned(),
    }
}

fn saving((window, baseline): (&Window, &Window)) -> Option<Cell> {
    Some(saving_cell(saved(window, baseline)?))
}

/// A share of the energy that was saved.
pub(super) fn saving_cell(saved: f64) -> Cell {
    Cell::text(percent(saved)).tone(tone_of_saving(saved))
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

    fn job(windows: Vec<Window>) -> JobStatus {
        JobStatus {
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
        }
    }

    fn rendered(windows: Vec<Window>) -> Option<String> {
        render(&job(windows), &|_| "root".to_owned(), Look::default())
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
        assert!(!line("default").contains('%'), "{text}");
    }

    #[test]
    fn what_is_in_force_is_the_last_window_of_the_plan_that_runs() {
        let windows = vec![window(None, 10, 1.0, 1000.0), window(Some(1), 10, 1.01, 850.0)];
        let plan = windows[1].plan.clone();
        let mut job = job(windows);
        assert!(Measured::in_force(&job).is_none());
        job.plan = plan;
        let measured = Measured::in_force(&job).unwrap();
        assert!((measured.saved().unwrap() - 0.15).abs() < 1e-9);
        assert!((measured.slowdown().unwrap() - 0.01).abs() < 1e-9);
        job.windows.remove(0);
        assert_eq!(Measured::in_force(&job).unwrap().saved(), None);
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
