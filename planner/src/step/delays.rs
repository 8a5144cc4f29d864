//! What takes time in a step although no stage computes: products on their way, clocks on theirs.

use crate::error::PlanError;

/// A longer one is in another unit.
const LONGEST_S: f64 = 60.0;

/// Seconds that a pipeline loses between instructions and between clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delays {
    /// From the end of an instruction until its activation or gradient is on another stage.
    pub transfer_time_s: f64,
    /// From the end of an instruction, when the clock of the next one is asked for, until that
    /// clock is in force.
    pub switch_latency_s: f64,
}

impl Delays {
    /// Each with the name that files have for it.
    pub(crate) fn named(&self) -> [(&'static str, f64); 2] {
        [("transfer_time_s", self.transfer_time_s), ("switch_latency_s", self.switch_latency_s)]
    }

    /// # Errors
    /// If one of them is no time from 0 to a minute.
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
