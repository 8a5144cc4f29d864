//! Plans of the planner as clock tables, and back.

use pfo_planner::Plan;
use pfo_protocol::{ClockTable, PlannedUnit, Predicted, Refusal, RefusalCode};
use serde::{Deserialize, Serialize};

/// A clock table and what it is called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Labelled {
    pub(crate) label: String,
    pub(crate) table: ClockTable,
}

impl Labelled {
    /// # Errors
    /// If no GPU could run the plan.
    pub(crate) fn of(label: String, plan: &Plan) -> Result<Self, Refusal> {
        let predicted = plan.predicted.map(|predicted| Predicted {
            time_s: predicted.iteration_time_s,
            energy_j: predicted.iteration_energy_j,
        });
        let unit = |(unit, mhz, wait_mhz)| PlannedUnit { unit, mhz, wait_mhz };
        let stages = plan.clocks().map(|stage| stage.into_iter().map(unit).collect()).collect();
        let table = ClockTable::new(plan.num_microbatches, predicted, stages)
            .map_err(|error| does_not_fit(error.to_string()))?;
        Ok(Self { label, table })
    }
}

/// Gives the instructions of a plan the clocks that they have in a table.
///
/// # Errors
/// If the plan has other instructions.
pub(super) fn put_clocks_into(table: &ClockTable, plan: &mut Plan) -> Result<(), Refusal> {
    let (ours, theirs) = (table.stages().len(), plan.stages.len());
    if ours != theirs {
        return Err(does_not_fit(format!("the plan has {ours} stages, the frontier {theirs}")));
    }
    for (own, other) in table.stages().iter().zip(&mut plan.stages) {
        let (ours, theirs, stage) = (own.len(), other.instructions.len(), other.stage);
        if ours != theirs {
            return Err(does_not_fit(format!(
                "stage {stage} has {ours} instructions in the plan, {theirs} in the frontier"
            )));
        }
        for (own, other) in own.iter().zip(&mut other.instructions) {
            other.frequency_mhz = own.mhz;
        }
    }
    Ok(())
}

pub(super) fn does_not_fit(what: String) -> Refusal {
    Refusal::new(
        RefusalCode::PlanDoesNotFit,
        what,
        "make the frontier from a profile of this job, with its schedule and microbatches",
    )
}
