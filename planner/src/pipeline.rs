//! A pipeline to plan for: a profile, a schedule and a number of microbatches.

use crate::error::PlanError;
use crate::network::{Network, StageOrder};
use crate::plan::{Plan, PlannedInstruction, StagePlan};
use crate::profile::Profile;
use crate::schedule::Schedule;
use crate::units::{Mhz, Stage};

/// Every operation of one step, what it waits for and what was measured of it.
#[derive(Clone, Debug)]
pub struct Pipeline {
    profile: Profile,
    schedule: Schedule,
    num_microbatches: u32,
    network: Network,
}

impl Pipeline {
    /// The most operations of a step; plans of more would not be read back.
    const MAX_OPERATIONS: usize = 1 << 20;

    /// The operations of one step of `num_microbatches` on the profile's stages.
    ///
    /// # Errors
    /// If the step would have none or too many, or the profile lacks an instruction that the
    /// schedule runs.
    pub fn new(
        profile: &Profile,
        schedule: Schedule,
        num_microbatches: u32,
    ) -> Result<Self, PlanError> {
        let bad_count = |expected| PlanError::BadArgument {
            name: "the number of microbatches",
            value: num_microbatches.to_string(),
            expected,
        };
        if !(1..=Plan::MAX_MICROBATCHES).contains(&num_microbatches) {
            return Err(bad_count("between 1 and 65536"));
        }
        let num_stages = profile.num_stages();
        let mut orders: Vec<StageOrder> = Vec::new();
        let mut operations = 0;
        for stage in (0..num_stages).map(Stage) {
            let order = schedule.order(stage, num_stages, num_microbatches);
            operations += order.len();
            if operations > Self::MAX_OPERATIONS {
                return Err(bad_count("less: a step may have a million instructions"));
            }
            for &(instruction, _) in &order {
                if profile.table(stage, instruction).is_empty() {
                    return Err(PlanError::UnmeasuredInstruction { stage, instruction, schedule });
                }
            }
            orders.push(order);
        }
        let network = Network::new(&orders)?;
        Ok(Self { profile: profile.clone(), schedule, num_microbatches, network })
    }

    /// What was measured.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The order that stages follow.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Microbatches of a step.
    pub fn num_microbatches(&self) -> u32 {
        self.num_microbatches
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// A plan that gives each operation, by index, a frequency.
    pub(crate) fn plan(&self, frequency: impl Fn(usize) -> Mhz) -> Plan {
        let planned = |&operation: &u32| {
            let frequency_mhz = frequency(operation as usize);
            let operation = &self.network.operations[operation as usize];
            PlannedInstruction {
                instruction: operation.instruction,
                microbatch: operation.microbatch,
                frequency_mhz,
            }
        };
        let stages = (0..)
            .zip(&self.network.stages)
            .map(|(stage, operations)| StagePlan {
                stage: Stage(stage),
                instructions: operations.iter().map(planned).collect(),
            })
            .collect();
        Plan {
            gpu: None,
            schedule: self.schedule,
            num_stages: self.profile.num_stages(),
            num_microbatches: self.num_microbatches,
            p2p_blocking_power_w: None,
            predicted: None,
            stages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instruction::Instruction;
    use crate::profile::Measurement;
    use crate::test_profiles::unequal;

    fn refused(profile: &Profile, microbatches: u32) -> String {
        let schedule = Schedule::OneForwardOneBackward;
        Pipeline::new(profile, schedule, microbatches).unwrap_err().to_string()
    }

    #[test]
    fn an_instruction_that_the_schedule_runs_must_have_been_measured() {
        let measured = Measurement { frequency: Mhz(1400), time_s: 0.1, energy_j: 9.0 };
        let profile =
            Profile::from_measurements([(Stage(0), Instruction::Forward, measured)]).unwrap();
        let message = refused(&profile, 4);
        assert!(message.contains("stage 0") && message.contains("backward"), "{message}");
        assert!(message.contains("1f1b"), "{message}");
    }

    #[test]
    fn a_step_of_no_or_too_many_microbatches_is_refused_with_their_number() {
        for microbatches in [0, 65_537, u32::MAX] {
            let message = refused(&unequal(), microbatches);
            assert!(message.contains(&microbatches.to_string()), "{message}");
        }
    }

    #[test]
    fn a_plan_has_every_operation_in_its_stages_order() {
        let schedule = Schedule::OneForwardOneBackward;
        let plan = Pipeline::new(&unequal(), schedule, 3).unwrap().plan(|_| Mhz(1390));
        assert_eq!(plan.num_instructions(), 12);
        assert!(plan.to_json().is_ok());
        let order: Vec<_> =
            plan.stages[0].instructions.iter().map(|p| (p.instruction, p.microbatch)).collect();
        assert_eq!(order, schedule.order(Stage(0), 2, 3));
    }
}
