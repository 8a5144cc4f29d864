//! Whether smoothing pays: plans from noisy measurements, replayed on the tables that these
//! measured.

use crate::true_tables::{Measuring, true_profile};
use pfo_planner::{
    Frontier, Interval, LowerBound, Measurement, Mhz, Noise, Options, Pipeline, Profile, Schedule,
    Spread, Watts, interval, replay,
};

const P2P_POWER: Watts = Watts(83.0);

fn pipeline(profile: &Profile) -> Pipeline {
    Pipeline::new(profile, Schedule::OneForwardOneBackward, 4).unwrap()
}

/// How far plans are from the truth.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// The share of energy that is wasted, as a mean over deadlines: what the best plan that really
    /// keeps the deadline takes more than the least that is possible.
    waste: f64,
    /// The share of time by which plans take longer than they say, as a mean over plans.
    late: f64,
}

fn outcome(truth: &Profile, planned: &Profile) -> Outcome {
    const DEADLINES: u32 = 20;
    let options = Options { plans: 24, spread: Spread::Useful };
    let frontier = Frontier::optimize(&pipeline(planned), P2P_POWER, options, &|_| {}).unwrap();
    let mut late = 0.0;
    let mut replays = Vec::new();
    for (place, point) in frontier.plans().enumerate() {
        let replayed = replay(truth, &frontier.plan(place).unwrap(), P2P_POWER).unwrap();
        late += replayed.iteration_time_s / point.iteration_time_s - 1.0;
        replays.push(replayed);
    }

    let bound = LowerBound::new(&pipeline(truth), P2P_POWER);
    let range_s = bound.cheapest_s() - bound.fastest_s();
    let mut waste = 0.0;
    // From where on even bad luck leaves a plan in time.
    for tick in 1..=DEADLINES {
        let share = 0.2 + 0.8 * f64::from(tick) / f64::from(DEADLINES);
        let deadline_s = bound.fastest_s() + share * range_s;
        let in_time = replays.iter().filter(|replay| replay.iteration_time_s <= deadline_s);
        let least_j = in_time.map(|replay| replay.iteration_energy_j).fold(f64::INFINITY, f64::min);
        waste += least_j / bound.energy_j(deadline_s) - 1.0;
    }
    Outcome { waste: waste / f64::from(DEADLINES), late: late / replays.len() as f64 }
}

/// Without and with what is done about noise, over several measurements of the same.
fn compared(truth: &Profile, repeats: u32, error: f64, noise: Noise) -> (Outcome, Outcome) {
    const MEASUREMENTS: u32 = 8;
    let mut measuring = Measuring::new();
    let (mut off, mut on) = (Outcome::default(), Outcome::default());
    for _ in 0..MEASUREMENTS {
        let measured = measuring.profile(truth, repeats, error);
        let treated = noise.treat(&measured).profile;
        for (sum, profile) in [(&mut off, &measured), (&mut on, &treated)] {
            let outcome = outcome(truth, profile);
            sum.waste += outcome.waste / f64::from(MEASUREMENTS);
            sum.late += outcome.late / f64::from(MEASUREMENTS);
        }
    }
    println!("{repeats} x {error}, {noise}: {off:.4?} without, {on:.4?} with");
    (off, on)
}

#[test]
fn smoothing_avoids_more_waste_and_lateness_the_noisier_the_measurements() {
    for limit_mhz in [1410, 1305] {
        let truth = true_profile(3, limit_mhz);
        for (repeats, error, least_gain) in [(3, 0.02, 0.05), (1, 0.05, 0.25), (3, 0.1, 0.25)] {
            let (off, on) = compared(&truth, repeats, error, Noise::Auto);
            assert!(off.waste.is_finite());
            assert!(on.waste <= (1.0 - least_gain) * off.waste, "{off:?} {on:?}");
            assert!(on.late < off.late, "{off:?} {on:?}");
        }
    }
}

/// As if the memory ran slower from 1200 MHz on: a step that smoothing must not erase.
fn stepped_profile() -> Profile {
    let regular = true_profile(4, 1410);
    let rows = regular.rows().map(|(stage, instruction, row)| {
        let factor = if row.frequency < Mhz(1200) { 1.0 } else { 1.08 };
        let (time_s, energy_j) = (factor * row.time_s, factor * row.energy_j);
        (stage, instruction, Measurement { time_s, energy_j, ..row })
    });
    Profile::from_measurements(rows).unwrap()
}

#[test]
fn a_step_in_the_curve_survives_and_smoothing_pays_there_too() {
    let truth = stepped_profile();
    let (off, on) = compared(&truth, 1, 0.02, Noise::Auto);
    let (_, isotonic) = compared(&truth, 1, 0.02, Noise::Isotonic);
    assert!(on.waste < 0.8 * off.waste, "{off:?} {on:?}");
    assert!(on.waste < isotonic.waste && on.late < 0.7 * off.late, "{on:?} {isotonic:?}");
}

#[test]
fn little_noise_of_one_stage_is_left_alone_and_smoothing_it_anyway_does_no_harm() {
    let truth = true_profile(1, 1410);
    let (off, on) = compared(&truth, 5, 0.005, Noise::Auto);
    assert_eq!((on.waste, on.late), (off.waste, off.late));
    let (off, on) = compared(&truth, 5, 0.005, Noise::Isotonic);
    assert!(on.waste < 1.05 * off.waste && on.late < 1.05 * off.late, "{off:?} {on:?}");
}

#[test]
fn the_interval_of_a_prediction_holds_what_happens() {
    for (truth, repeats, error) in [
        (true_profile(4, 1410), 1, 0.03),
        (stepped_profile(), 1, 0.03),
        (true_profile(1, 1305), 3, 0.02),
    ] {
        let (mut held, mut all, mut widest) = ([0; 2], 0, 0.0_f64);
        let mut measuring = Measuring::new();
        for _ in 0..6 {
            let measured = measuring.profile(&truth, repeats, error);
            for noise in [Noise::Auto, Noise::Off] {
                let planned = noise.treat(&measured).profile;
                let options = Options { plans: 8, spread: Spread::Useful };
                let frontier =
                    Frontier::optimize(&pipeline(&planned), P2P_POWER, options, &|_| {}).unwrap();
                for place in 0..frontier.plans().len() {
                    let plan = frontier.plan(place).unwrap();
                    let happens = replay(&truth, &plan, P2P_POWER).unwrap();
                    let Interval { iteration_time_s, iteration_energy_j } =
                        interval(&planned, &plan, P2P_POWER).unwrap();
                    let found = [
                        (iteration_time_s, happens.iteration_time_s),
                        (iteration_energy_j, happens.iteration_energy_j),
                    ];
                    for (held, ([from, to], value)) in held.iter_mut().zip(found) {
                        *held += u32::from((from..=to).contains(&value));
                        widest = widest.max(to / from - 1.0);
                    }
                    all += 1;
                }
            }
        }
        println!("{repeats} x {error}: {held:?} of {all}, up to {widest}");
        assert!(held.iter().all(|&held| f64::from(held) >= 0.95 * f64::from(all)));
        assert!(widest < 0.25, "{widest}");
    }
}
