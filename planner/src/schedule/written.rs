//! Orders as the literature writes them, for tests: `F0 F1 B0`, chunks as `F0.1`.

use pfo_vocabulary::{Instruction, Unit};

pub(crate) fn written(order: &[Unit]) -> String {
    let short = |unit: &Unit| {
        let letters = match unit.instruction {
            Instruction::Forward => "F",
            Instruction::Backward | Instruction::BackwardInput => "B",
            Instruction::BackwardWeight => "W",
            Instruction::ForwardBackward => "FB",
            Instruction::Recomputation => "R",
            other => other.name(),
        };
        let chunk = if unit.chunk.is_first() { String::new() } else { format!(".{}", unit.chunk) };
        format!("{letters}{}{chunk}", unit.microbatch)
    };
    order.iter().map(short).collect::<Vec<_>>().join(" ")
}
