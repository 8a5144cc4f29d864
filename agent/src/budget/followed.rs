//! One budget, followed through time.

use std::time::SystemTime;

use pfo_budget::Controller;
use pfo_protocol::BudgetOrder;

use crate::budget::level::Level;

/// A ramp begins after this many seconds even if not everything that is drawn is known.
const LONGEST_WAIT_S: f64 = 10.0;

pub(super) struct Followed {
    pub(super) order: BudgetOrder,
    pub(super) level: Level,
    pub(super) controller: Controller,
    has_begun: bool,
    waited_s: f64,
}

impl Followed {
    pub(super) fn new(order: BudgetOrder, level: Level, controller: Controller) -> Self {
        let has_ramp = order.up_w_per_s.is_some() || order.down_w_per_s.is_some();
        let has_begun = order.emergency || !has_ramp;
        Self { order, level, controller, has_begun, waited_s: 0.0 }
    }

    /// What there is now, in watts. Its ramp begins at what is drawn, as soon as all of that is known: from a
    /// part of it, power would have to rise first.
    pub(super) fn budget_w(&mut self, drawn_w: f64, is_all: bool, elapsed_s: f64) -> f64 {
        let at_s = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64());
        if !self.has_begun {
            self.level.begin(at_s - elapsed_s, drawn_w);
            self.waited_s += elapsed_s;
            self.has_begun = is_all || self.waited_s > LONGEST_WAIT_S;
        }
        self.level.at(at_s)
    }

    /// Whether its ramp has begun, if it has one.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }
}
