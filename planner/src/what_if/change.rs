//! What is not as a frontier was planned for.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pfo_vocabulary::{Mhz, Stage, Watts};

use crate::choices::tradeoff::{Kind, Tradeoff};
use crate::error::PlanError;
use crate::frontier::replan::{Conditions, check_figures};
use crate::limits;
use crate::pipeline::Pipeline;
use crate::profile::Profile;
use crate::waits::per_stage::PerStage;

/// What is not as a frontier was planned for. By default nothing is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Another profile of the same stages, such as one that was measured later.
    pub profile: Option<Profile>,
    /// Instructions that do not run as they were profiled.
    pub conditions: Conditions,
    /// Stages that run at one clock only, and that clock.
    pub held: BTreeMap<Stage, Mhz>,
    /// Another P2P-blocking power.
    pub p2p_power: Option<PerStage<Watts>>,
    /// Another power of host, fans and cooling, for each GPU.
    pub site_power: Option<Watts>,
    /// Another number of microbatches.
    pub microbatches: Option<u32>,
    /// Time between the instructions of two steps, in seconds, in which GPUs wait: the optimizer, loads.
    pub rest_s: f64,
}

impl Change {
    /// The profile that the stages of a pipeline have with this change.
    ///
    /// # Errors
    /// If it is for other stages, or has figures that no GPU has.
    pub(super) fn profile<'a>(
        &'a self,
        pipeline: &'a Pipeline,
    ) -> Result<Cow<'a, Profile>, PlanError> {
        let mut profile = match &self.profile {
            None => Cow::Borrowed(pipeline.profile()),
            Some(other) => {
                let (plan, found) = (pipeline.profile().num_stages(), other.num_stages());
                if plan != found {
                    return Err(PlanError::StagesDiffer { plan, profile: found });
                }
                other.run_as(pipeline.order().units().map(|unit| unit.chunk))
            }
        };
        if profile.most_rows() > limits::TABLE_ROWS {
            profile = Cow::Owned(profile.thinned(limits::TABLE_ROWS));
        }
        if !self.conditions.is_empty() {
            profile = Cow::Owned(profile.under(&self.conditions)?);
        }
        Ok(profile)
    }

    /// Whether instructions, or their number, are other ones.
    pub(super) fn has_other_tables(&self) -> bool {
        self.profile.is_some()
            || !self.conditions.is_empty()
            || !self.held.is_empty()
            || self.microbatches.is_some()
    }

    /// # Errors
    /// If a power or the rest is out of range.
    pub(super) fn check(
        &self,
        profile: &Profile,
        power: &PerStage<Watts>,
    ) -> Result<(), PlanError> {
        let num_stages = profile.num_stages();
        power.check(num_stages)?;
        let powers = power.each(num_stages).chain(&self.site_power);
        let is_wrong = |watts: &&Watts| !(watts.0.is_finite() && watts.0 >= 0.0);
        let refused =
            |name, value: String, expected| Err(PlanError::BadArgument { name, value, expected });
        if let Some(wrong) = powers.into_iter().find(is_wrong) {
            return refused("a power", wrong.to_string(), "watts of at least 0");
        }
        if !(self.rest_s.is_finite() && self.rest_s >= 0.0) {
            return refused("the rest of a step", self.rest_s.to_string(), "seconds of at least 0");
        }
        check_figures(profile, power)
    }

    /// The clocks that a kind of operation can have.
    ///
    /// # Errors
    /// If it was not measured, or not at the clock that its stage is held at.
    pub(super) fn tradeoff(
        &self,
        pipeline: &Pipeline,
        (profile, power): (&Profile, &PerStage<Watts>),
        kind: Kind,
    ) -> Result<Tradeoff, PlanError> {
        let Kind::Measured(stage, instruction, part) = kind else {
            return Ok(Tradeoff::of_kind(pipeline, kind, power));
        };
        let table = profile.part_table(stage, instruction, part);
        if table.is_empty() {
            let schedule = pipeline.schedule();
            return Err(PlanError::UnmeasuredInstruction { stage, instruction, schedule });
        }
        let power = *power.of(stage);
        match self.held.get(&stage) {
            Some(&frequency) if !instruction.is_fixed() => {
                let row = profile.part_at(stage, instruction, part, frequency);
                let unmeasured = PlanError::UnmeasuredFrequency { stage, instruction, frequency };
                Ok(Tradeoff::new(&[row.ok_or(unmeasured)?], power))
            }
            _ => Ok(Tradeoff::measured(profile, (stage, instruction, part), power)),
        }
    }
}
