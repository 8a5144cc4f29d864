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

/// A day, in seconds: no step takes longer.
const LONGEST_S: f64 = 86_400.0;

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
    ///
    /// # Errors
    /// If a step hardly consists of instructions with it, or the plan cannot be replayed.
    pub fn of_seconds(
        time_s: f64,
        profile: &Profile,
        plan: &Plan,
        p2p_power: &PerStage<PowerByClock>,
    ) -> Result<Self, PlanError> {
        if !(0.0..=LONGEST_S).contains(&time_s) {
            let expected = "seconds from 0 to 86400";
            return Err(refused("what a step takes beside its instructions", time_s, expected));
        }
        let step_s = time_s + fastest_s(profile, plan, p2p_power)?;
        Self::of_part(time_s, step_s, plan, p2p_power)
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
        if !(step_s > 0.0 && step_s <= LONGEST_S) {
            let expected = "seconds above 0, at most 86400; give those of a step at default clocks";
            return Err(refused("the measured step", step_s, expected));
        }
        let replayed_s = fastest_s(profile, plan, p2p_power)?;
        if step_s < (1.0 - SHORTER) * replayed_s {
            return Err(PlanError::ShortStep { step_s, replayed_s });
        }
        Self::of_part((step_s - replayed_s).max(0.0), step_s, plan, p2p_power)
    }

    /// These seconds of a step at the highest clocks.
    fn of_part(
        time_s: f64,
        step_s: f64,
        plan: &Plan,
        p2p_power: &PerStage<PowerByClock>,
    ) -> Result<Self, PlanError> {
        let share = time_s / step_s;
        if share > Self::MOST {
            return Err(PlanError::Unpredictable {
                percent: 100.0 * share,
                most: 100.0 * Self::MOST,
            });
        }
        let highest = |power: &PowerByClock| power.points().last().map_or(Watts(0.0), |at| at.1);
        Ok(Self { time_s, energy_j: time_s * p2p_power.at(highest).total_w(plan.num_stages) })
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

/// What the instructions of a plan take at the highest clocks, in seconds.
fn fastest_s(
    profile: &Profile,
    plan: &Plan,
    p2p_power: &PerStage<PowerByClock>,
) -> Result<f64, PlanError> {
    Ok(replay(profile, &at_highest_clocks(profile, plan)?, p2p_power)?.iteration_time_s)
}

fn refused(name: &'static str, time_s: f64, expected: &'static str) -> PlanError {
    // Not all digits of a huge number.
    PlanError::BadArgument { name, value: format!("{time_s:?}"), expected }
}
