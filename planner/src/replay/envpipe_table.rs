//! A step as EnvPipe prints it while it reconfigures.
//!
//! A line with the number of the step, then a line for each stage with its forwards and backwards
//! in order: the microbatch, the clock in MHz, and the wait for the input, transfer included, in
//! ms; in brackets if it is on the critical path. Instructions that EnvPipe does not have are left
//! out.

use pfo_vocabulary::Instruction;

use crate::replay::timeline::{Span, Timeline};

impl Timeline {
    /// The step as a table of EnvPipe; `step` is the number in its first line.
    pub fn to_envpipe_table(&self, step: u64) -> String {
        let mut text = format!("{step}\n");
        for (number, spans) in self.stages.iter().enumerate() {
            let units: String = spans.iter().filter_map(unit).collect();
            text += &format!("Stage {number} | {units}\n");
        }
        text
    }
}

fn unit(span: &Span) -> Option<String> {
    let letter = match span.instruction {
        Instruction::Forward => 'F',
        other if other.is_backward() => 'B',
        _ => return None,
    };
    let (open, close) = if span.is_critical { ('[', ']') } else { (' ', ' ') };
    let (microbatch, clock, waited_ms) = (span.microbatch, span.frequency.0, span.waited_s * 1e3);
    Some(format!("{open}{letter}{microbatch} {clock} {waited_ms:.1}{close}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pipeline;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::unequal;
    use pfo_vocabulary::Mhz;

    #[test]
    fn the_table_is_written_as_the_golden_file_has_it() {
        let schedule = Schedule::OneForwardOneBackward;
        let plan = Pipeline::new(&unequal(), schedule, 2).unwrap().plan(|_| Mhz(1400));
        let timeline = Timeline::new(&unequal(), &plan).unwrap();
        let golden = include_str!("../../tests/golden/envpipe_table.txt");
        assert_eq!(timeline.to_envpipe_table(7), golden);
    }
}
