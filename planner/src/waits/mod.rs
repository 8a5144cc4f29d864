//! Clocks of waits.
//!
//! A GPU that waits for its neighbour draws less at a low clock. Where a wait is long enough for
//! two changes, it gets the clock at which waiting draws least, and the next instruction's clock is
//! requested before the wait ends, so that no instruction is late. [`power`] is what waiting draws,
//! and [`per_stage`] says that of which stage.

pub(crate) mod per_stage;
pub(crate) mod power;

use pfo_vocabulary::Mhz;
use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::late::change_j;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::replay::replay;
use crate::replay::timeline::{Span, Timeline};
use crate::step::delays::Delays;
use crate::step::dependencies::StageUnit;
use per_stage::PerStage;
use power::PowerByClock;

/// The clock of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedWait {
    /// The instruction before which its stage waits.
    pub before: StageUnit,
    /// The clock in MHz.
    pub frequency_mhz: Mhz,
}

impl Plan {
    /// The plan with a clock for every wait that saves energy by it, in the same time. Its
    /// prediction is the replay with this power of waiting.
    ///
    /// # Errors
    /// Those of [`replay()`].
    pub fn with_waits(
        &self,
        profile: &Profile,
        power: impl Into<PerStage<PowerByClock>>,
    ) -> Result<Self, PlanError> {
        let powers: PerStage<PowerByClock> = power.into();
        powers.check(self.num_stages)?;
        let without = Self { waits: Vec::new(), ..self.clone() };
        let timeline = Timeline::new(profile, &without)?;
        let saves = |power: &PowerByClock, span: &Span| {
            let lowest = power.cheapest();
            let latency_s = self.delays.latency_s(lowest);
            // While a call blocks, the clock is not asked back.
            let lowest_s = latency_s.max(self.delays.set_call_s);
            let early_s = Delays::early_s(self.delays.latency_s(span.frequency));
            let in_force_s = span.waited_s - latency_s - early_s;
            let saved_w = power.at(span.frequency).0 - power.at(lowest).0;
            let changes_j = 2.0 * change_j(power.at(span.frequency), self.delays);
            in_force_s > lowest_s && saved_w * in_force_s > changes_j
        };
        // A change at the beginning of a wait holds up what is handed on before it.
        let are_prompt = self.delays.held_up_s == 0.0;

        let mut waits = Vec::new();
        for (stage, spans) in self.stages.iter().zip(&timeline.stages) {
            let power = powers.of(stage.stage);
            let frequency_mhz = power.cheapest();
            for (planned, span) in stage.instructions.iter().zip(spans) {
                if are_prompt && !planned.instruction.is_fixed() && saves(power, span) {
                    let before = StageUnit::new(stage.stage, planned.unit());
                    waits.push(PlannedWait { before, frequency_mhz });
                }
            }
        }
        let p2p_blocking_power_by_mhz = Some(powers.clone());
        let mut plan = Self { waits, p2p_blocking_power_by_mhz, ..without };
        plan.predicted = Some(replay(profile, &plan, powers)?.into());
        Ok(plan)
    }
}
