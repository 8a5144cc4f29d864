//! EnvPipe (Choi et al., USENIX ATC 2023), as its DeepSpeed fork works while training runs.
//!
//! Instructions on the envelope (the last stage, the first forward and the last backward of every
//! stage) run at the highest clock, all others where their stage's energy is least. Then, step by
//! step, clocks on what waits say is the critical path are raised, until that is the envelope.
//!
//! The profile takes the place of its profiler, and the replay that of its measured waits. Where
//! the original takes the shortest wait that it ever measured for the time of a transfer, that time
//! is a parameter here.

use std::fmt;

use pfo_vocabulary::{Instruction, Mhz, Stage, Watts};

use super::grid::Grid;
use super::rehearsal::Rehearsal;
use crate::pipeline::Pipeline;
use crate::step::operation::Operation;
use crate::waits::per_stage::PerStage;

/// EnvPipe's configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EnvPipe {
    /// The clocks that it starts from.
    pub kind: EnvPipeType,
    /// How it changes them.
    pub reconfigure: Reconfigure,
    /// The distance between the clocks that it profiles: 90 MHz for every GPU that it knows.
    pub profile_step: Mhz,
    /// The step by which it raises a clock: 30 MHz; `greedy` takes three steps at once.
    pub raise_step: Mhz,
    /// The seconds that receiving takes without a wait, for a pipeline without a transfer time; not
    /// added to the step. EnvPipe's own sample shows 0.6 ms.
    pub transfer_s: f64,
    /// The shortest wait that counts as one, in transfers: 4 in its single-node examples.
    pub threshold_scale: f64,
}

impl Default for EnvPipe {
    fn default() -> Self {
        Self {
            kind: EnvPipeType::Envelope,
            reconfigure: Reconfigure::Balanced,
            profile_step: Mhz(90),
            raise_step: Mhz(30),
            transfer_s: 0.6e-3,
            threshold_scale: 4.0,
        }
    }
}

/// EnvPipe's `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvPipeType {
    /// Every instruction at the highest clock.
    Baseline,
    /// Every instruction at the clock of least energy of its stage.
    Uniform,
    /// The envelope at the highest clock, other instructions at the clock of least energy of their
    /// stage.
    Envelope,
}

/// EnvPipe's `reconfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconfigure {
    /// No changes.
    Default,
    /// Raises the last instruction of the path that is below the highest clock.
    Greedy,
    /// Raises all instructions of the path at its lowest clock.
    Balanced,
}

impl EnvPipe {
    /// For each stage the clock at which its GPU takes the least energy in a step, waiting
    /// included, if all stages have that clock (the last one only if it is slowed, too).
    pub(super) fn valleys(
        &self,
        pipeline: &Pipeline,
        grid: &Grid,
        p2p_power: &PerStage<Watts>,
    ) -> Vec<Mhz> {
        let network = pipeline.network();
        let last = network.stages.len() - 1;
        let is_pinned = |stage: usize| stage == last && self.kind != EnvPipeType::Uniform;
        let mut least = vec![(f64::INFINITY, grid.highest()); network.stages.len()];
        for clock in grid.spaced(self.profile_step) {
            let step = Rehearsal::new(pipeline, |index| {
                let stage = network.operations[index].stage.index();
                if is_pinned(stage) { grid.highest() } else { clock }
            });
            let length_s = step.replay(p2p_power).iteration_time_s;
            for (stage, operations) in network.stages.iter().enumerate() {
                let measured = || operations.iter().map(|&index| step.measured(index as usize));
                let busy_s: f64 = measured().map(|m| m.time_s).sum();
                let busy_j: f64 = measured().map(|m| m.energy_j).sum();
                let Watts(waiting_w) = p2p_power.of(Stage(stage as u16));
                let energy_j = busy_j + waiting_w * (length_s - busy_s);
                if energy_j < least[stage].0 && !is_pinned(stage) {
                    least[stage] = (energy_j, clock);
                }
            }
        }
        least.into_iter().map(|(_, clock)| clock).collect()
    }
}

/// The path of an ideal pipeline whose last stage never waits.
pub(super) fn is_on_envelope(operation: &Operation, pipeline: &Pipeline) -> bool {
    let last_stage = Stage(pipeline.profile().num_stages() - 1);
    let is_first_forward =
        operation.instruction == Instruction::Forward && operation.microbatch.0 == 0;
    let is_last_backward = operation.instruction.is_backward()
        && operation.microbatch.0 + 1 == pipeline.num_microbatches();
    operation.stage == last_stage || is_first_forward || is_last_backward
}

impl fmt::Display for EnvPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            EnvPipeType::Baseline => return f.write_str("baseline"),
            EnvPipeType::Uniform => "uniform",
            EnvPipeType::Envelope => "envelope",
        };
        let reconfigure = match self.reconfigure {
            Reconfigure::Default => "default",
            Reconfigure::Greedy => "greedy",
            Reconfigure::Balanced => "balanced",
        };
        write!(f, "{kind}-{reconfigure}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::End;
    use super::*;
    use crate::plan::{Plan, Prediction};
    use crate::schedule::name::Schedule;
    use crate::test_profiles::power_law;

    const POWER: Watts = Watts(0.0);

    /// The pipeline of the reference's examples: 20 and 40 ms at 1530 MHz, slower at lower clocks
    /// with exponent 0.8 and cheapest at 1170 MHz.
    fn pipeline(schedule: Schedule, stage_scale: [f64; 4], microbatches: u32) -> Pipeline {
        let profile = power_law(&stage_scale, [0.02, 0.04], 0.8, &(1170..=1530).step_by(30));
        Pipeline::new(&profile, schedule, microbatches).unwrap()
    }

    fn one_f_one_b(stage_scale: [f64; 4], microbatches: u32) -> Pipeline {
        pipeline(Schedule::OneForwardOneBackward, stage_scale, microbatches)
    }

    fn run(pipeline: &Pipeline, kind: EnvPipeType, reconfigure: Reconfigure) -> (Plan, u32, End) {
        let envpipe = EnvPipe { kind, reconfigure, ..EnvPipe::default() };
        let mut outcome = envpipe.outcome(pipeline, &POWER.into()).unwrap();
        (outcome.plans.remove(0), outcome.rounds, outcome.end)
    }

    fn time_s(plan: &Plan) -> f64 {
        let Some(Prediction { iteration_time_s, .. }) = plan.predicted else { panic!() };
        iteration_time_s
    }

    #[test]
    fn the_envelope_starts_at_the_highest_clock_and_the_rest_in_its_stages_valley() {
        let (plan, rounds, _) =
            run(&one_f_one_b([1.0; 4], 8), EnvPipeType::Envelope, Reconfigure::Default);
        assert_eq!(rounds, 0);
        for stage in &plan.stages {
            for planned in &stage.instructions {
                let is_envelope = stage.stage.0 == 3
                    || (planned.instruction == Instruction::Forward && planned.microbatch.0 == 0)
                    || (planned.instruction == Instruction::Backward && planned.microbatch.0 == 7);
                let expected = if is_envelope { Mhz(1530) } else { Mhz(1170) };
                assert_eq!(planned.frequency_mhz, expected);
            }
        }
    }

    #[test]
    fn uniform_slows_the_last_stage_too() {
        let (plan, ..) = run(&one_f_one_b([1.0; 4], 8), EnvPipeType::Uniform, Reconfigure::Default);
        let clocks = plan.stages.iter().flat_map(|stage| &stage.instructions);
        assert!(clocks.into_iter().all(|planned| planned.frequency_mhz == Mhz(1170)));
    }

    #[test]
    fn baseline_never_slows_anything() {
        for reconfigure in [Reconfigure::Default, Reconfigure::Greedy, Reconfigure::Balanced] {
            let (plan, ..) = run(&one_f_one_b([1.0; 4], 8), EnvPipeType::Baseline, reconfigure);
            assert!((time_s(&plan) - 0.66).abs() < 1e-9);
        }
    }

    #[test]
    fn the_cases_of_the_references_simulation_take_its_steps_and_its_times() {
        use Reconfigure::{Balanced, Greedy};
        const MOST_STEPS_APART: u32 = 3;
        const MORE_FORWARDS: Schedule = Schedule::EnvPipe;
        const EVEN: [f64; 4] = [1.0; 4];
        // There, transfers of 0.6 ms hold up the stages, so that times are compared as multiples of
        // the last one, at the highest clocks.
        let check =
            |pipeline: &Pipeline, reconfigure, (rounds, end), [start, last, all_max]: [f64; 3]| {
                let time_at = |kind, reconfigure| {
                    let (plan, rounds, end) = run(pipeline, kind, reconfigure);
                    (time_s(&plan), rounds, end)
                };
                let (all_max_s, ..) = time_at(EnvPipeType::Baseline, Reconfigure::Default);
                let (start_s, ..) = time_at(EnvPipeType::Envelope, Reconfigure::Default);
                let (last_s, found, found_end) = time_at(EnvPipeType::Envelope, reconfigure);
                assert!(u32::abs_diff(found, rounds) <= MOST_STEPS_APART, "{found}, not {rounds}");
                assert_eq!(found_end, end);
                for (ours_s, theirs_ms) in [(start_s, start), (last_s, last)] {
                    let (ours, theirs) = (ours_s / all_max_s, theirs_ms / all_max);
                    assert!((ours - theirs).abs() < 0.005, "{ours}, not {theirs}");
                }
            };
        let even = pipeline(MORE_FORWARDS, EVEN, 8);
        check(&even, Balanced, (31, End::Settled), [740.9, 667.8, 667.8]);
        check(&even, Greedy, (58, End::Settled), [740.9, 667.8, 667.8]);
        // Theirs ends saturated: held up by transfers, its path never is the whole envelope.
        check(&one_f_one_b(EVEN, 8), Balanced, (45, End::Settled), [766.3, 676.8, 671.4]);
        let heavy_at_the_end = pipeline(MORE_FORWARDS, [1.0, 1.0, 1.0, 1.1], 8);
        check(&heavy_at_the_end, Balanced, (20, End::Settled), [746.9, 715.8, 715.8]);
        let heavy_in_the_middle = pipeline(MORE_FORWARDS, [1.0, 1.2, 1.0, 1.0], 16);
        check(&heavy_in_the_middle, Balanced, (32, End::Saturated), [1492.0, 1235.6, 1231.8]);
    }

    #[test]
    fn a_pipeline_whose_last_stage_is_the_heaviest_settles_on_the_envelope() {
        for reconfigure in [Reconfigure::Greedy, Reconfigure::Balanced] {
            let pipeline = one_f_one_b([1.0, 1.0, 1.0, 1.4], 8);
            let (plan, _, end) = run(&pipeline, EnvPipeType::Envelope, reconfigure);
            assert_eq!(end, End::Settled);
            let slowed = plan.stages[0].instructions.iter();
            assert!(slowed.into_iter().any(|planned| planned.frequency_mhz < Mhz(1530)));
        }
    }

    #[test]
    fn a_heavier_stage_in_the_middle_leaves_it_saturated() {
        let pipeline = one_f_one_b([1.0, 1.2, 1.0, 1.0], 16);
        let (_, _, end) = run(&pipeline, EnvPipeType::Envelope, Reconfigure::Balanced);
        assert_eq!(end, End::Saturated);
    }
}
