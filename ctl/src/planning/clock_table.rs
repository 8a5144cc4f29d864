//! A plan as `pfod` takes it. This is the only place where a plan becomes a clock table.

use pfo_planner::{Plan, StagePlan};
use pfo_protocol::{ClockTable, ClockTableError, PlannedUnit, Predicted};

/// The clock table of a plan, with what the plan predicts.
///
/// # Errors
/// If the plan predicts what no step can take, or a stage of it runs nothing.
pub(crate) fn of(plan: &Plan) -> Result<ClockTable, ClockTableError> {
    // A clock table has no clocks of waits, so it does not do what a plan with them predicts.
    let predicted = plan.predicted.filter(|_| plan.waits.is_empty()).map(|predicted| Predicted {
        time_s: predicted.iteration_time_s,
        energy_j: predicted.iteration_energy_j,
    });
    let units = |stage: &StagePlan| {
        let planned = stage.instructions.iter();
        planned.map(|run| PlannedUnit { unit: run.unit(), mhz: run.frequency_mhz }).collect()
    };
    ClockTable::new(plan.num_microbatches, predicted, plan.stages.iter().map(units).collect())
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
    fn a_clock_table_predicts_nothing_that_takes_clocks_of_waits() {
        let golden = include_bytes!("../../../planner/tests/golden/plan_with_waits.json");
        let plan = Plan::from_json(golden).unwrap();
        assert!(plan.predicted.is_some() && !plan.waits.is_empty());
        assert_eq!(of(&plan).unwrap().predicted(), None);
    }
}
