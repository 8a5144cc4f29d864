//! The exact frontier as pipelines grow, and as their stages become different.

use std::time::Instant;

use pfo_planner::{Instruction, LowerBound, Measurement, Pipeline, Profile, Schedule, Stage};

use crate::Result;
use crate::bench_profile::BenchProfile;
use crate::extent::Extent;
use crate::report::{Cell, Report};

/// How far times and energies of a stage are off those of another that does the same.
const DIFFERENCE: f64 = 0.1;

const PIPELINES: [Grown; 6] = [
    Grown { stages: 8, microbatches: 96, is_uneven: false },
    Grown { stages: 8, microbatches: 96, is_uneven: true },
    Grown { stages: 16, microbatches: 128, is_uneven: false },
    Grown { stages: 16, microbatches: 128, is_uneven: true },
    Grown { stages: 32, microbatches: 256, is_uneven: false },
    Grown { stages: 32, microbatches: 256, is_uneven: true },
];

/// A pipeline whose stages take turns with those of a profile.
#[derive(Clone, Copy)]
pub(crate) struct Grown {
    stages: u16,
    microbatches: u32,
    /// No stage is like another.
    is_uneven: bool,
}

/// Measures the exact frontier of each, next to the first.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let bench = BenchProfile::find()?;
    let repetitions = extent.of(3, 1);
    let grown = PIPELINES.map(|grown| extent.of(grown, grown.shrunk()));
    let pipelines: Vec<Pipeline> =
        grown.iter().map(|grown| grown.pipeline(&bench.profile)).collect::<Result<_>>()?;
    let mut pieces = [0; PIPELINES.len()];
    let mut times_s = PIPELINES.map(|_| Vec::new());
    for _ in 0..repetitions {
        for ((pipeline, pieces), times_s) in pipelines.iter().zip(&mut pieces).zip(&mut times_s) {
            let began = Instant::now();
            *pieces = LowerBound::new(pipeline, bench.p2p_power).pieces();
            times_s.push(began.elapsed().as_secs_f64());
        }
    }
    let medians_s = times_s.map(|mut times_s| {
        times_s.sort_by(f64::total_cmp);
        times_s[repetitions / 2]
    });
    let rows: Vec<_> = grown
        .iter()
        .zip(pieces)
        .zip(medians_s)
        .map(|((grown, pieces), median_s)| {
            vec![
                Cell::Text(format!("{} x {}", grown.stages, grown.microbatches)),
                Cell::text(if grown.is_uneven { "all different" } else { "as measured" }),
                Cell::count(pieces as u64),
                Cell::Figure(median_s, 3),
                Cell::Figure(median_s / medians_s[0], 1),
                Cell::Figure(1e6 * median_s / pieces as f64, 0),
            ]
        })
        .collect();
    report.table(
        "planning_growth",
        &format!("The exact frontier of larger pipelines ({})", bench.name),
        &[
            ("pipeline", "stages x microbatches"),
            ("stages", "stages"),
            ("pieces", "pieces"),
            ("median_s", "median s"),
            ("ratio", "to the first"),
            ("piece_us", "µs each piece"),
        ],
        &rows,
    );
    Ok(())
}

impl Grown {
    /// The same of a size that takes no time.
    fn shrunk(self) -> Self {
        Self { stages: self.stages / 4, microbatches: self.microbatches / 16, ..self }
    }

    /// A pipeline whose stages all differ.
    pub(crate) fn uneven(stages: u16, microbatches: u32) -> Self {
        Self { stages, microbatches, is_uneven: true }
    }

    pub(crate) fn pipeline(self, profile: &Profile) -> Result<Pipeline> {
        let mut rows = Vec::new();
        let mut differences = Differences::default();
        for stage in 0..self.stages {
            for instruction in [Instruction::Forward, Instruction::Backward] {
                let (slower, dearer) = if self.is_uneven {
                    (differences.factor(), differences.factor())
                } else {
                    (1.0, 1.0)
                };
                for row in profile.table(Stage(stage % profile.num_stages()), instruction) {
                    let time_s = slower * row.time_s;
                    let energy_j = dearer * row.energy_j;
                    rows.push((
                        Stage(stage),
                        instruction,
                        Measurement { time_s, energy_j, ..*row },
                    ));
                }
            }
        }
        let profile = Profile::from_measurements(rows)?;
        Ok(Pipeline::new(&profile, Schedule::OneForwardOneBackward, self.microbatches)?)
    }
}

/// Factors around one, no two alike, and the same in every run.
#[derive(Default)]
struct Differences(f64);

impl Differences {
    fn factor(&mut self) -> f64 {
        const GOLDEN_RATIO: f64 = 0.618_033_988_749_895;
        self.0 = (self.0 + GOLDEN_RATIO).fract();
        1.0 + DIFFERENCE * (2.0 * self.0 - 1.0)
    }
}
