//! A plan as `pfod` takes it. This is the only place where a plan becomes a clock table.

use pfo_planner::Plan;
use pfo_protocol::{ClockTable, ClockTableError, PlannedUnit, Predicted};

/// The clock table of a plan, with what the plan predicts.
///
/// # Errors
/// If the plan predicts what no step can take, or runs nothing.
pub(crate) fn of(plan: &Plan) -> Result<ClockTable, ClockTableError> {
    let predicted = plan.predicted.map(|predicted| Predicted {
        time_s: predicted.iteration_time_s,
        energy_j: predicted.iteration_energy_j,
    });
    let unit = |(unit, mhz, wait_mhz)| PlannedUnit { unit, mhz, wait_mhz };
    let stages = plan.clocks().map(|stage| stage.into_iter().map(unit).collect());
    ClockTable::new(plan.num_microbatches, predicted, stages.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_table_has_every_unit_and_clock_of_its_plan_in_order() {
        let golden = include_bytes!("../../../planner/tests/golden/plan.json");
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
    fn a_clock_table_has_the_clocks_of_waits_and_what_the_plan_predicts_with_them() {
        let golden = include_bytes!("../../../planner/tests/golden/plan_with_waits.json");
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
