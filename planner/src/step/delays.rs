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
    /// The part of the switching latency for which the call that sets a clock blocks. What is asked
    /// for meanwhile waits until it returns, and only the newest clock is set then.
    pub set_call_s: f64,
}

impl Delays {
    /// How long before a wait with a clock of its own is expected to end the next instruction's clock
    /// is asked for, in seconds: the latency, and a margin for waits that end early.
    pub(crate) fn early_s(&self) -> f64 {
        const MARGIN_SHARE: f64 = 0.25;
        const LEAST_MARGIN_S: f64 = 0.002;
        self.switch_latency_s + (MARGIN_SHARE * self.switch_latency_s).max(LEAST_MARGIN_S)
    }

    /// Each delay with its name in files.
    pub(crate) fn named(&self) -> [(&'static str, f64); 3] {
        [
            ("transfer_time_s", self.transfer_time_s),
            ("switch_latency_s", self.switch_latency_s),
            ("set_call_s", self.set_call_s),
        ]
    }

    /// # Errors
    /// If one of them is not between 0 and 60 s, or a call blocks for longer than the latency.
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
        if !(0.0..=self.switch_latency_s).contains(&self.set_call_s) {
            return Err(PlanError::BadArgument {
                name: "the time for which a set call blocks",
                value: format!("{} s", self.set_call_s),
                expected: "from 0 s to the switching latency, which it is a part of",
            });
        }
        Ok(())
    }
}
