//! What noise of a profile costs, by what is done about it: plans made from measurements that scatter,
//! replayed over the tables that these are measurements of.

use fastrand::Rng;
use pfo_planner::{
    Frontier, LowerBound, Measurement, Noise, Options, Pipeline, Profile, Schedule, Spread, Watts,
    interval, replay,
};

use crate::Result;
use crate::bench_profile::BenchProfile;
use crate::extent::Extent;
use crate::report::{Cell, Report};

/// Standard deviations of a row's time and energy, as shares.
const NOISES: [(f64, f64); 3] = [(0.0, 0.02), (0.005, 0.01), (0.01, 0.02)];

/// Auto smoothed every table by itself before, as isotonic does.
const TREATMENTS: [Noise; 3] = [Noise::Off, Noise::Isotonic, Noise::Auto];

/// GPUs of one model differ by about this share in what they draw.
const LEVELS: f64 = 0.015;

/// What the plans of one measurement come to, as shares.
#[derive(Clone, Copy, Default)]
struct Outcome {
    /// What the best plan in time takes more than the least possible, as a mean over deadlines.
    loss: f64,
    /// What plans take more energy than they say, as a mean.
    optimism: f64,
    /// Plans whose energy and time are within the interval that was said.
    held: f64,
}

/// Measures profiles anew and plans with each.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let bench = BenchProfile::find()?;
    let mut rows = Vec::new();
    let stepped = bench.stepped();
    for BenchProfile { name, profile, p2p_power, .. } in
        [Some(&bench), stepped.as_ref()].into_iter().flatten()
    {
        for (time_sd, energy_sd) in NOISES {
            let mut cells = vec![
                Cell::text(*name),
                Cell::Figure(100.0 * time_sd, 1),
                Cell::Figure(100.0 * energy_sd, 1),
            ];
            let outcomes = outcomes(profile, *p2p_power, (time_sd, energy_sd), extent)?;
            cells.extend(outcomes.iter().map(|outcome| Cell::Figure(100.0 * outcome.loss, 2)));
            cells.extend(outcomes.iter().map(|outcome| Cell::Figure(100.0 * outcome.optimism, 2)));
            cells.push(Cell::Figure(100.0 * outcomes[TREATMENTS.len() - 1].held, 0));
            rows.push(cells);
        }
    }
    report.table(
        "noise",
        "What a profile that scatters costs, by its treatment: energy above the least possible, and \
         above what was said",
        &[
            ("profile", "profile"),
            ("time_sd", "time %"),
            ("energy_sd", "energy %"),
            ("loss_off", "loss %, off"),
            ("loss_isotonic", "isotonic"),
            ("loss_auto", "auto"),
            ("optimism_off", "optimism %, off"),
            ("optimism_isotonic", "isotonic"),
            ("optimism_auto", "auto"),
            ("held", "in interval %"),
        ],
        &rows,
    );
    Ok(())
}

/// The means over several measurements, for each treatment.
fn outcomes(
    profile: &Profile,
    p2p_power: Watts,
    noise: (f64, f64),
    extent: Extent,
) -> Result<[Outcome; TREATMENTS.len()]> {
    let measurements = extent.of(4, 1);
    let mut random = Rng::with_seed(1);
    let mut sums = [Outcome::default(); TREATMENTS.len()];
    for _ in 0..measurements {
        let truth = of_other_gpus(profile, &mut random)?;
        let measured = measured(&truth, noise, &mut random)?;
        for (sum, treatment) in sums.iter_mut().zip(TREATMENTS) {
            let planned = treatment.treat(&measured).profile;
            let outcome = outcome(&truth, &planned, p2p_power, extent)?;
            sum.loss += outcome.loss / f64::from(measurements);
            sum.optimism += outcome.optimism / f64::from(measurements);
            sum.held += outcome.held / f64::from(measurements);
        }
    }
    Ok(sums)
}

fn outcome(
    truth: &Profile,
    planned: &Profile,
    p2p_power: Watts,
    extent: Extent,
) -> Result<Outcome> {
    const DEADLINES: u32 = 50;
    let microbatches = extent.of(12, 4);
    let pipeline = |profile| Pipeline::new(profile, Schedule::OneForwardOneBackward, microbatches);
    let options = Options { plans: extent.of(100, 10), spread: Spread::Useful };
    let frontier = Frontier::optimize(&pipeline(planned)?, p2p_power, options, &|_| {})?;
    let mut outcome = Outcome::default();
    let mut replays = Vec::new();
    let plans = frontier.plans().len();
    for (place, said) in frontier.plans().enumerate() {
        let plan = frontier.plan(place)?;
        let replayed = replay(truth, &plan, p2p_power)?;
        let expected = interval(planned, &plan, p2p_power)?;
        let figures = [
            (expected.iteration_time_s, replayed.iteration_time_s),
            (expected.iteration_energy_j, replayed.iteration_energy_j),
        ];
        let is_held = figures.iter().all(|([from, to], value)| (from..=to).contains(&value));
        outcome.held += f64::from(u8::from(is_held)) / plans as f64;
        let excess = replayed.iteration_energy_j / said.iteration_energy_j - 1.0;
        outcome.optimism += excess / plans as f64;
        replays.push(replayed);
    }
    let bound = LowerBound::new(&pipeline(truth)?, p2p_power);
    let range_s = bound.cheapest_s() - bound.fastest_s();
    for tick in 1..=DEADLINES {
        // From where on even bad luck leaves a plan in time.
        let share = 0.2 + 0.8 * f64::from(tick) / f64::from(DEADLINES);
        let deadline_s = bound.fastest_s() + share * range_s;
        let in_time = replays.iter().filter(|replay| replay.iteration_time_s <= deadline_s);
        let least_j = in_time.map(|replay| replay.iteration_energy_j).fold(f64::INFINITY, f64::min);
        outcome.loss += (least_j / bound.energy_j(deadline_s) - 1.0) / f64::from(DEADLINES);
    }
    Ok(outcome)
}

/// The same layers on GPUs of which each draws a little more or less at every clock.
fn of_other_gpus(profile: &Profile, random: &mut Rng) -> Result<Profile> {
    let levels: Vec<f64> =
        (0..profile.num_stages()).map(|_| 1.0 + LEVELS * normal(random)).collect();
    let rows = profile.rows().map(|(stage, instruction, row)| {
        let energy_j = levels[stage.index()] * row.energy_j;
        (stage, instruction, Measurement { energy_j, ..row })
    });
    Ok(Profile::from_measurements(rows)?)
}

fn measured(truth: &Profile, (time, energy): (f64, f64), random: &mut Rng) -> Result<Profile> {
    let rows = truth.rows().map(|(stage, instruction, row)| {
        let time_s = row.time_s * (1.0 + time * normal(random));
        let energy_j = row.energy_j * (1.0 + energy * normal(random));
        (stage, instruction, Measurement { time_s, energy_j, ..row })
    });
    Ok(Profile::from_measurements(rows)?)
}

/// Nearly of the standard normal distribution: the sum of twelve.
fn normal(random: &mut Rng) -> f64 {
    (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
}
