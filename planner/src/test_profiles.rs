//! Small profiles for tests: made up, or drawn by proptest.

use pfo_vocabulary::{Instruction, Mhz, Stage};
use proptest::prelude::*;

use crate::pipeline::Pipeline;
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::schedule::name::Schedule;
use crate::schedule::settings::Settings;
use crate::step::delays::Delays;

/// Two stages, in no order.
pub(crate) const GOOD_CSV: &str = "stage,instruction,frequency,time,energy\n\
                                   1,forward,1410,0.5,20\n\
                                   1,backward,1410.0,1.0,40\n\
                                   0,backward,1395,1.1,39\n\
                                   0,backward,1410,1.0,40\n\
                                   0,forward,1410,0.5,20\n";

/// Why a CSV is no profile.
pub(crate) fn refused(csv: &str) -> String {
    Profile::from_csv(csv.as_bytes()).unwrap_err().to_string()
}

/// That a message has all these words.
pub(crate) fn assert_says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "no {word:?} in {message:?}");
    }
}

/// A profile of stages with these (time s, energy J) rows of forward and backward, clocks falling
/// from 1400 MHz.
pub(crate) fn profile(stages: &[[&[(f64, f64)]; 2]]) -> Profile {
    let mut rows = Vec::new();
    for (stage, tables) in (0..).map(Stage).zip(stages) {
        for (instruction, table) in
            [Instruction::Forward, Instruction::Backward].into_iter().zip(tables)
        {
            for (index, &(time_s, energy_j)) in (0..).zip(*table) {
                let frequency = Mhz(1400 - 10 * index);
                rows.push((stage, instruction, Measurement { frequency, time_s, energy_j }));
            }
        }
    }
    Profile::from_measurements(rows).unwrap()
}

/// Four stages of unequal weight whose new clocks are late by this, in seconds.
pub(crate) fn four_stages(microbatches: u32, switch_latency_s: f64) -> Pipeline {
    let clocks = (800..=1400).step_by(50);
    let profile = power_law(&[1.0, 0.9, 1.1, 0.95], [0.05, 0.1], 0.8, &clocks);
    let delays = Delays { switch_latency_s, ..Delays::default() };
    let settings = Settings { delays, ..Settings::default() };
    let schedule = Schedule::OneForwardOneBackward;
    Pipeline::with_settings(&profile, schedule, microbatches, &settings).unwrap()
}

/// Stages whose forward and backward take `at_highest_s` (times the stage's scale) at the highest
/// of the clocks, and more at lower ones by a power law; the lowest clock takes the least energy.
pub(crate) fn power_law(
    stage_scale: &[f64],
    at_highest_s: [f64; 2],
    exponent: f64,
    clocks_mhz: &(impl Iterator<Item = u32> + Clone),
) -> Profile {
    let highest = f64::from(clocks_mhz.clone().max().unwrap());
    let mut rows = Vec::new();
    for (stage, scale) in (0..).map(Stage).zip(stage_scale) {
        for (instruction, at_highest_s) in
            [Instruction::Forward, Instruction::Backward].into_iter().zip(at_highest_s)
        {
            for mhz in clocks_mhz.clone() {
                let time_s = scale * at_highest_s * (highest / f64::from(mhz)).powf(exponent);
                let energy_j = scale * f64::from(mhz);
                let frequency = Mhz(mhz);
                rows.push((stage, instruction, Measurement { frequency, time_s, energy_j }));
            }
        }
    }
    Profile::from_measurements(rows).unwrap()
}

/// Two stages, the second one heavier, three clocks each.
pub(crate) fn unequal() -> Profile {
    profile(&[
        [
            &[(0.050, 20.0), (0.056, 17.0), (0.068, 15.5)],
            &[(0.100, 41.0), (0.110, 36.0), (0.130, 33.0)],
        ],
        [
            &[(0.060, 25.0), (0.066, 22.0), (0.080, 20.0)],
            &[(0.120, 50.0), (0.133, 45.0), (0.155, 41.0)],
        ],
    ])
}

/// Any small profile: up to `stages` stages with up to `clocks` rows of any shape, noise included.
pub(crate) fn any_profile(stages: usize, clocks: usize) -> impl Strategy<Value = Profile> {
    let table = || prop::collection::vec((tenths_of_ms(), 1.0_f64..60.0), 1..=clocks);
    prop::collection::vec([table(), table()], 1..=stages).prop_map(|stages| {
        let stages: Vec<[&[(f64, f64)]; 2]> =
            stages.iter().map(|[f, b]| [f.as_slice(), b.as_slice()]).collect();
        profile(&stages)
    })
}

/// Seconds, not closer to each other than a measurement could tell.
fn tenths_of_ms() -> impl Strategy<Value = f64> {
    (100_u32..2000).prop_map(|tenths| f64::from(tenths) * 1e-4)
}
