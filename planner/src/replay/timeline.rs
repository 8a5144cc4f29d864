//! When each stage runs which instruction at which clock, where it waits, and which instructions
//! determine the length of the step.
//!
//! The same replay as [`crate::replay()`] with all its details, for pictures, tables and policies
//! that use waits.

use pfo_vocabulary::{Chunk, Instruction, Mhz, Microbatch};

use crate::error::PlanError;
use crate::late::clocks::LateRun;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::replay::measure;
use crate::step::network::Network;

/// A replayed step.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Seconds from the first instruction's start to the last one's end.
    pub iteration_time_s: f64,
    /// By stage, its instructions, first to last.
    pub stages: Vec<Vec<Span>>,
}

/// One instruction of a replayed step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The instruction.
    pub instruction: Instruction,
    /// The microbatch.
    pub microbatch: Microbatch,
    /// The model chunk of the stage.
    pub chunk: Chunk,
    /// Its clock.
    pub frequency: Mhz,
    /// Its start, in seconds since the start of the step.
    pub start_s: f64,
    /// Its end, in seconds since the start of the step.
    pub end_s: f64,
    /// Its energy in joules.
    pub energy_j: f64,
    /// The seconds that its stage waited before it.
    pub waited_s: f64,
    /// Whether it is on the critical path: a chain of instructions that takes the whole step, each
    /// started by the end of the one before.
    pub is_critical: bool,
}

impl Span {
    /// Its mean power in watts.
    pub fn power_w(&self) -> f64 {
        self.energy_j / (self.end_s - self.start_s)
    }
}

impl Timeline {
    /// Replays a plan over a profile.
    ///
    /// # Errors
    /// Those of [`crate::replay()`].
    pub fn new(profile: &Profile, plan: &Plan) -> Result<Self, PlanError> {
        let (network, LateRun { measured, .. }) = measure(profile, plan)?;
        let moments = Moments::new(&network, |operation| measured[operation].time_s);
        let mut is_critical = vec![false; network.len()];
        for operation in moments.critical_path(&network) {
            is_critical[operation] = true;
        }
        let span = |&operation: &u32| {
            let index = operation as usize;
            let Measurement { frequency, energy_j, .. } = measured[index];
            Span {
                instruction: network.operations[index].instruction,
                microbatch: network.operations[index].microbatch,
                chunk: network.operations[index].chunk,
                frequency,
                start_s: moments.start_s[index],
                end_s: moments.end_s[index],
                energy_j,
                waited_s: moments.waited_s[index],
                is_critical: is_critical[index],
            }
        };
        Ok(Self {
            iteration_time_s: moments.iteration_time_s(),
            stages: network.stages.iter().map(|ops| ops.iter().map(span).collect()).collect(),
        })
    }
}

/// When each operation runs if all start as early as possible, by index.
pub(crate) struct Moments {
    pub(crate) start_s: Vec<f64>,
    pub(crate) end_s: Vec<f64>,
    /// From the end of the operation before it on its stage, or from the start of the step.
    pub(crate) waited_s: Vec<f64>,
}

impl Moments {
    pub(crate) fn new(network: &Network, time_s: impl Fn(usize) -> f64) -> Self {
        let n = network.len();
        let mut moments =
            Self { start_s: vec![0.0; n], end_s: vec![0.0; n], waited_s: vec![0.0; n] };
        for index in 0..n {
            let mut free_s = 0.0_f64;
            let mut start_s = 0.0_f64;
            for before in predecessors(network, index) {
                let end_s = moments.end_s[before];
                start_s = start_s.max(end_s);
                let operation = &network.operations[before];
                if operation.stage == network.operations[index].stage && operation.is_run() {
                    free_s = free_s.max(end_s);
                }
            }
            moments.start_s[index] = start_s;
            moments.waited_s[index] = start_s - free_s;
            moments.end_s[index] = start_s + time_s(index);
        }
        moments
    }

    /// When the last operation ends.
    pub(crate) fn iteration_time_s(&self) -> f64 {
        self.end_s.iter().copied().fold(0.0, f64::max)
    }

    /// A chain from the operation that ends last back to the start of the step; each starts when
    /// the one before it in the step ends.
    fn critical_path(&self, network: &Network) -> Vec<usize> {
        let last = (0..network.len()).max_by(|&a, &b| self.end_s[a].total_cmp(&self.end_s[b]));
        std::iter::successors(last, |&operation| {
            predecessors(network, operation)
                .max_by(|&a, &b| self.end_s[a].total_cmp(&self.end_s[b]))
        })
        .collect()
    }
}

/// The operations that an operation waits for.
pub(crate) fn predecessors(
    network: &Network,
    operation: usize,
) -> impl Iterator<Item = usize> + '_ {
    network.predecessors[operation]
        .iter()
        .map(|&before| before as usize)
        .filter(|&before| before < network.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::Pipeline;
    use crate::replay::replay;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::{any_profile, unequal};
    use pfo_vocabulary::Watts;

    fn timeline(profile: &Profile, microbatches: u32) -> (Plan, Timeline) {
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::new(profile, schedule, microbatches).unwrap();
        let plan = pipeline.plan(|_| Mhz(1400));
        let timeline = Timeline::new(profile, &plan).unwrap();
        (plan, timeline)
    }

    #[test]
    fn the_waits_of_a_lighter_first_stage_are_found() {
        let (_, timeline) = timeline(&unequal(), 2);
        // F0 F1 wait B0 wait B1; the second stage runs F0 B0 F1 B1 from 0.05 s on.
        let waits: Vec<f64> = timeline.stages[0].iter().map(|span| span.waited_s).collect();
        for (found, expected) in waits.iter().zip([0.0, 0.0, 0.13, 0.08]) {
            assert!((found - expected).abs() < 1e-12, "{waits:?}");
        }
        let critical = |stage: usize| -> Vec<bool> {
            timeline.stages[stage].iter().map(|span| span.is_critical).collect()
        };
        assert_eq!(critical(0), [true, false, false, true]);
        assert_eq!(critical(1), [true; 4]);
        assert!((timeline.stages[1][0].power_w() - 25.0 / 0.06).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn the_critical_path_takes_the_whole_step(
            profile in any_profile(4, 3), microbatches in 1_u32..6,
        ) {
            let (plan, timeline) = timeline(&profile, microbatches);
            let spans = timeline.stages.iter().flatten();
            let critical_s: f64 =
                spans.filter(|s| s.is_critical).map(|s| s.end_s - s.start_s).sum();
            let replayed = replay(&profile, &plan, Watts(80.0)).unwrap();
            prop_assert!((critical_s - replayed.iteration_time_s).abs() < 1e-9);
            prop_assert_eq!(timeline.iteration_time_s, replayed.iteration_time_s);
        }

        #[test]
        fn waits_and_work_fill_a_stages_time(
            profile in any_profile(4, 3), microbatches in 1_u32..6,
        ) {
            let (_, timeline) = timeline(&profile, microbatches);
            for stage in &timeline.stages {
                let mut now_s = 0.0;
                for span in stage {
                    prop_assert!(span.waited_s >= 0.0);
                    now_s += span.waited_s;
                    prop_assert!((now_s - span.start_s).abs() < 1e-9);
                    now_s = span.end_s;
                }
            }
        }
    }
}
