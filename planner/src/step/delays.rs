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
    /// For how long the call that sets a clock blocks. What is asked for meanwhile waits until it
    /// returns, and only the newest clock is set then. It may be longer than the switching latency:
    /// some drivers return long after the clock is in force.
    pub set_call_s: f64,
    /// For how long a change of clocks holds up what the instruction before it hands on, and the
    /// next one: some drivers keep transfers waiting while they set a clock.
    pub held_up_s: f64,
}

impl Delays {
    /// Whether plans account for what a change of clocks takes, which makes them take longer to find.
    pub fn make_changes_late(&self) -> bool {
        self.switch_latency_s > 0.0 || self.set_call_s > 0.0 || self.held_up_s > 0.0
    }

    /// Whether each change of clocks costs time of its own, so that few changes are better.
    pub(crate) fn make_changes_dear(&self) -> bool {
        self.set_call_s > 0.0 || self.held_up_s > 0.0
    }

    /// How long before a wait with a clock of its own is expected to end the next instruction's clock
    /// is asked for, in seconds: the latency, and a margin for waits that end early.
    pub(crate) fn early_s(&self) -> f64 {
        const MARGIN_SHARE: f64 = 0.25;
        const LEAST_MARGIN_S: f64 = 0.002;
        self.switch_latency_s + (MARGIN_SHARE * self.switch_latency_s).max(LEAST_MARGIN_S)
    }

    /// Each delay with its name in files.
    pub(crate) fn named(&self) -> [(&'static str, f64); 4] {
        [
            ("transfer_time_s", self.transfer_time_s),
            ("switch_latency_s", self.switch_latency_s),
            ("set_call_s", self.set_call_s),
            ("held_up_s", self.held_up_s),
        ]
    }

    /// # Errors
    /// If one of them is not between 0 and 60 s.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        let delays = [
            ("the transfer time", self.transfer_time_s),
            ("the switching latency", self.switch_latency_s),
            ("the time for which a set call blocks", self.set_call_s),
            ("the time for which a change of clocks holds up transfers", self.held_up_s),
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
