//! What smoothing does to tables, and what it leaves alone.

use std::fs::{self, File};

use crate::measured_data::data;
use crate::noisy_profiles::profiles;
use crate::true_tables::{Measuring, true_profile};
use crate::yardstick::judged_by_python;
use pfo_planner::{
    Finding, Frontier, Instruction, Measurement, Mhz, Noise, Options, Pipeline, Profile, Quantity,
    Schedule, Spread, Stage, Warning, Watts, summarised, warnings,
};
use proptest::prelude::*;

fn power_w(row: &Measurement) -> f64 {
    row.energy_j / row.time_s
}

fn tables(profile: &Profile) -> impl Iterator<Item = &[Measurement]> {
    let free = Instruction::ALL.into_iter().filter(|instruction| !instruction.is_fixed());
    free.flat_map(move |instruction| {
        (0..profile.num_stages()).map(move |stage| profile.table(Stage(stage), instruction))
    })
}

fn assert_close(a: &Profile, b: &Profile) {
    for (a, b) in a.rows().zip(b.rows()) {
        assert!((a.2.time_s / b.2.time_s - 1.0).abs() < 1e-12, "{a:?} {b:?}");
        assert!((a.2.energy_j / b.2.energy_j - 1.0).abs() < 1e-12, "{a:?} {b:?}");
    }
}

proptest! {
    #[test]
    fn smoothed_times_fall_and_powers_rise_with_the_clock(profile in profiles(1..=2, 12)) {
        let smooth = Noise::Isotonic.treat(&profile).profile;
        for table in tables(&smooth) {
            for pair in table.windows(2) {
                prop_assert!(pair[0].time_s >= pair[1].time_s);
                prop_assert!(power_w(&pair[0]) <= power_w(&pair[1]) * (1.0 + 1e-12));
            }
        }
    }

    #[test]
    fn what_is_smooth_already_stays_as_it_is(profile in profiles(1..=2, 12)) {
        let once = Noise::Isotonic.treat(&profile).profile;
        let twice = Noise::Isotonic.treat(&once);
        assert_close(&twice.profile, &once);
        prop_assert_eq!(twice.smoothed, []);
    }

    #[test]
    fn clocks_instructions_of_fixed_time_and_off_change_nothing(profile in profiles(1..=2, 12)) {
        prop_assert_eq!(&Noise::Off.treat(&profile).profile, &profile);
        for noise in [Noise::Auto, Noise::Isotonic, Noise::Factor(0.05)] {
            let treated = noise.treat(&profile).profile;
            for (before, after) in profile.rows().zip(treated.rows()) {
                prop_assert_eq!(before.2.frequency, after.2.frequency);
                prop_assert!(!before.1.is_fixed() || before == after);
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_order_of_lines_does_not_matter(seed in any::<u64>()) {
        let csv = Measuring::new().csv(&true_profile(1, 1410), 3, 0.05);
        let (header, lines) = csv.split_once('\n').unwrap();
        let mut lines: Vec<&str> = lines.lines().collect();
        let mut state = seed;
        lines.sort_by_cached_key(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        });
        let shuffled = format!("{header}\n{}\n", lines.join("\n"));
        let read = |csv: &str| Profile::from_csv(csv.as_bytes()).unwrap();
        for noise in [Noise::Auto, Noise::Isotonic, Noise::Factor(0.05)] {
            let [a, b] = [&csv, &shuffled].map(|csv| noise.treat(&read(csv)));
            assert_close(&a.profile, &b.profile);
            prop_assert_eq!(a.smoothed.len(), b.smoothed.len());
        }
    }
}

#[test]
fn true_tables_stay_as_they_are_to_the_bit_and_have_nothing_odd() {
    for limit_mhz in [1410, 1305] {
        let truth = true_profile(2, limit_mhz);
        for noise in [Noise::Auto, Noise::Isotonic, Noise::Factor(0.05)] {
            assert_eq!(noise.treat(&truth).profile, truth);
        }
        assert_eq!(warnings(&truth, &[]), []);
    }
}

#[test]
fn published_tables_are_not_touched_by_default_and_only_what_is_odd_is_reported() {
    let read = |name: &str| {
        let csv = data(&format!("profiles/{name}"))?;
        Some(Profile::from_csv(File::open(csv).unwrap()).unwrap())
    };
    let Some(a100) = read("gpt3-175b-a100.csv") else { return };
    let Some(a40) = read("gpt3-175b-a40.csv") else { return };
    for profile in [&a100, &a40] {
        let treated = Noise::default().treat(profile);
        assert_eq!((&treated.profile, treated.smoothed), (profile, vec![]));
    }
    assert_eq!(warnings(&a100, &[]), []);
    // The backward runs faster at 960 MHz than at 1140, on every stage.
    let found = warnings(&a40, &[]);
    assert_eq!(found.len(), 8, "{found:?}");
    for Warning { instruction, finding, .. } in &found {
        let Finding::NotMonotone { quantity, frequencies_mhz, .. } = finding else {
            panic!("{finding}")
        };
        assert_eq!((*instruction, *quantity), (Instruction::Backward, Quantity::Time));
        assert!(frequencies_mhz.contains(&Mhz(960)), "{frequencies_mhz:?}");
    }
    let [line] = &summarised(&found)[..] else { panic!("{:?}", summarised(&found)) };
    assert!(line.starts_with("stages 0-7, backward: time does not fall"), "{line}");
}

#[test]
fn noise_is_smoothed_by_default_and_told() {
    let truth = true_profile(2, 1410);
    for repeats in [1, 4] {
        let measured = Measuring::new().profile(&truth, repeats, 0.05);
        let treated = Noise::default().treat(&measured);
        assert_eq!(treated.smoothed.len(), 8, "time and power of all four tables");
        let told = summarised(&warnings(&measured, &treated.smoothed));
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(
            told[0].starts_with("stages 0-1, forward: time was smoothed, by up to"),
            "{told:?}"
        );
        let told = summarised(&warnings(&measured, &[]));
        assert!(told[0].starts_with("stages 0-1, forward: time scatters by"), "{told:?}");
    }
}

/// The true profile with other times at some clocks.
fn odd_profile(factor: impl Fn(Mhz) -> f64) -> Profile {
    let regular = true_profile(1, 1410);
    let rows = regular.rows().map(|(stage, instruction, mut row)| {
        row.time_s *= factor(row.frequency);
        (stage, instruction, row)
    });
    Profile::from_measurements(rows).unwrap()
}

#[test]
fn what_repeats_establish_is_reported_but_not_smoothed_by_default() {
    // As if the memory ran at a higher clock below 1200 MHz, which real GPUs do.
    let truth = odd_profile(|clock| if clock < Mhz(1200) { 0.8 } else { 1.0 });
    let measured = Measuring::new().profile(&truth, 40, 0.1);
    let at = |profile: &Profile, mhz: u32| {
        profile.at(Stage(0), Instruction::Backward, Mhz(mhz)).unwrap().time_s
    };
    let steps = |profile: &Profile| at(profile, 1200) / at(profile, 1185);
    let treated = Noise::default().treat(&measured);
    assert!(!treated.smoothed.is_empty());
    assert_eq!(steps(&treated.profile), steps(&measured));
    assert!(steps(&measured) > 1.15);
    let told = summarised(&warnings(&measured, &treated.smoothed));
    assert!(told.iter().any(|line| line.contains("time does not fall")), "{told:?}");
    assert_eq!(steps(&Noise::Isotonic.treat(&measured).profile), 1.0);
}

#[test]
fn a_row_far_from_its_neighbours_is_reported_and_does_not_spoil_them() {
    let truth = odd_profile(|clock| if clock == Mhz(1200) { 3.0 } else { 1.0 });
    let measured = Measuring::new().profile(&truth, 1, 0.02);
    let outlier = |warning: &Warning| match warning.finding {
        Finding::Outlier { frequency_mhz, quantity: Quantity::Time, .. } => Some(frequency_mhz),
        _ => None,
    };
    let found: Vec<Mhz> = warnings(&measured, &[]).iter().filter_map(outlier).collect();
    assert_eq!(found, [Mhz(1200), Mhz(1200)]);
    for (noise, stays) in [(Noise::Auto, true), (Noise::Isotonic, false)] {
        let treated = noise.treat(&measured).profile;
        for ((_, _, smooth), (_, _, truth)) in treated.rows().zip(truth.rows()) {
            let is_close = (smooth.time_s / truth.time_s - 1.0).abs() < 0.06;
            assert_eq!(is_close, truth.frequency != Mhz(1200) || stays, "{noise} {smooth:?}");
        }
    }
}

#[test]
fn the_python_yardstick_agrees_with_plans_over_the_smoothed_profile_as_csv() {
    let measured = Measuring::new().profile(&true_profile(3, 1410), 3, 0.05);
    let smooth = Noise::default().treat(&measured).profile;
    let directory = tempfile::tempdir().unwrap();
    let [csv, path] = ["smoothed.csv", "plan.json"].map(|name| directory.path().join(name));
    fs::write(&csv, smooth.to_csv()).unwrap();
    let read = Profile::from_csv(File::open(&csv).unwrap()).unwrap();
    assert_eq!(Noise::default().treat(&read).profile, read, "it must not be smoothed again");

    let pipeline = Pipeline::new(&smooth, Schedule::OneForwardOneBackward, 6).unwrap();
    let options = Options { plans: 4, spread: Spread::Useful };
    let frontier = Frontier::optimize(&pipeline, Watts(80.0), options, &|_| {}).unwrap();
    for (place, point) in frontier.plans().enumerate() {
        fs::write(&path, frontier.plan(place).unwrap().to_json().unwrap()).unwrap();
        let Some((time_s, energy_j)) = judged_by_python(&csv, &path) else { return };
        assert!((time_s - point.iteration_time_s).abs() < 1e-9, "{place}");
        assert!((energy_j / point.iteration_energy_j - 1.0).abs() < 1e-9, "{place}");
    }
}
