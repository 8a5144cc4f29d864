//! Orders as the literature writes them, for tests: `F0 F1 B0`, chunks as `F0.1`; and as it reckons
//! how long they take.

use pfo_vocabulary::{Instruction, Stage, Unit};

use crate::step::delays::Delays;
use crate::step::network::Network;
use crate::step::operation::Operation;
use crate::step::order::Order;

pub(crate) fn written(order: &[Unit]) -> String {
    order.iter().map(short).collect::<Vec<_>>().join(" ")
}

/// Every stage of an order; a forward and a backward in one as `F3&B0`.
pub(crate) fn written_stages(order: &Order) -> Vec<String> {
    let stages = (0..).map(Stage).zip(&order.stages);
    let written = |(stage, units): (Stage, &Vec<Unit>)| {
        let both = |&unit: &Unit| match order.overlapped(stage, unit) {
            Some(forward) => {
                let backward = Unit { instruction: Instruction::Backward, ..unit };
                format!("{}&{}", short(&forward.unit()), short(&backward))
            }
            None => short(&unit),
        };
        units.iter().map(both).collect::<Vec<_>>().join(" ")
    };
    stages.map(written).collect()
}

fn short(unit: &Unit) -> String {
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
}

/// The largest number of activations that a stage keeps at a time, until their weight gradients.
pub(crate) fn most_kept(order: &[Unit]) -> i64 {
    let kept = order.iter().scan(0, |kept, unit| {
        *kept += match unit.instruction {
            Instruction::Forward => 1,
            Instruction::Backward | Instruction::BackwardWeight => -1,
            _ => 0,
        };
        Some(*kept)
    });
    kept.max().unwrap_or(0)
}

/// How long a step takes with forwards and halves of a backward of equal time, and this time of a
/// forward and a backward in one.
pub(crate) fn makespan(order: &Order, both: f64) -> f64 {
    let network = Network::of(order, Delays::default()).unwrap();
    network.makespan(|index| match network.operations[index] {
        operation if !operation.is_run() => 0.0,
        Operation { instruction: Instruction::Backward, .. } => 2.0,
        Operation { instruction: Instruction::ForwardBackward, .. } => both,
        _ => 1.0,
    })
}
