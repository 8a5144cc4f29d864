//! A plan beside what GPUs do without one: every instruction at the highest clock.

use pfo_planner::{
    PerStage, Plan, PlanError, PowerByClock, Prediction, Profile, Replay, at_highest_clocks, replay,
};
use serde::Serialize;

/// Time and energy of one step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// In seconds.
    pub iteration_time_s: f64,
    /// In joules.
    pub iteration_energy_j: f64,
}

impl From<Replay> for Cost {
    fn from(replay: Replay) -> Self {
        Self {
            iteration_time_s: replay.iteration_time_s,
            iteration_energy_j: replay.iteration_energy_j,
        }
    }
}

impl From<Prediction> for Cost {
    fn from(predicted: Prediction) -> Self {
        let Prediction { iteration_time_s, iteration_energy_j } = predicted;
        Self { iteration_time_s, iteration_energy_j }
    }
}

impl Cost {
    /// What a plan's order costs at the highest clocks.
    ///
    /// # Errors
    /// If the profile is not that of the plan.
    pub fn at_highest_clocks(
        profile: &Profile,
        plan: &Plan,
        p2p_power: impl Into<PerStage<PowerByClock>>,
    ) -> Result<Self, PlanError> {
        replay(profile, &at_highest_clocks(profile, plan)?, p2p_power).map(Self::from)
    }

    /// The share of the other's energy that this one saves.
    #[must_use]
    pub fn saving_on(&self, other: &Self) -> f64 {
        1.0 - self.iteration_energy_j / other.iteration_energy_j
    }

    /// The share of the other's time that this one takes longer.
    #[must_use]
    pub fn slowdown_on(&self, other: &Self) -> f64 {
        self.iteration_time_s / other.iteration_time_s - 1.0
    }
}
