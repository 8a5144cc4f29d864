//! Whether smoothing pays: plans from noisy measurements, replayed on the tables that these
//! measured.

mod true_tables;

use pfo_planner::{
    Frontier, LowerBound, Noise, Options, Pipeline, Profile, Schedule, Spread, Watts, replay,
};
use true_tables::{Measuring, true_profile};

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

#[test]
fn little_noise_is_left_alone_and_smoothing_it_anyway_does_no_harm() {
    let truth = true_profile(3, 1410);
    let (off, on) = compared(&truth, 5, 0.005, Noise::Auto);
    assert_eq!((on.waste, on.late), (off.waste, off.late));
    let (off, on) = compared(&truth, 5, 0.005, Noise::Isotonic);
    assert!(on.waste < 1.05 * off.waste && on.late < 1.05 * off.late, "{off:?} {on:?}");
}
