//! The P2P-blocking power that plans are made with, of each stage where GPU models differ.

use std::collections::BTreeMap;

use pfo_planner::{PerStage, Pipeline, PowerByClock, Watts};
use pfo_protocol::TrialRank;
use serde::Serialize;

use super::with_plans::Recording;
use super::{Tune, TuneError, p2p_power};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::p2p::known::{self, Known};
use crate::p2p::measure;
use crate::status::quantity::watts;
use crate::trial::{Window, patiently};

/// A power that was planned with.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PlannedPower {
    /// The mean of the stages.
    watts: f64,
    /// Of each stage, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_stage_w: Option<Vec<Watts>>,
    /// By clock, in MHz and W, if waits have clocks of their own and all stages the same power.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_mhz: Option<PowerByClock>,
    /// By clock, of each stage where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_stage_by_mhz: Option<Vec<PowerByClock>>,
    origin: PowerOrigin,
}

/// Where a P2P-blocking power comes from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum PowerOrigin {
    /// It was given.
    Given,
    /// The agent's store, with the origin that it knows.
    Stored(String),
    /// The job's own waits.
    Waits,
    /// What its steps draw beside their instructions.
    Steps,
}

impl PlannedPower {
    fn new(flat: &PerStage<Watts>, origin: PowerOrigin) -> Self {
        let by_stage_w = flat.differing().map(<[Watts]>::to_vec);
        let Watts(watts) = flat.mean();
        Self { watts, by_stage_w, by_mhz: None, by_stage_by_mhz: None, origin }
    }

    /// That of a job's own waits.
    pub(super) fn of_waits(flat: &PerStage<Watts>) -> Self {
        Self::new(flat, PowerOrigin::Waits)
    }

    /// At the highest clock.
    pub(super) fn flat(&self) -> PerStage<Watts> {
        let each = self.by_stage_w.clone().and_then(|each| PerStage::new(each).ok());
        each.unwrap_or_else(|| Watts(self.watts).into())
    }

    /// By clock, where that is known.
    pub(super) fn waiting(&self) -> PerStage<PowerByClock> {
        let each = self.by_stage_by_mhz.clone().and_then(|each| PerStage::new(each).ok());
        let common = || self.by_mhz.clone().map(PerStage::from);
        each.or_else(common).unwrap_or_else(|| self.flat().into())
    }

    pub(super) fn in_words(&self) -> String {
        let power = match &self.by_stage_w {
            Some(_) => format!("{} by stage", self.flat()),
            None => watts(self.watts),
        };
        match &self.origin {
            PowerOrigin::Given => power + ", as given",
            PowerOrigin::Waits => power + ", measured in its waits",
            PowerOrigin::Steps => power + ", what its steps draw beside their instructions",
            PowerOrigin::Stored(origin) => format!("{origin}, reused"),
        }
    }
}

impl Tune {
    pub(super) fn planned_power(
        &self,
        daemons: &Daemons,
        recording: Option<&Recording>,
        pipeline: &Pipeline,
    ) -> Result<PlannedPower, Error> {
        if let Some(power) = &self.p2p_power {
            return Ok(PlannedPower::new(power, PowerOrigin::Given));
        }
        let no_waits = || TuneError::NoWaits { job: self.job.name().clone() };
        let recording = recording.ok_or_else(no_waits)?;
        let baseline = &recording.baseline;
        let num_stages = pipeline.profile().num_stages();
        let of_stages = p2p_power::of_stages(&baseline.trial.ranks, num_stages);
        if let Some(stored) = stored(daemons, recording, &of_stages)? {
            return Ok(stored);
        }
        if let Some(power) = p2p_power::of_waits(baseline, &of_stages) {
            return Ok(PlannedPower::of_waits(&power));
        }
        let window = Window::of(self.job.name(), &baseline.trial)?;
        let stages = f64::from(num_stages);
        let energy_j = window.energy_j() * stages / baseline.trial.ranks.len() as f64;
        let power = p2p_power::of_steps(pipeline, window.time_s(), energy_j)?;
        Ok(PlannedPower::new(&power.ok_or_else(no_waits)?.into(), PowerOrigin::Steps))
    }
}

/// What the agent knows of the GPU models of all stages; none if it knows none of one of them.
fn stored(
    daemons: &Daemons,
    recording: &Recording,
    of_stages: &[&TrialRank],
) -> Result<Option<PlannedPower>, Error> {
    let mut of_models = BTreeMap::new();
    // Ranks may be on other nodes, of whose GPUs this one knows nothing.
    let clocks_of = |model: &str| {
        let ranks = &recording.baseline.trial.ranks;
        let mut of_model = ranks.iter().filter(|rank| rank.gpu_model == model);
        of_model.find_map(|rank| measure::sm_clocks(daemons, &rank.gpu_uuid).ok())
    };
    for rank in of_stages {
        let model = rank.gpu_model.as_str();
        if of_models.contains_key(model) {
            continue;
        }
        let ask = || known::of(&mut daemons.agent()?, Some(model));
        let Some(Known { power_w, by_clock, origin }) = patiently(recording.held.progress(), ask)?
        else {
            return Ok(None);
        };
        let by_clock = by_clock.and_then(|power| power.among(&clocks_of(model)?));
        of_models.insert(model, (Watts(power_w), by_clock, origin));
    }
    let known = || of_stages.iter().filter_map(|rank| of_models.get(rank.gpu_model.as_str()));
    let Ok(flat) = PerStage::new(known().map(|(flat, ..)| *flat).collect()) else {
        return Ok(None);
    };
    let origins: Vec<&str> = of_models.values().map(|(.., origin)| origin.as_str()).collect();
    let mut power = PlannedPower::new(&flat, PowerOrigin::Stored(origins.join(" and ")));
    if known().any(|(_, by_clock, _)| by_clock.is_some()) {
        let each = known().map(|(flat, by_clock, _)| {
            by_clock.clone().unwrap_or_else(|| PowerByClock::from(*flat))
        });
        let each: Vec<PowerByClock> = each.collect();
        match of_models.len() {
            1 => power.by_mhz = each.into_iter().next(),
            _ => power.by_stage_by_mhz = Some(each),
        }
    }
    Ok(Some(power))
}
