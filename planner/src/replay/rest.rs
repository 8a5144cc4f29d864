//! The part of a step that is in no instruction: transfers, loads, the reduction of gradients, the optimizer.
//!
//! A replay knows nothing of it, and a profile does not contain it. It hardly depends on the clocks, so one
//! measured step at the highest clocks tells it for every plan of the job. All GPUs wait during it.

use pfo_vocabulary::Watts;

use crate::error::PlanError;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::replay::interval::Interval;
use crate::replay::{at_highest_clocks, replay};
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

/// By what share of itself the rest of another plan may differ: 1 to 6 % is the standard deviation over the
/// plans of real jobs (the same page).
const DIFFERS: f64 = 0.05;

/// By what share a measured step may be shorter than its replay, because GPUs drift.
const SHORTER: f64 = 0.02;

/// The part of a step that is in no instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rest {
    /// In seconds.
    pub time_s: f64,
    /// In joules, of all stages.
    pub energy_j: f64,
}

impl Rest {
    /// The largest share of a step that stays what it is when clocks change: T5 on eight A40, with 44 % of
    /// its steps in no instruction, took from 21 s to 25 s (`docs/replay-and-reality.md`).
    pub const MOST: f64 = 0.25;

    /// A rest of this many seconds. The stages of the plan wait during it, at the power of their highest clock.
    #[must_use]
    pub fn of_seconds(time_s: f64, plan: &Plan, p2p_power: &PerStage<PowerByClock>) -> Self {
        let highest = |power: &PowerByClock| power.points().last().map_or(Watts(0.0), |at| at.1);
        Self { time_s, energy_j: time_s * p2p_power.at(highest).total_w(plan.num_stages) }
    }

    /// What a measured step at the highest clocks took beside its instructions.
    ///
    /// # Errors
    /// If the step cannot be one of this plan's instructions, hardly consists of them, or cannot be
    /// replayed.
    pub fn of_step(
        step_s: f64,
        profile: &Profile,
        plan: &Plan,
        p2p_power: &PerStage<PowerByClock>,
    ) -> Result<Self, PlanError> {
        let replayed = replay(profile, &at_highest_clocks(profile, plan)?, p2p_power)?;
        let replayed_s = replayed.iteration_time_s;
        if step_s < (1.0 - SHORTER) * replayed_s {
            return Err(PlanError::ShortStep { step_s, replayed_s });
        }
        let time_s = (step_s - replayed_s).max(0.0);
        let share = time_s / step_s;
        if share > Self::MOST {
            return Err(PlanError::Unpredictable {
                percent: 100.0 * share,
                most: 100.0 * Self::MOST,
            });
        }
        Ok(Self::of_seconds(time_s, plan, p2p_power))
    }

    /// Where a step lies whose instructions lie here.
    #[must_use]
    pub fn added_to(&self, instructions: Interval) -> Interval {
        let add = |[low, high]: [f64; 2], rest: f64| {
            [low + (1.0 - DIFFERS) * rest, high + (1.0 + DIFFERS) * rest]
        };
        Interval {
            iteration_time_s: add(instructions.iteration_time_s, self.time_s),
            iteration_energy_j: add(instructions.iteration_energy_j, self.energy_j),
        }
    }
}
