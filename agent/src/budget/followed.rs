//! One budget, followed through time.

use std::time::SystemTime;

use pfo_budget::Controller;
use pfo_protocol::BudgetOrder;

use crate::budget::level::Level;

pub(super) struct Followed {
    pub(super) order: BudgetOrder,
    pub(super) level: Level,
    pub(super) controller: Controller,
    has_begun: bool,
}

impl Followed {
    pub(super) fn new(order: BudgetOrder, level: Level, controller: Controller) -> Self {
        Self { order, level, controller, has_begun: false }
    }

    /// What there is now, in watts. Its ramp begins at what is drawn.
    pub(super) fn budget_w(&mut self, drawn_w: f64, elapsed_s: f64) -> f64 {
        let at_s = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64());
        if !self.has_begun {
            self.level.begin(at_s - elapsed_s, drawn_w);
            self.has_begun = true;
        }
        self.level.at(at_s)
    }
}
