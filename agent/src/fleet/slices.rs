//! A plan in slices, one for each stage: what crosses the store, and what `pfod` takes.

use pfo_fleet::{Digest, PlanCut, Run};
use pfo_protocol::{Chunk, ClockTable, Instruction, Mhz, Microbatch, PlannedUnit, Predicted, Unit};
use pfo_store::{Slices, digest_of};
use serde::{Deserialize, Serialize};

use crate::straggler::Labelled;

/// The format of a slice, and its version. One that is written anew has to have the same bytes: it is
/// compared with what `pfod` runs by its digest.
const FORMAT: &str = "pfo-slice/1";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Slice {
    format: String,
    units: Vec<SliceUnit>,
}

/// Instruction, model chunk, microbatch, clock, and clock of the wait before it.
#[derive(Serialize, Deserialize)]
struct SliceUnit(Instruction, Chunk, Microbatch, Mhz, Option<Mhz>);

/// A stage of a plan as the store has it.
pub(super) fn slice_of(units: &[PlannedUnit]) -> Vec<u8> {
    let unit = |planned: &PlannedUnit| {
        let Unit { instruction, chunk, microbatch } = planned.unit;
        SliceUnit(instruction, chunk, microbatch, planned.mhz, planned.wait_mhz)
    };
    let slice = Slice { format: FORMAT.into(), units: units.iter().map(unit).collect() };
    // Numbers and names: nothing of it can fail to be JSON.
    serde_json::to_vec(&slice).unwrap_or_default()
}

fn units_of(slice: &[u8]) -> Result<Vec<PlannedUnit>, String> {
    let Slice { format, units } =
        serde_json::from_slice(slice).map_err(|error| format!("no part of a plan: {error}"))?;
    if format != FORMAT {
        return Err(format!("a part of a plan is {format:?} and not {FORMAT}: update pfo-agent"));
    }
    let planned = |SliceUnit(instruction, chunk, microbatch, mhz, wait_mhz)| PlannedUnit {
        unit: Unit { instruction, chunk, microbatch },
        mhz,
        wait_mhz,
    };
    Ok(units.into_iter().map(planned).collect())
}

/// A plan as it is proposed, of which these are the slices.
pub(super) fn cut_of(label: String, table: &ClockTable, stages: Vec<Digest>) -> PlanCut {
    let predicted = table.predicted().map(|predicted| (predicted.time_s, predicted.energy_j));
    PlanCut { label, num_microbatches: table.num_microbatches(), predicted, stages }
}

/// A plan as something that a job runs.
pub(crate) fn run_of(Labelled { label, table }: &Labelled) -> Run {
    let digests = table.stages().iter().map(|stage| digest_of(&slice_of(stage))).collect();
    Run::Plan(cut_of(label.clone(), table, digests))
}

/// The clock table of those stages of a plan whose slices are here.
///
/// # Errors
/// If a slice is no part of a plan, or the numbers are those of no clock table.
pub(super) fn table_of(plan: &PlanCut, slices: &Slices) -> Result<ClockTable, String> {
    let units = |digest| slices.get(digest).map_or(Ok(Vec::new()), |slice| units_of(slice));
    let stages = plan.stages.iter().map(units).collect::<Result<_, _>>()?;
    let predicted = plan.predicted.map(|(time_s, energy_j)| Predicted { time_s, energy_j });
    ClockTable::new(plan.num_microbatches, predicted, stages).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use pfo_store::digest_of;

    use super::*;

    fn units(clocks: &[u32]) -> Vec<PlannedUnit> {
        let planned = |(microbatch, mhz): (u32, &u32)| PlannedUnit {
            unit: Unit::new(Instruction::Forward, microbatch),
            mhz: Mhz(*mhz),
            wait_mhz: (microbatch > 0).then_some(Mhz(210)),
        };
        (0..).zip(clocks).map(planned).collect()
    }

    #[test]
    fn the_bytes_of_a_slice_are_the_documented_ones() {
        assert_eq!(
            String::from_utf8(slice_of(&units(&[900, 1005]))).unwrap(),
            r#"{"format":"pfo-slice/1","units":[["forward",0,0,900,null],["forward",0,1,1005,210]]}"#
        );
    }

    #[test]
    fn a_table_is_made_of_the_slices_that_are_here_and_of_these_only() {
        let whole = ClockTable::new(2, None, vec![units(&[900]), units(&[1005, 1200])]).unwrap();
        let all: Vec<_> = whole.stages().iter().map(|stage| slice_of(stage)).collect();
        let digests: Vec<_> = all.iter().map(|slice| digest_of(slice)).collect();
        let cut = cut_of("p".into(), &whole, digests.clone());
        let slices = |stages: &[usize]| {
            stages.iter().map(|stage| (digests[*stage], all[*stage].clone())).collect::<Slices>()
        };
        assert_eq!(table_of(&cut, &slices(&[0, 1])), Ok(whole.clone()));
        let own = table_of(&cut, &slices(&[1])).unwrap();
        assert_eq!((own.stages()[0].len(), &own.stages()[1]), (0, &whole.stages()[1]));
        assert_eq!(slice_of(&own.stages()[1]), all[1], "and it has the same digest");
        assert!(table_of(&cut, &Slices::new()).unwrap_err().contains("no stage"));
    }

    #[test]
    fn what_somebody_else_put_into_the_store_is_refused_in_words() {
        for (slice, said) in [
            (&b"no"[..], "no part of a plan"),
            (br#"{"format":"pfo-slice/2","units":[]}"#, "pfo-slice/2"),
            (br#"{"format":"pfo-slice/1","units":[["forward",0,0,0,null]]}"#, "0 MHz"),
        ] {
            let cut = PlanCut {
                label: "p".into(),
                num_microbatches: 1,
                predicted: None,
                stages: vec![digest_of(slice)],
            };
            let slices = Slices::from([(digest_of(slice), slice.to_vec())]);
            let error = table_of(&cut, &slices).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
