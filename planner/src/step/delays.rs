//! Time that a step takes between instructions: for transfers, and until a clock is in force.

use crate::error::PlanError;

/// A larger value is in another unit.
const LONGEST_S: f64 = 60.0;

/// Delays between instructions and between clocks, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delays {
    /// From the end of an instruction until its activation or gradient has reached another stage.
    pub transfer_time_s: f64,
    /// From the end of an instruction, when the clock of the next one is set, until that clock is
    /// in force.
    pub switch_latency_s: f64,
}

impl Delays {
    /// Each delay with its name in files.
    pub(crate) fn named(&self) -> [(&'static str, f64); 2] {
        [("transfer_time_s", self.transfer_time_s), ("switch_latency_s", self.switch_latency_s)]
    }

    /// # Errors
    /// If one of them is not between 0 and 60 s.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        let delays = [
            ("the transfer time", self.transfer_time_s),
            ("the switching latency", self.switch_latency_s),
        ];
        for (name, seconds) in delays {
            if !(0.0..=LONGEST_S).contains(&seconds) {
                let value = format!("{seconds} s");
                return Err(PlanError::BadArgument { name, value, expected: "from 0 to 60 s" });
            }
        }
        Ok(())
    }
}
