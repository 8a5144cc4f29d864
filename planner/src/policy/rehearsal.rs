//! A step whose clocks a policy changes one by one and replays on the profile.

use std::collections::HashMap;

use pfo_vocabulary::{Mhz, Watts};

use crate::late::clocks::{LateRun, with_late_clocks};
use crate::pipeline::Pipeline;
use crate::plan::Plan;
use crate::profile::measurement::Measurement;
use crate::replay::timeline::Moments;
use crate::replay::{Replay, account};
use crate::waits::per_stage::PerStage;

/// For each operation what was measured at its present clock.
#[derive(Clone)]
pub(crate) struct Rehearsal<'a> {
    pipeline: &'a Pipeline,
    measured: Vec<Measurement>,
}

impl<'a> Rehearsal<'a> {
    /// Every operation at its highest measured clock.
    pub(crate) fn at_highest_clocks(pipeline: &'a Pipeline) -> Self {
        Self::new(pipeline, |_| Mhz::MAX)
    }

    /// Each operation, by index, at a clock.
    pub(crate) fn new(pipeline: &'a Pipeline, clock: impl Fn(usize) -> Mhz) -> Self {
        let measured =
            (0..pipeline.network().len()).map(|index| row(pipeline, index, clock(index))).collect();
        Self { pipeline, measured }
    }

    /// Gives an operation another clock.
    pub(crate) fn set(&mut self, operation: usize, clock: Mhz) {
        self.measured[operation] = row(self.pipeline, operation, clock);
    }

    /// What was measured for an operation at its clock.
    pub(crate) fn measured(&self, operation: usize) -> Measurement {
        self.measured[operation]
    }

    /// Whether an operation's time depends on its clock.
    pub(crate) fn is_adjustable(&self, operation: usize) -> bool {
        let operation = &self.pipeline.network().operations[operation];
        operation.is_run() && !operation.instruction.is_fixed()
    }

    /// Time and energy of the step.
    pub(crate) fn replay(&self, p2p_power: &PerStage<Watts>) -> Replay {
        account(self.pipeline.network(), &self.run(), &p2p_power.into())
    }

    pub(crate) fn moments(&self) -> Moments {
        let LateRun { measured, .. } = self.run();
        Moments::new(self.pipeline.network(), |operation| measured[operation].time_s)
    }

    /// The step, late clocks included.
    fn run(&self) -> LateRun {
        let (network, profile) = (self.pipeline.network(), self.pipeline.profile());
        with_late_clocks(network, profile, self.measured.clone(), &HashMap::new())
    }

    /// The present clocks as a plan, with its replay as prediction.
    pub(crate) fn plan(&self, p2p_power: &PerStage<Watts>) -> Plan {
        let mut plan = self.pipeline.plan(|operation| self.measured[operation].frequency);
        plan.p2p_blocking_power_w = Some(p2p_power.clone());
        plan.predicted = Some(self.replay(p2p_power).into());
        plan
    }
}

/// The row of the highest measured clock up to `clock`, or of the lowest one if all are higher. A
/// transfer has no clock.
fn row(pipeline: &Pipeline, operation: usize, clock: Mhz) -> Measurement {
    let network = pipeline.network();
    let operation = &network.operations[operation];
    if let Some(unplanned) = network.unplanned(operation) {
        return unplanned;
    }
    let table =
        pipeline.profile().part_table(operation.stage, operation.instruction, operation.part());
    let up_to = table.partition_point(|row| row.frequency <= clock);
    let measured = table[up_to.saturating_sub(1)];
    // What does not depend on the clock is the same at each.
    let at = pipeline.profile().part_at(
        operation.stage,
        operation.instruction,
        operation.part(),
        measured.frequency,
    );
    at.unwrap_or(measured)
}
