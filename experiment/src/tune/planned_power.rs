//! The P2P-blocking power that plans are made with, of each stage where GPU models differ.

use std::collections::BTreeMap;

use pfo_planner::{Mhz, PerStage, Pipeline, PowerByClock, Watts};
use pfo_protocol::{
    AgentRequest, AgentResponse, GpuName, P2pPower, RecordedTrial, Request, Response, TrialRank,
};

use super::p2p_power;
use crate::bench::Bench;
use crate::error::TuneError;
use crate::known_power::{KnownPower, power_of};
use crate::report::{PlannedPower, PowerOrigin};
use crate::subject::{Subject, unexpected};
use crate::terms::Terms;

impl<B: Bench> Subject<'_, B> {
    /// The power that the terms give, that the agent knows, or that the job shows at default clocks.
    pub(crate) async fn planned_power(
        &mut self,
        terms: &Terms,
        baseline: &RecordedTrial,
        pipeline: &Pipeline,
    ) -> Result<PlannedPower, TuneError> {
        if let Some(power) = terms.p2p_power()? {
            return Ok(PlannedPower::new(&power, PowerOrigin::Given));
        }
        let num_stages = pipeline.profile().num_stages();
        if num_stages == 1 {
            // What a single stage does beside its instructions takes the same time under every plan.
            return Ok(PlannedPower::new(&Watts(0.0).into(), PowerOrigin::Unneeded));
        }
        let of_stages = p2p_power::of_stages(&baseline.trial.ranks, num_stages);
        if let Some(stored) = self.stored_power(baseline, &of_stages).await? {
            return Ok(stored);
        }
        if let Some(power) = p2p_power::of_waits(baseline, &of_stages) {
            return Ok(PlannedPower::new(&power, PowerOrigin::Waits));
        }
        let window = self.window(&baseline.trial)?;
        let stages = f64::from(num_stages);
        let energy_j = window.energy_j() * stages / baseline.trial.ranks.len() as f64;
        let power = p2p_power::of_steps(pipeline, window.time_s(), energy_j)?;
        let power = power.ok_or_else(|| TuneError::NoWaits { job: self.job() })?;
        Ok(PlannedPower::new(&power.into(), PowerOrigin::Steps))
    }

    /// What the agent knows of the GPU models of all stages; none if it knows none of one of them.
    async fn stored_power(
        &mut self,
        baseline: &RecordedTrial,
        of_stages: &[&TrialRank],
    ) -> Result<Option<PlannedPower>, TuneError> {
        let powers = self.p2p_powers().await?;
        let mut of_models = BTreeMap::new();
        for rank in of_stages {
            let model = rank.gpu_model.as_str();
            if of_models.contains_key(model) {
                continue;
            }
            let Some(KnownPower { power_w, by_clock, origin }) = power_of(&powers, Some(model))
            else {
                return Ok(None);
            };
            let by_clock = match by_clock {
                Some(power) => {
                    self.clocks_of(baseline, model).await.and_then(|clocks| power.among(&clocks))
                }
                None => None,
            };
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

    async fn p2p_powers(&mut self) -> Result<Vec<P2pPower>, TuneError> {
        match self.agent(AgentRequest::P2pPowers).await? {
            AgentResponse::P2pPowers(powers) => Ok(powers),
            other => Err(unexpected(&other)),
        }
    }

    /// The clocks of a GPU model, if this node has one: ranks may be on other nodes, of whose GPUs it
    /// knows nothing.
    pub(crate) async fn clocks_of(
        &mut self,
        baseline: &RecordedTrial,
        model: &str,
    ) -> Option<Vec<Mhz>> {
        for rank in baseline.trial.ranks.iter().filter(|rank| rank.gpu_model == model) {
            let gpu = GpuName::Uuid(rank.gpu_uuid.clone());
            if let Some(Response::SmClocks(clocks)) = self.pfod_once(Request::SmClocks(gpu)).await {
                return Some(clocks);
            }
        }
        None
    }
}
