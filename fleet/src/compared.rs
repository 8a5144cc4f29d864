//! What a comparison of a plan with default clocks has shown on all nodes of a job. It stands beside the
//! swap that ends it, so that every node has it in its ledger of savings.

use serde::{Deserialize, Serialize};

use crate::standing::OutOfReason;

/// A comparison of a plan with default clocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// What the plan is called.
    pub label: String,
    /// The energy of a step that it predicts, in joules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_j: Option<f64>,
    /// When it ended, in seconds since 1970, by the clock of the node that compared.
    pub at_unix_s: u64,
    /// What was measured at default clocks.
    pub default: Turn,
    /// What was measured of the plan.
    pub plan: Turn,
}

/// Steps of the whole job that were measured under one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "UncheckedTurn")]
pub struct Turn {
    /// How many.
    pub steps: u64,
    /// How long they took together, in seconds.
    pub time_s: f64,
    /// The energy of all ranks of the job, in joules.
    pub energy_j: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UncheckedTurn {
    steps: u64,
    time_s: f64,
    energy_j: f64,
}

impl TryFrom<UncheckedTurn> for Turn {
    type Error = OutOfReason;

    fn try_from(
        UncheckedTurn { steps, time_s, energy_j }: UncheckedTurn,
    ) -> Result<Self, OutOfReason> {
        for (what, value) in [("the time of steps", time_s), ("the energy of steps", energy_j)] {
            if !value.is_normal() || value < 0.0 {
                return Err(OutOfReason { what, value });
            }
        }
        if steps == 0 {
            return Err(OutOfReason { what: "the number of steps", value: 0.0 });
        }
        Ok(Self { steps, time_s, energy_j })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_read_as_it_is_written_to_the_last_bit_and_nothing_that_nobody_measured() {
        // Of a thousand such numbers, some lose their last bit where they are read less exactly.
        for n in 1..2000_u32 {
            let turn = |of: f64| Turn { steps: 4, time_s: of / 3.0, energy_j: of.sqrt() * 1e3 };
            let (default, plan) = (turn(f64::from(n)), turn(1.0 / f64::from(n)));
            let (label, predicted_j) = ("p".to_owned(), Some(f64::from(n) / 7.0));
            let compared = Compared { label, predicted_j, at_unix_s: 9, default, plan };
            let written = serde_json::to_string(&compared).unwrap();
            assert_eq!(serde_json::from_str::<Compared>(&written).unwrap(), compared, "{written}");
        }
        for (steps, time_s, energy_j) in [(0, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, -1.0)] {
            let wrong = serde_json::to_string(&Turn { steps, time_s, energy_j }).unwrap();
            assert!(serde_json::from_str::<Turn>(&wrong).is_err(), "{wrong}");
        }
    }
}
