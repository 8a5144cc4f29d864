//! Pipelines: what is planned for.

mod fixed;

use std::borrow::Cow;
use std::collections::BTreeSet;

use pfo_vocabulary::{Chunk, Mhz, Microbatch, Stage};

use crate::error::PlanError;
use crate::limits;
use crate::pipeline::fixed::{add_fixed, follow_neighbours};
use crate::plan::{Plan, PlannedInstruction, StagePlan};
use crate::profile::Profile;
use crate::schedule::name::Schedule;
use crate::schedule::settings::Settings;
use crate::step::delays::Delays;
use crate::step::dependencies::StageUnit;
use crate::step::network::Network;
use crate::step::order::Order;
use crate::step::precedence::hand_overs;

const TOO_MANY: &str = "smaller: a step has at most 1048576 instructions";

/// The operations of one step, what each waits for, and what was measured for it.
#[derive(Clone, Debug)]
pub struct Pipeline {
    profile: Profile,
    schedule: Schedule,
    order: Order,
    network: Network,
}

/// Checks that the parts that were measured apart are numbered as those of the step: chunks are those
/// that it runs, and microbatches count from 0. A step may have fewer microbatches than were measured.
fn check_parts(profile: &Profile, order: &Order) -> Result<(), PlanError> {
    let chunks: BTreeSet<Chunk> = order.units().map(|unit| unit.chunk).collect();
    let other = profile.parts().filter_map(|part| part.chunk).find(|it| !chunks.contains(it));
    if let Some(chunk) = other {
        return Err(PlanError::BadArgument {
            name: "a model chunk of the profile",
            value: chunk.to_string(),
            expected: "one that the schedule runs; chunks count from 0, and --chunks is their number",
        });
    }
    let measured = || profile.parts().filter_map(|part| part.microbatch);
    let last = Microbatch(order.num_microbatches);
    if measured().any(|it| it == last) && !measured().any(|it| it == Microbatch(0)) {
        return Err(PlanError::BadArgument {
            name: "a microbatch of the profile",
            value: last.to_string(),
            expected: "one of the step; microbatches count from 0",
        });
    }
    Ok(())
}

impl Pipeline {
    /// The pipeline of a profile's stages that run a schedule with default settings.
    ///
    /// # Errors
    /// Those of [`Pipeline::with_settings`].
    pub fn new(
        profile: &Profile,
        schedule: Schedule,
        num_microbatches: u32,
    ) -> Result<Self, PlanError> {
        Self::with_settings(profile, schedule, num_microbatches, &Settings::default())
    }

    /// The pipeline of a profile's stages that run a schedule.
    ///
    /// # Errors
    /// If the number of microbatches is 0 or too large, the schedule does not exist for it, or the
    /// profile lacks an instruction that the schedule runs.
    pub fn with_settings(
        profile: &Profile,
        schedule: Schedule,
        num_microbatches: u32,
        settings: &Settings,
    ) -> Result<Self, PlanError> {
        if !(1..=limits::MICROBATCHES).contains(&num_microbatches) {
            return Err(bad_count(num_microbatches, "between 1 and 65536"));
        }
        // The least that any schedule runs; checked before memory is taken for it.
        let least = 2 * usize::from(profile.num_stages()) * num_microbatches as usize;
        if least > limits::OPERATIONS {
            return Err(bad_count(num_microbatches, TOO_MANY));
        }
        let mut order = schedule.order(profile, num_microbatches, settings)?;
        add_fixed(&mut order, profile, &settings.fixed)?;
        Self::of_order(profile, schedule, order, settings.delays)
    }

    /// The pipeline of a profile's stages that run this order.
    ///
    /// # Errors
    /// If the number of stages differs from the profile's, there are too many operations, the
    /// profile lacks an instruction, a delay is impossible, or the order deadlocks.
    pub(crate) fn of_order(
        profile: &Profile,
        schedule: Schedule,
        order: Order,
        delays: Delays,
    ) -> Result<Self, PlanError> {
        let (stages, profile_stages) = (order.stages.len() as u16, profile.num_stages());
        if stages != profile_stages {
            return Err(PlanError::StagesDiffer { plan: stages, profile: profile_stages });
        }
        delays.check()?;
        if order.stages.iter().map(Vec::len).sum::<usize>() > limits::OPERATIONS {
            return Err(bad_count(order.num_microbatches, TOO_MANY));
        }
        for StageUnit { stage, instruction, .. } in order.units() {
            if profile.table(stage, instruction).is_empty() {
                return Err(PlanError::UnmeasuredInstruction { stage, instruction, schedule });
            }
        }
        let profile = profile.run_as(order.units().map(|unit| unit.chunk)).into_owned();
        let parts = profile.parts().len() * order.stages.len();
        if parts > limits::PARTS {
            return Err(PlanError::BadArgument {
                name: "the number of model chunks and microbatches that were measured apart, over \
                       all stages",
                value: parts.to_string(),
                expected: "at most 2048; leave the column microbatch or chunk out",
            });
        }
        check_parts(&profile, &order)?;
        let network = Network::of(&order, delays)?;
        Ok(Self { profile, schedule, order, network })
    }

    /// The same pipeline with so many rows of each table as a frontier can hold.
    pub(crate) fn thinned(&self) -> Cow<'_, Self> {
        if self.profile.most_rows() <= limits::TABLE_ROWS {
            return Cow::Borrowed(self);
        }
        Cow::Owned(self.over(self.profile.thinned(limits::TABLE_ROWS)))
    }

    /// The same pipeline over another profile of its stages.
    pub(crate) fn over(&self, profile: Profile) -> Self {
        Self { profile, ..self.clone() }
    }

    /// The profile that plans are made from.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The schedule that the stages run.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// The delays that plans account for.
    pub fn delays(&self) -> Delays {
        self.network.delays
    }

    /// The same pipeline with other delays.
    ///
    /// # Errors
    /// If one of them is not between 0 and 60 s.
    pub fn with_delays(&self, delays: Delays) -> Result<Self, PlanError> {
        Self::of_order(&self.profile, self.schedule, self.order.clone(), delays)
    }

    /// The number of microbatches of a step.
    pub fn num_microbatches(&self) -> u32 {
        self.order.num_microbatches
    }

    /// Where stages hand on what they make: each instruction that waits for others of other stages,
    /// with those.
    pub fn hand_overs(&self) -> Vec<(StageUnit, Vec<StageUnit>)> {
        // An order that deadlocks made no pipeline.
        hand_overs(&self.order).unwrap_or_default()
    }

    /// The same pipeline with transfers that take this time, in seconds.
    ///
    /// # Errors
    /// If the time is not between 0 and 60 s.
    pub fn with_transfer_time(self, transfer_time_s: f64) -> Result<Self, PlanError> {
        let delays = Delays { transfer_time_s, ..self.network.delays };
        delays.check()?;
        let network = Network::of(&self.order, delays)?;
        Ok(Self { network, ..self })
    }

    /// The number of instructions of a step, over all stages.
    pub fn num_instructions(&self) -> usize {
        self.network.num_instructions()
    }

    /// What each stage runs, and in which order.
    pub fn order(&self) -> &Order {
        &self.order
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// The plan with the given frequency for each operation, by index.
    pub(crate) fn plan(&self, frequency: impl Fn(usize) -> Mhz) -> Plan {
        let planned = |&operation: &u32| {
            let frequency_mhz = frequency(operation as usize);
            let operation = &self.network.operations[operation as usize];
            PlannedInstruction {
                instruction: operation.instruction,
                microbatch: operation.microbatch,
                chunk: operation.chunk,
                forward: operation.forward,
                frequency_mhz,
            }
        };
        let planned = |operations: &Vec<u32>| {
            let mut instructions: Vec<_> = operations.iter().map(planned).collect();
            follow_neighbours(&mut instructions);
            instructions
        };
        let stages: Vec<StagePlan> = (0..)
            .zip(&self.network.stages)
            .map(|(stage, operations)| StagePlan {
                stage: Stage(stage),
                instructions: planned(operations),
            })
            .collect();
        Plan {
            gpu: None,
            schedule: self.schedule,
            num_stages: self.profile.num_stages(),
            num_microbatches: self.order.num_microbatches,
            p2p_blocking_power_w: None,
            p2p_blocking_power_by_mhz: None,
            delays: self.network.delays,
            predicted: None,
            placement: self.order.placement,
            dependencies: self.order.dependencies.clone(),
            waits: Vec::new(),
            payloads: self.profile.payloads_of(&stages),
            stages,
        }
    }
}

impl Plan {
    /// The pipeline that the plan is for, on this profile.
    ///
    /// # Errors
    /// Those of [`Order::pipeline`].
    pub fn pipeline(&self, profile: &Profile) -> Result<Pipeline, PlanError> {
        let order = self.order();
        Pipeline::of_order(profile, self.schedule, order, self.delays)
    }
}

impl Order {
    /// The pipeline of a profile's stages that run this order. If transfers take no time by `delays`,
    /// they take what the order's file says. A forward and a backward that overlap run one after the
    /// other on a stage for which the profile has no such instructions of two.
    ///
    /// # Errors
    /// If the profile has another number of stages or lacks an instruction, a delay is impossible,
    /// or the order deadlocks.
    pub fn pipeline(&self, profile: &Profile, mut delays: Delays) -> Result<Pipeline, PlanError> {
        if let Some(seconds) = self.transfer_time_s.filter(|_| delays.transfer_time_s == 0.0) {
            delays.transfer_time_s = seconds;
        }
        Pipeline::of_order(profile, Schedule::Custom, self.with_pairs_as_measured(profile), delays)
    }
}

fn bad_count(num_microbatches: u32, expected: &'static str) -> PlanError {
    PlanError::BadArgument {
        name: "the number of microbatches",
        value: num_microbatches.to_string(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::measurement::Measurement;
    use crate::schedule::one_forward_one_backward;
    use crate::test_profiles::unequal;
    use pfo_vocabulary::Instruction;

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

    /// Two stages whose rows name this part in a column of that name.
    fn of_parts(column: &str, numbers: [u32; 2]) -> Profile {
        let mut csv = format!("stage,instruction,{column},frequency,time,energy\n");
        for (stage, number) in [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(s, n)| (s, numbers[n])) {
            for (instruction, time_s) in [("forward", 0.1), ("backward", 0.2)] {
                let time_s = time_s * (1.0 + 0.5 * f64::from(number));
                csv += &format!("{stage},{instruction},{number},1410,{time_s},40\n");
            }
        }
        Profile::from_csv(csv.as_bytes()).unwrap()
    }

    #[test]
    fn chunks_and_microbatches_that_the_step_does_not_have_are_refused_and_fewer_steps_are_not() {
        let chunks = |numbers| {
            let profile = of_parts("chunk", numbers);
            Pipeline::new(&profile, Schedule::Interleaved, 4).map(drop)
        };
        assert!(chunks([0, 1]).is_ok());
        for numbers in [[1, 2], [0, 3]] {
            let message = chunks(numbers).unwrap_err().to_string();
            assert!(message.contains(&numbers[1].to_string()), "{message}");
            assert!(message.contains("chunks count from 0"), "{message}");
        }
        let schedule = Schedule::OneForwardOneBackward;
        let microbatches =
            |numbers, of| Pipeline::new(&of_parts("microbatch", numbers), schedule, of).map(drop);
        assert!(microbatches([0, 1], 2).is_ok());
        assert!(microbatches([0, 7], 2).is_ok(), "a step may have fewer than were measured");
        let message = microbatches([1, 2], 2).unwrap_err().to_string();
        assert!(message.contains("microbatches count from 0"), "{message}");
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
            plan.stages[0].instructions.iter().map(PlannedInstruction::unit).collect();
        assert_eq!(order, one_forward_one_backward::order(Stage(0), 2, 3));
    }
}
