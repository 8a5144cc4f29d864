//! What the tap says of an event.

use pfo_protocol::{Event, Mark, Mhz, TapRecord};

use super::cursor::{Finished, Outcome};

/// The record of an event that had this outcome while that clock was locked.
pub(super) fn record_of(
    event: &Event,
    outcome: &Outcome,
    locked: Option<(Mhz, u64)>,
) -> Option<TapRecord> {
    let (at_ns, astray) = (event.client_ns, outcome.astray);
    match event.mark {
        Mark::StepBegin(step) => Some(TapRecord::StepBegan { step, at_ns, astray }),
        Mark::StepEnd(_) => Some(TapRecord::StepEnded { at_ns, astray }),
        Mark::InstructionBegin(_) | Mark::Untimed(_) => None,
        Mark::InstructionEnd(_) => {
            let Finished { unit, planned, astray, began_ns, ended_ns, .. } = outcome.finished?;
            Some(TapRecord::Ran { unit, began_ns, ended_ns, asked: planned, locked, astray })
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Instruction, Unit};

    use super::*;

    #[test]
    fn a_record_has_the_clock_that_was_asked_for_and_the_one_that_was_locked() {
        let unit = Unit::new(Instruction::Forward, 3);
        let (planned, locked) = (Some(Mhz(900)), Some((Mhz(1410), 5)));
        let finished =
            Finished { unit, position: 0, planned, astray: true, began_ns: 9, ended_ns: u64::MAX };
        let record = |mark, outcome: Outcome| {
            record_of(&Event { sequence: 0, client_ns: u64::MAX, mark }, &outcome, locked)
        };
        let ended = Outcome { finished: Some(finished), astray: true, ..Outcome::default() };
        let (asked, astray, at_ns) = (planned, true, u64::MAX);
        let ran = TapRecord::Ran { unit, began_ns: 9, ended_ns: at_ns, asked, locked, astray };
        assert_eq!(record(Mark::InstructionEnd(unit), ended), Some(ran));
        assert_eq!(record(Mark::InstructionEnd(unit), Outcome::default()), None);
        assert_eq!(record(Mark::InstructionBegin(unit), ended), None);
        let began = TapRecord::StepBegan { step: u64::MAX, at_ns, astray };
        assert_eq!(record(Mark::StepBegin(u64::MAX), ended), Some(began));
        let over = TapRecord::StepEnded { at_ns, astray };
        assert_eq!(record(Mark::StepEnd(4), ended), Some(over));
    }
}
