//! How EnvPipe changes clocks while training runs: after each step it raises some of the clocks on
//! what waits show to be the critical path, until that is the envelope or nothing is left to raise.
//!
//! The caller runs each step, by a replay or in a running job, and reports what instructions took.

use pfo_vocabulary::{Instruction, Mhz, Stage, Watts};

use super::envpipe::{EnvPipe, EnvPipeType, Reconfigure, is_on_envelope};
use super::grid::Grid;
use super::outcome::{End, Outcome};
use super::rehearsal::Rehearsal;
use crate::error::PlanError;
use crate::pipeline::Pipeline;
use crate::plan::Plan;
use crate::replay::timeline::{Moments, predecessors};
use crate::waits::per_stage::PerStage;

/// Steps without a change after which its clocks are final.
const QUIET_STEPS: u32 = 11;

/// The largest number of steps. Clocks only rise, so it always ends, but possibly late.
const MOST_STEPS: u32 = 50_000;

/// A run of EnvPipe: the clocks of a step that is repeated.
pub struct Reconfiguration<'a> {
    envpipe: EnvPipe,
    pipeline: &'a Pipeline,
    p2p_power: PerStage<Watts>,
    grid: Grid,
    on_envelope: Vec<bool>,
    step: Rehearsal<'a>,
    rounds: u32,
    quiet: u32,
    end: Option<End>,
}

impl EnvPipe {
    pub(super) fn outcome(
        &self,
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
    ) -> Result<Outcome, PlanError> {
        let mut reconfiguration = Reconfiguration::start(*self, pipeline, p2p_power)?;
        let end = reconfiguration.rehearse();
        let rounds = reconfiguration.rounds();
        Ok(Outcome::found(vec![reconfiguration.plan()], 0, rounds, end))
    }
}

impl<'a> Reconfiguration<'a> {
    /// Starts from the clocks of its type.
    ///
    /// # Errors
    /// If no clock was measured for every instruction.
    pub fn start(
        envpipe: EnvPipe,
        pipeline: &'a Pipeline,
        p2p_power: impl Into<PerStage<Watts>>,
    ) -> Result<Self, PlanError> {
        let p2p_power = p2p_power.into();
        let grid = Grid::new(pipeline)?;
        let operations = &pipeline.network().operations;
        let on_envelope: Vec<bool> =
            operations.iter().map(|operation| is_on_envelope(operation, pipeline)).collect();
        let valleys = match envpipe.kind {
            EnvPipeType::Baseline => Vec::new(),
            _ => envpipe.valleys(pipeline, &grid, &p2p_power),
        };
        let step = Rehearsal::new(pipeline, |index| match envpipe.kind {
            EnvPipeType::Baseline => grid.highest(),
            EnvPipeType::Envelope if on_envelope[index] => grid.highest(),
            _ => valleys[operations[index].stage.index()],
        });
        let end = (envpipe.reconfigure == Reconfigure::Default).then_some(End::Settled);
        Ok(Self { envpipe, pipeline, p2p_power, grid, on_envelope, step, rounds: 0, quiet: 0, end })
    }

    /// The plan to run next, with its replay as prediction.
    pub fn plan(&self) -> Plan {
        self.step.plan(&self.p2p_power)
    }

    /// The number of steps observed.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Why it stopped; `None` before that.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Reconfigures after a step on [`Self::plan`]. `time_s` has the seconds that an instruction
    /// took at its clock, or `None` to use the profile.
    pub fn observe(&mut self, time_s: impl Fn(Stage, Instruction, Mhz) -> Option<f64>) {
        let operations = &self.pipeline.network().operations;
        let moments = Moments::new(self.pipeline.network(), |index| {
            let operation = &operations[index];
            let profiled = self.step.measured(index);
            Some(operation)
                .filter(|operation| operation.is_run())
                .and_then(|operation| {
                    time_s(operation.stage, operation.instruction, profiled.frequency)
                })
                .unwrap_or(profiled.time_s)
        });
        self.advance(&moments);
    }

    /// Runs to the end on the profile.
    pub(super) fn rehearse(&mut self) -> End {
        loop {
            match self.end {
                Some(end) => return end,
                None => self.advance(&self.step.moments()),
            }
        }
    }

    fn advance(&mut self, moments: &Moments) {
        self.rounds += 1;
        let mut path = self.critical_path(moments);
        path.retain(|&operation| self.step.is_adjustable(operation));
        let is_envelope = path.iter().all(|&operation| self.on_envelope[operation]);
        self.quiet = if !is_envelope && self.raise(&path) { 0 } else { self.quiet + 1 };
        if self.quiet == QUIET_STEPS {
            self.end = Some(if is_envelope { End::Settled } else { End::Saturated });
        } else if self.rounds == MOST_STEPS {
            self.end = Some(End::Bounded);
        }
    }

    /// Raises clocks of the path; returns whether any changed.
    fn raise(&mut self, path: &[usize]) -> bool {
        let clock = |operation: usize| self.step.measured(operation).frequency;
        let below =
            path.iter().copied().filter(|&operation| clock(operation) < self.grid.highest());
        let raise_step = self.envpipe.raise_step;
        let (raised, by): (Vec<usize>, Mhz) = match self.envpipe.reconfigure {
            Reconfigure::Greedy => (below.take(1).collect(), Mhz(3 * raise_step.0)),
            Reconfigure::Default | Reconfigure::Balanced => {
                let lowest = below.clone().map(clock).min();
                let at_lowest = below.filter(|&operation| Some(clock(operation)) == lowest);
                (at_lowest.collect(), raise_step)
            }
        };
        let mut has_changed = false;
        for operation in raised {
            let before = self.step.measured(operation);
            self.step.set(operation, self.grid.raised(before.frequency, by));
            has_changed |= self.step.measured(operation) != before;
        }
        has_changed
    }

    /// From the end of the step back to its begin: to the instruction before on the same stage, or,
    /// where the stage waited for longer than a few transfers, to the one that it waited for.
    fn critical_path(&self, moments: &Moments) -> Vec<usize> {
        let network = self.pipeline.network();
        let (transfer_s, unseen_s) = match network.delays.transfer_time_s {
            0.0 => (self.envpipe.transfer_s, self.envpipe.transfer_s),
            // It is part of the waits.
            measured_s => (measured_s, 0.0),
        };
        let last = network.stages[0].last().map(|&index| index as usize);
        std::iter::successors(last, |&operation| {
            let stage = network.operations[operation].stage;
            let is_own = |before: &usize| {
                let before = &network.operations[*before];
                before.stage == stage && before.is_run()
            };
            let own = predecessors(network, operation).find(is_own);
            let other = predecessors(network, operation).find(|before| !is_own(before));
            let receives_s = moments.waited_s[operation] + unseen_s;
            if receives_s < self.envpipe.threshold_scale * transfer_s {
                own.or(other)
            } else {
                other.or(own)
            }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::power_law;

    fn pipeline(stage_scale: [f64; 4]) -> Pipeline {
        let profile = power_law(&stage_scale, [0.02, 0.04], 0.8, &(1170..=1530).step_by(30));
        Pipeline::new(&profile, Schedule::OneForwardOneBackward, 8).unwrap()
    }

    /// Runs the clocks found on `believed` on what is true, until they are final.
    fn run(believed: &Pipeline, truth: &Pipeline) -> (Plan, u32, End) {
        let mut found = Reconfiguration::start(EnvPipe::default(), believed, Watts(0.0)).unwrap();
        while found.end().is_none() {
            found.observe(|stage, instruction, clock| {
                Some(truth.profile().at(stage, instruction, clock)?.time_s)
            });
        }
        (found.plan(), found.rounds(), found.end().unwrap())
    }

    #[test]
    fn on_a_job_that_measures_as_its_profile_it_does_what_it_does_in_rehearsal() {
        let pipeline = pipeline([1.0, 1.2, 1.0, 1.0]);
        let mut rehearsed =
            Reconfiguration::start(EnvPipe::default(), &pipeline, Watts(0.0)).unwrap();
        let end = rehearsed.rehearse();
        let (plan, rounds, found_end) = run(&pipeline, &pipeline);
        assert_eq!((plan, rounds, found_end), (rehearsed.plan(), rehearsed.rounds(), end));
    }

    #[test]
    fn a_stage_that_is_slower_than_its_profile_is_sped_up() {
        let highest = |plan: &Plan| {
            let clocks = plan.stages[1].instructions.iter();
            clocks.filter(|planned| planned.frequency_mhz == Mhz(1530)).count()
        };
        let believed = pipeline([1.0, 1.0, 1.0, 1.4]);
        let (as_believed, ..) = run(&believed, &believed);
        let (found, ..) = run(&believed, &pipeline([1.0, 1.6, 1.0, 1.4]));
        assert!(highest(&found) > highest(&as_believed));
    }

    #[test]
    fn without_reconfiguration_there_is_nothing_to_observe() {
        let pipeline = pipeline([1.0; 4]);
        let envpipe = EnvPipe { reconfigure: Reconfigure::Default, ..EnvPipe::default() };
        let found = Reconfiguration::start(envpipe, &pipeline, Watts(0.0)).unwrap();
        assert_eq!((found.rounds(), found.end()), (0, Some(End::Settled)));
    }
}
