//! Tables as a GPU would have them if nothing disturbed a measurement, and measurements of them.

use std::f64::consts::TAU;
use std::fmt::Write;

use pfo_planner::{Instruction, Measurement, Mhz, Profile, Stage};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// A part of the time does not depend on the clock; above `limit_mhz` none does, because the power
/// limit throttles. Power is that of an idle GPU, of leakage and of switching.
pub(crate) fn true_profile(stages: u16, limit_mhz: u32) -> Profile {
    let mut rows = Vec::new();
    for stage in 0..stages {
        let scale = 1.0 + 0.12 * f64::from(stage % 3);
        for (instruction, at_highest_s) in
            [(Instruction::Forward, 0.05), (Instruction::Backward, 0.1)]
        {
            for mhz in (855..=1410).step_by(15) {
                let speed = f64::from(mhz.min(limit_mhz)) / 1410.0;
                let time_s = scale * at_highest_s * (0.25 + 0.75 / speed);
                let clock = f64::from(mhz) / 1410.0;
                let energy_j = time_s * (90.0 + 60.0 * clock + 230.0 * clock.powf(3.4));
                let measured = Measurement { frequency: Mhz(mhz), time_s, energy_j };
                rows.push((Stage(stage), instruction, measured));
            }
        }
    }
    Profile::from_measurements(rows).unwrap()
}

/// Measures everything so often, with a normal error of this share; the same at every run.
pub(crate) struct Measuring(TestRng);

impl Measuring {
    pub(crate) fn new() -> Self {
        Self(TestRng::deterministic_rng(RngAlgorithm::ChaCha))
    }

    pub(crate) fn csv(&mut self, truth: &Profile, repeats: u32, error: f64) -> String {
        let mut csv = "window,stage,instruction,frequency,time,energy\n".to_owned();
        for (stage, instruction, row) in truth.rows() {
            for window in 0..repeats {
                let time_s = row.time_s * (1.0 + error * self.normal());
                let energy_j = row.energy_j * (1.0 + error * self.normal());
                let mhz = row.frequency.0;
                writeln!(csv, "{window},{stage},{instruction},{mhz},{time_s},{energy_j}").unwrap();
            }
        }
        csv
    }

    pub(crate) fn profile(&mut self, truth: &Profile, repeats: u32, error: f64) -> Profile {
        Profile::from_csv(self.csv(truth, repeats, error).as_bytes()).unwrap()
    }

    /// By Box and Muller.
    fn normal(&mut self) -> f64 {
        let (radius, angle): (f64, f64) =
            (self.0.random_range(1e-12..1.0), self.0.random_range(0.0..1.0));
        (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
    }
}
