//! The replay held against real runs. The figures are those of `docs/replay-and-reality.md`.

use std::collections::HashMap;
use std::process::Command;

use crate::measured_data::data;
use crate::measured_runs::{JOBS, Job, Loads, Window, deviation, mean};
use fastrand::Rng;
use pfo_planner::{
    Confidence, Deadline, Due, Frontier, Instruction, Interval, Measurement, Mhz, Options,
    PerStage, Plan, PlanError, PowerByClock, Profile, Rest, Scatter, Stage, interval, replay,
};
use serde_json::Value;

const PAGE: &str = include_str!("../../docs/replay-and-reality.md");

/// A load has one time in a profile; measured ones differ by microbatch. That moves the end of a
/// step by no more than this share.
const LOADS_DIFFER: f64 = 0.004;

/// What the tool beside the data finds for each window of a job; nothing and a word where it is
/// absent.
fn found_by_the_tool(job: &Job, loads: Loads) -> Option<Vec<f64>> {
    let tool = data("../tools/measured_runs.py")?;
    let runs = data(&format!("measured/{}.jsonl.xz", job.name))?;
    let flag = (loads == Loads::Counted).then_some("--loads");
    let output = Command::new("python3").arg(&tool).arg("--json").args(flag).arg(&runs).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        eprintln!("skipped: python3 {} does not run here", tool.display());
        return None;
    };
    let lines = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let found = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    Some(found.map(|found| found["longest_path_s"].as_f64().unwrap()).collect())
}

/// Seconds of a step of the instructions as they ran.
fn as_it_ran_s(job: &Job, window: &Window, loads: Loads) -> f64 {
    let (profile, plan) = window.as_it_ran(loads);
    replay(&profile, &plan, job.p2p_power).unwrap().iteration_time_s
}

#[test]
fn every_window_takes_the_longest_path_that_the_tool_finds() {
    for name in JOBS {
        let Some(job) = Job::read(name) else { return };
        for (loads, tolerance) in [(Loads::Left, 1e-12), (Loads::Counted, LOADS_DIFFER)] {
            let Some(found) = found_by_the_tool(&job, loads) else { return };
            assert_eq!(found.len(), job.windows.len());
            for (window, found_s) in job.windows.iter().zip(found) {
                let ours_s = as_it_ran_s(&job, window, loads);
                let Window { run, plan, .. } = window;
                assert!(
                    (ours_s / found_s - 1.0).abs() < tolerance,
                    "{name} {run}:{plan}, loads {loads:?}: {ours_s} s, not {found_s} s"
                );
            }
        }
    }
}

/// A row of the page's first table.
fn explained(job: &Job) -> String {
    let [left, counted] = [Loads::Left, Loads::Counted].map(|loads| {
        let shares = job.planned().map(|w| 100.0 * as_it_ran_s(job, w, loads) / w.step_s());
        let rests = job.planned().map(|w| 1e3 * (w.step_s() - as_it_ran_s(job, w, loads)));
        let (shares, rests): (Vec<f64>, Vec<f64>) = (shares.collect(), rests.collect());
        format!("{:.2} | {:.0} ± {:.0}", mean(&shares), mean(&rests), deviation(&rests))
    });
    format!("| {} | {left} | {counted} |", job.name)
}

/// Time and energy of the plans of a job, predicted from its profile.
struct Predicted<'a> {
    job: &'a Job,
    profile: &'a Profile,
    /// The mean of what the replay leaves of a step, in seconds.
    rest_s: f64,
}

impl<'a> Predicted<'a> {
    fn new(job: &'a Job) -> Self {
        let mut predicted = Self { job, profile: &job.profile, rest_s: 0.0 };
        let rests: Vec<f64> = job.planned().map(|w| w.step_s() - predicted.of(w).0).collect();
        predicted.rest_s = mean(&rests);
        predicted
    }

    /// Seconds and joules of a window's plan; during the rest every GPU waits.
    fn of(&self, window: &Window) -> (f64, f64) {
        let power = self.job.p2p_power;
        let replayed = replay(self.profile, &window.plan(Loads::Left), power).unwrap();
        let waiting_w = power.0 * f64::from(self.profile.num_stages());
        let Self { rest_s, .. } = *self;
        (replayed.iteration_time_s + rest_s, replayed.iteration_energy_j + rest_s * waiting_w)
    }

    /// Joules of a window's plan, if its step takes as long as measured.
    fn of_measured_time_j(&self, window: &Window) -> f64 {
        let (predicted_s, predicted_j) = self.of(window);
        let waiting_w = self.job.p2p_power.0 * f64::from(self.profile.num_stages());
        predicted_j + waiting_w * (window.step_s() - predicted_s)
    }

    /// For each plan of the job, what this says of its window.
    fn each(&self, percent: impl Fn(&Window) -> f64) -> Vec<f64> {
        self.job.planned().map(|window| 100.0 * percent(window)).collect()
    }
}

/// The root of the mean square, and the largest, of errors in percent.
fn size(errors: &[f64]) -> [f64; 2] {
    let squares: Vec<f64> = errors.iter().map(|error| error * error).collect();
    let worst = errors.iter().fold(0.0, |worst, error| f64::max(worst, error.abs()));
    [mean(&squares).sqrt(), worst]
}

/// A row of the page's second table.
fn predicted(job: &Job) -> String {
    let predicted = Predicted::new(job);
    let highest = job.highest();
    let (highest_s, highest_j) = predicted.of(highest);
    let energy = predicted.each(|w| predicted.of_measured_time_j(w) / w.step_j() - 1.0);
    let saving = predicted.each(|w| w.step_j() / highest.step_j() - predicted.of(w).1 / highest_j);
    let time = predicted.each(|w| predicted.of(w).0 / highest_s - w.step_s() / highest.step_s());
    let saved = predicted.each(|w| 1.0 - w.step_j() / highest.step_j());
    let [[energy, most_energy], [saving, most_saving], [time, most_time]] =
        [&energy, &saving, &time].map(|errors| size(errors));
    format!(
        "| {} | {:.1} | {energy:.2} | {most_energy:.2} | {saving:.2} | {most_saving:.2} | \
         {time:.2} | {most_time:.2} |",
        job.name,
        mean(&saved)
    )
}

/// A row of the page's third table: the highest clocks, and the same again a window later.
fn repeated(job: &Job) -> String {
    let highest: Vec<&Window> =
        job.windows.iter().filter(|w| w.run == "perseus" && w.highest_clocks).collect();
    let more = |of: fn(&Window) -> f64| 100.0 * (of(highest[1]) / of(highest[0]) - 1.0);
    format!("| {} | {:+.2} | {:+.2} |", job.name, more(Window::step_s), more(Window::step_j))
}

#[test]
fn the_page_has_the_figures_of_every_job() {
    let mut lacking = Vec::new();
    for name in JOBS {
        let Some(job) = Job::read(name) else { return };
        let rows = [explained(&job), predicted(&job), repeated(&job), told_by_one_step(&job)];
        lacking.extend(rows.into_iter().filter(|row| !PAGE.contains(row)));
    }
    assert!(lacking.is_empty(), "docs/replay-and-reality.md lacks\n{}", lacking.join("\n"));
}

#[test]
fn energies_of_measured_steps_are_replayed_to_about_one_percent() {
    for name in JOBS {
        let Some(job) = Job::read(name) else { return };
        let predicted = Predicted::new(&job);
        let errors = predicted.each(|w| predicted.of_measured_time_j(w) / w.step_j() - 1.0);
        let [rms, worst] = size(&errors);
        assert!(rms < 0.4 && worst < 1.1, "{name}: {rms} % rms, {worst} % at worst");
    }
}

#[test]
fn measured_durations_take_a_time_within_the_interval_that_was_said() {
    for name in JOBS {
        let Some(job) = Job::read(name) else { return };
        for window in job.planned().step_by(3) {
            let plan = window.plan(Loads::Left);
            let Interval { iteration_time_s: [from_s, to_s], .. } =
                interval(&job.profile, &plan, job.p2p_power).unwrap();
            let took_s = as_it_ran_s(&job, window, Loads::Left);
            let Window { run, plan, .. } = window;
            assert!(
                (from_s..=to_s).contains(&took_s),
                "{name} {run}:{plan}: {took_s} s, not {from_s} to {to_s} s"
            );
            assert!(to_s / from_s < 1.1, "{name} {run}:{plan}: {from_s} to {to_s} s");
        }
    }
}

/// What the instructions of a kind took in a window, as shares of what the profile says.
type Shares = HashMap<(Stage, Instruction), Vec<f64>>;

fn shares(job: &Job, window: &Window) -> Shares {
    let (ran, plan) = (window.as_it_ran(Loads::Left).0, window.plan(Loads::Left));
    let mut shares = Shares::new();
    for stage in &plan.stages {
        for planned in &stage.instructions {
            let of = (stage.stage, planned.instruction);
            let took = ran.at(of.0, of.1, Mhz(planned.microbatch.0 + 1)).unwrap();
            let Some(row) = job.profile.at(of.0, of.1, planned.frequency_mhz) else { continue };
            shares.entry(of).or_default().push(took.time_s / row.time_s);
        }
    }
    shares
}

/// Seconds of a step of a plan whose instructions take a share of their row that one of their kind took.
fn drawn_s(job: &Job, plan: &Plan, shares: &Shares, random: &mut Rng) -> f64 {
    let mut plan = plan.clone();
    let mut rows = Vec::new();
    for stage in &mut plan.stages {
        for planned in &mut stage.instructions {
            let of = (stage.stage, planned.instruction);
            let share = random.choice(&shares[&of]).unwrap();
            let row = job.profile.at(of.0, of.1, planned.frequency_mhz).unwrap();
            planned.frequency_mhz = Mhz(planned.microbatch.0 + 1);
            let frequency = planned.frequency_mhz;
            rows.push((of.0, of.1, Measurement { frequency, time_s: share * row.time_s, ..row }));
        }
    }
    let drawn = Profile::from_measurements(rows).unwrap();
    replay(&drawn, &plan, job.p2p_power).unwrap().iteration_time_s
}

/// How a plan with confidence does beside one without.
struct Sure {
    /// The shares of steps that are late, without confidence and with it.
    late: [f64; 2],
    /// The energy that confidence costs, as a share, and the time by which it is earlier.
    lost: f64,
    earlier: f64,
}

/// Plans for a deadline in a share of the range of a job's times, in steps that its windows make.
fn with_confidence(job: &Job, frontier: &Frontier, windows: &[Shares], share: f64) -> Sure {
    const DRAWS: usize = 400;
    let sure: Confidence = "95%".parse().unwrap();
    let [fastest_s, cheapest_s] =
        [Deadline::Fastest, Deadline::MinEnergy].map(|end| frontier.seconds(end));
    let due = Due::AtMost(fastest_s + share * (cheapest_s - fastest_s));
    let plain = frontier.plan_for(due).unwrap();
    let scatter = Scatter::of(&job.profile);
    let confident = frontier.plan_with_confidence(due, sure, scatter).unwrap();
    let mut random = Rng::with_seed(7);
    let late = [&plain, &confident].map(|plan| {
        let is_late = |_: &usize| {
            let window = random.choice(windows).unwrap();
            drawn_s(job, plan, window, &mut random) > due.seconds()
        };
        (0..DRAWS).filter(is_late).count() as f64 / DRAWS as f64
    });
    let [plain, confident] = [&plain, &confident].map(|plan| plan.predicted.unwrap());
    Sure {
        late,
        lost: confident.iteration_energy_j / plain.iteration_energy_j - 1.0,
        earlier: 1.0 - confident.iteration_time_s / plain.iteration_time_s,
    }
}

#[test]
fn a_plan_with_confidence_is_late_in_few_of_the_steps_that_measured_windows_make() {
    const MOST_LATE: f64 = 0.05;
    let mut lacking = Vec::new();
    for name in JOBS {
        let Some(job) = Job::read(name) else { return };
        let windows: Vec<Shares> = job.planned().map(|window| shares(&job, window)).collect();
        let ran = job.planned().next().unwrap().plan(Loads::Left);
        let pipeline = ran.pipeline(&job.profile).unwrap();
        let options = Options { plans: 60, ..Options::default() };
        let frontier = Frontier::optimize(&pipeline, job.p2p_power, options, &|_| {}).unwrap();
        for share in [0.4, 0.6, 0.8] {
            let Sure { late: [plain, late], lost, earlier } =
                with_confidence(&job, &frontier, &windows, share);
            assert!(late <= MOST_LATE, "{name}: {late}");
            assert!(plain > MOST_LATE, "{name}: {plain}");
            assert!((0.0..0.02).contains(&lost), "{name}: {lost}");
            let percents = [plain, late].map(|share| format!("{:.1}", 100.0 * share)).join(" | ");
            let (lost, earlier) = (100.0 * lost, 100.0 * earlier);
            let row = format!(
                "| {name} | {:.0} | {percents} | {earlier:.2} | {lost:.2} |",
                100.0 * share
            );
            lacking.extend(Some(row).filter(|row| !PAGE.contains(row)));
        }
    }
    assert!(lacking.is_empty(), "docs/replay-and-reality.md lacks\n{}", lacking.join("\n"));
}

/// What a step at the highest clocks says of the other plans of its job: the share of windows whose time lies
/// within the interval, and of those whose energy does, and the mean half-widths; or why it says nothing.
fn from_one_step(job: &Job) -> Result<[[f64; 2]; 2], PlanError> {
    let power = PerStage::from(PowerByClock::from(job.p2p_power));
    let highest = job.highest();
    let rest = Rest::of_step(highest.step_s(), &job.profile, &highest.plan(Loads::Left), &power)?;
    let others: Vec<&Window> = job.windows.iter().filter(|w| !w.highest_clocks).collect();
    let expected = |window: &&&Window| {
        rest.added_to(interval(&job.profile, &window.plan(Loads::Left), &power).unwrap())
    };
    let found = others.iter().map(|window| {
        let Interval { iteration_time_s, iteration_energy_j } = expected(&window);
        [(iteration_time_s, window.step_s()), (iteration_energy_j, window.step_j())].map(
            |([low, high], measured)| {
                let is_within = low <= measured && measured <= high;
                (f64::from(u8::from(is_within)), (high - low) / 2.0 / measured)
            },
        )
    });
    let found: Vec<[(f64, f64); 2]> = found.collect();
    let of = |figure: usize| {
        let share = mean(&found.iter().map(|found| found[figure].0).collect::<Vec<_>>());
        [share, mean(&found.iter().map(|found| found[figure].1).collect::<Vec<_>>())]
    };
    Ok([of(0), of(1)])
}

/// A row of the page's table of one measured step.
fn told_by_one_step(job: &Job) -> String {
    match from_one_step(job) {
        Ok([[time, wide_s], [energy, wide_j]]) => format!(
            "| {} | {:.0} | {:.1} | {:.0} | {:.1} |",
            job.name,
            100.0 * time,
            100.0 * wide_s,
            100.0 * energy,
            100.0 * wide_j
        ),
        Err(error) => format!("| {} | refused: {error} ||||", job.name),
    }
}

#[test]
fn one_measured_step_says_where_nine_of_ten_other_plans_of_its_job_lie() {
    for name in JOBS.into_iter().filter(|name| *name != "a40-t5-3b") {
        let Some(job) = Job::read(name) else { return };
        for [share, half_width] in from_one_step(&job).unwrap() {
            assert!(share >= 0.9, "{name}: {share}");
            assert!(half_width <= 0.015, "{name}: {half_width}");
        }
    }
}

#[test]
fn a_job_half_of_which_is_in_no_instruction_is_refused() {
    let Some(job) = Job::read("a40-t5-3b") else { return };
    let refused = from_one_step(&job).unwrap_err();
    assert!(matches!(refused, PlanError::Unpredictable { .. }), "{refused}");
}
