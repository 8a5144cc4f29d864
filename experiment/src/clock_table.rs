//! A plan as `pfod` takes it. This is the only place where a plan becomes a clock table, or a clock
//! table a plan again.

use pfo_planner::{
    Delays, Plan, PlannedInstruction, PlannedWait, Prediction, Schedule, Stage, StagePlan,
    StageUnit, Unit,
};
use pfo_protocol::{ClockTable, ClockTableError, PlannedUnit, Predicted};

/// The clock table of a plan, with what the plan predicts.
///
/// # Errors
/// If the plan predicts what no step can take, or runs nothing.
pub fn of(plan: &Plan) -> Result<ClockTable, ClockTableError> {
    let predicted = plan.predicted.map(|predicted| Predicted {
        time_s: predicted.iteration_time_s,
        energy_j: predicted.iteration_energy_j,
    });
    let unit = |(unit, mhz, wait_mhz)| PlannedUnit { unit, mhz, wait_mhz };
    let stages = plan.clocks().map(|stage| stage.into_iter().map(unit).collect());
    ClockTable::new(plan.num_microbatches, predicted, stages.collect())
}

/// The plan of a clock table, whose dependencies are those of the schedule. What the table does not
/// have, such as delays and the P2P-blocking power, is not known.
#[must_use]
pub fn plan(table: &ClockTable, schedule: Schedule) -> Plan {
    let stages = || (0..).map(Stage).zip(table.stages());
    let num_stages = table.stages().len() as u16;
    let forwards = schedule.overlapped(num_stages, table.num_microbatches());
    let instruction = |stage, PlannedUnit { unit, mhz, .. }: &PlannedUnit| PlannedInstruction {
        instruction: unit.instruction,
        microbatch: unit.microbatch,
        chunk: unit.chunk,
        forward: forwards.get(&on(stage, *unit)).copied(),
        frequency_mhz: *mhz,
    };
    let waits = stages().flat_map(|(stage, units)| {
        units.iter().filter_map(move |PlannedUnit { unit, wait_mhz, .. }| {
            let before = on(stage, *unit);
            wait_mhz.map(|frequency_mhz| PlannedWait { before, frequency_mhz })
        })
    });
    Plan {
        gpu: None,
        schedule,
        num_stages,
        num_microbatches: table.num_microbatches(),
        p2p_blocking_power_w: None,
        p2p_blocking_power_by_mhz: None,
        delays: Delays::default(),
        predicted: table.predicted().map(|predicted| Prediction {
            iteration_time_s: predicted.time_s,
            iteration_energy_j: predicted.energy_j,
        }),
        placement: schedule.placement(),
        dependencies: Vec::new(),
        waits: waits.collect(),
        payloads: Vec::new(),
        stages: stages()
            .map(|(stage, units)| StagePlan {
                stage,
                instructions: units.iter().map(|unit| instruction(stage, unit)).collect(),
            })
            .collect(),
    }
}

fn on(stage: Stage, unit: Unit) -> StageUnit {
    let Unit { instruction, microbatch, chunk } = unit;
    StageUnit { stage, instruction, microbatch, chunk }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_table_has_every_unit_and_clock_of_its_plan_in_order() {
        let golden = include_bytes!("../../planner/tests/golden/plan.json");
        let plan = Plan::from_json(golden).unwrap();
        let table = of(&plan).unwrap();
        assert_eq!(table.num_microbatches(), plan.num_microbatches);
        assert_eq!(table.stages().len(), plan.stages.len());
        for (units, stage) in table.stages().iter().zip(&plan.stages) {
            assert_eq!(units.len(), stage.instructions.len());
            for (unit, planned) in units.iter().zip(&stage.instructions) {
                assert_eq!((unit.unit, unit.mhz), (planned.unit(), planned.frequency_mhz));
            }
        }
        let predicted = plan.predicted.unwrap();
        assert_eq!(table.predicted().unwrap().time_s, predicted.iteration_time_s);
    }

    #[test]
    fn a_plan_comes_back_from_its_clock_table() {
        for golden in [
            &include_bytes!("../../planner/tests/golden/plan.json")[..],
            include_bytes!("../../planner/tests/golden/plan_with_waits.json"),
        ] {
            let before = Plan::from_json(golden).unwrap();
            let after = plan(&of(&before).unwrap(), before.schedule);
            assert_eq!((&after.stages, &after.waits), (&before.stages, &before.waits));
            assert_eq!(after.predicted, before.predicted);
        }
    }

    #[test]
    fn a_clock_table_has_the_clocks_of_waits_and_what_the_plan_predicts_with_them() {
        let golden = include_bytes!("../../planner/tests/golden/plan_with_waits.json");
        let plan = Plan::from_json(golden).unwrap();
        let table = of(&plan).unwrap();
        assert_eq!(table.predicted().unwrap().energy_j, plan.predicted.unwrap().iteration_energy_j);
        let units = table.stages().iter().flatten();
        let wait = |planned: &PlannedUnit| Some((planned.unit.instruction, planned.wait_mhz?));
        let waits: Vec<_> = units.filter_map(wait).collect();
        let planned = plan.waits.iter().map(|wait| (wait.before.instruction, wait.frequency_mhz));
        assert_eq!(waits, planned.collect::<Vec<_>>());
        assert!(!waits.is_empty());
    }
}
