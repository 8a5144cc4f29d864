//! `GPipe` (Huang et al., 2019): every forward, then every backward.
//!
//! Backwards run in the order of the forwards, as DeepSpeed's and torch's `GPipe` schedules do. A
//! stage keeps the activations of all microbatches.

use pfo_vocabulary::{Instruction, Unit};

use crate::step::order::StageOrder;

pub(super) fn order(num_microbatches: u32) -> StageOrder {
    [Instruction::Forward, Instruction::Backward]
        .into_iter()
        .flat_map(|instruction| (0..num_microbatches).map(move |m| Unit::new(instruction, m)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::written::written;

    #[test]
    fn every_forward_comes_before_every_backward() {
        assert_eq!(written(&order(3)), "F0 F1 F2 B0 B1 B2");
    }
}
