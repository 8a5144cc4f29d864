//! Plans for tests, written without the planner.

use pfo_protocol::{ClockTable, Instruction, Mhz, PlannedUnit, Predicted, Unit};
use serde_json::json;

/// What a stage runs in a step of a 1F1B pipeline.
#[must_use]
pub(crate) fn one_f_one_b(stage: u32, stages: u32, microbatches: u32) -> Vec<(Instruction, u32)> {
    let warmup = stages - 1 - stage;
    let mut order = Vec::new();
    let mut backwards = 0..microbatches;
    for forward in 0..microbatches {
        order.push((Instruction::Forward, forward));
        if forward >= warmup {
            order.extend(backwards.next().map(|backward| (Instruction::Backward, backward)));
        }
    }
    order.extend(backwards.map(|backward| (Instruction::Backward, backward)));
    order
}

/// The step time and energy that every plan here predicts.
const PREDICTED: Predicted = Predicted { time_s: 1.5, energy_j: 600.0 };

/// A plan for a 1F1B pipeline.
#[derive(Clone, Debug)]
pub struct TestPlan {
    microbatches: u32,
    clocks: Vec<Vec<u32>>,
}

impl TestPlan {
    /// A plan whose clocks, in MHz, follow from the stage and the position in its step.
    pub fn new(stages: u32, microbatches: u32, clock: impl Fn(u32, usize) -> u32) -> Self {
        let of_stage = |stage| (0..2 * microbatches as usize).map(|i| clock(stage, i)).collect();
        Self { microbatches, clocks: (0..stages).map(of_stage).collect() }
    }

    /// A plan in which every instruction of a stage has a clock of its own, from `base` MHz on.
    #[must_use]
    pub fn distinct(stages: u32, microbatches: u32, base: u32) -> Self {
        // 7 has no factor in common with any number of instructions in these tests.
        let count = 2 * microbatches as usize;
        Self::new(stages, microbatches, |stage, i| base + 15 * (stage + (i * 7 % count) as u32))
    }

    /// The clocks of a stage in order, in MHz.
    #[must_use]
    pub fn clocks(&self, stage: u32) -> &[u32] {
        &self.clocks[stage as usize]
    }

    /// How many steps it takes to set these clocks in the order of a stage's plan. A daemon may leave
    /// out clocks that were outdated before the driver was free, but never change their order.
    #[must_use]
    pub fn steps_for(&self, stage: u32, clocks_set: &[u32]) -> usize {
        let plan = self.clocks(stage);
        let mut position = 0;
        for mhz in clocks_set {
            let from = position % plan.len();
            let next = plan.iter().cycle().skip(from).take(plan.len()).position(|own| own == mhz);
            position += next.unwrap_or_else(|| panic!("{mhz} MHz is not in the plan {plan:?}")) + 1;
        }
        position.div_ceil(plan.len())
    }

    /// The plan as a file.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let stages = self.clocks.len() as u32;
        let stage_plan = |stage: u32| {
            let order = one_f_one_b(stage, stages, self.microbatches);
            let planned = order.iter().zip(self.clocks(stage)).map(|((instruction, mb), mhz)| {
                json!({"instruction": instruction.name(), "microbatch": mb, "frequency_mhz": mhz})
            });
            json!({"stage": stage, "instructions": planned.collect::<Vec<_>>()})
        };
        let plan = json!({
            "format": "pfo-plan/1",
            "gpu": "A40",
            "schedule": "1f1b",
            "num_stages": stages,
            "num_microbatches": self.microbatches,
            "p2p_blocking_power_w": 70.38,
            "predicted": {
                "iteration_time_s": PREDICTED.time_s,
                "iteration_energy_j": PREDICTED.energy_j,
            },
            "stages": (0..stages).map(stage_plan).collect::<Vec<_>>(),
        });
        serde_json::to_vec(&plan).unwrap()
    }
}

impl From<&TestPlan> for ClockTable {
    fn from(plan: &TestPlan) -> Self {
        let stages = plan.clocks.len() as u32;
        let units = |stage| {
            let order = one_f_one_b(stage, stages, plan.microbatches).into_iter();
            let planned =
                order.zip(plan.clocks(stage)).map(|((instruction, microbatch), mhz)| PlannedUnit {
                    unit: Unit::new(instruction, microbatch),
                    mhz: Mhz(*mhz),
                    wait_mhz: None,
                });
            planned.collect()
        };
        Self::new(plan.microbatches, Some(PREDICTED), (0..stages).map(units).collect()).unwrap()
    }
}
