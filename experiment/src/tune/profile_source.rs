//! Where the profile of a job comes from: it was handed over, the agent has stored it or, if none is
//! stored, a sweep of the job measures it and stores it for the next time.

use pfo_protocol::{
    AgentRequest, AgentResponse, ProfileKey, ProfileSelector, SweepEnd, SweepOrder, SweepState,
    SweepStatus,
};

use crate::bench::{Bench, Phase};
use crate::error::TuneError;
use crate::report::Origin;
use crate::subject::{Subject, unexpected};
use crate::terms::TuneOrder;

/// A profile, and where it comes from.
pub(crate) struct Sourced {
    pub(crate) csv: Vec<u8>,
    pub(crate) name: String,
    pub(crate) origin: Origin,
}

/// A stored profile in words.
#[must_use]
pub fn described(key: &ProfileKey) -> String {
    let ProfileKey { model, gpus, partition, .. } = key;
    format!("the profile of {model} on {gpus} ({partition})")
}

impl<B: Bench> Subject<'_, B> {
    /// The profile. A sweep that was interrupted continues.
    pub(crate) async fn profile(&mut self, order: &TuneOrder) -> Result<Sourced, TuneError> {
        if let Some(csv) = &order.profile {
            let (csv, name) = (csv.clone(), order.terms.profile_name.clone());
            return Ok(Sourced { csv, name, origin: Origin::File });
        }
        self.begin(Phase::Profile, "waiting for the profile".to_owned());
        let terms = &order.terms;
        let order = SweepOrder {
            job: self.selector(),
            model: terms.model.clone(),
            settings: terms.sweep(),
            reuse: !terms.remeasure,
        };
        let (key, origin) = self.swept(order).await?;
        let name = described(&key);
        let ProfileKey { uid, model, gpus, partition } = key;
        let (gpus, partition) = (Some(gpus), Some(partition));
        let selector = ProfileSelector { model, uid: Some(uid), gpus, partition };
        match self.agent(AgentRequest::ProfileRead(selector)).await? {
            AgentResponse::Profile { csv, .. } => Ok(Sourced { csv, name, origin }),
            other => Err(unexpected(&other)),
        }
    }

    async fn swept(&mut self, order: SweepOrder) -> Result<(ProfileKey, Origin), TuneError> {
        let before = self.unfinished_sweeps().await?;
        let SweepStatus { state, profile: key, not_in_force, .. } =
            match self.agent(AgentRequest::SweepAttend(order)).await? {
                AgentResponse::Reused(stored) => return Ok((stored.key, Origin::Stored)),
                AgentResponse::Sweep(sweep) => *sweep,
                other => return Err(unexpected(&other)),
            };
        match state {
            SweepState::Ended(SweepEnd::Stopped) => {
                Err(TuneError::SweepStopped { job: self.job() })
            }
            SweepState::Paused { why } => {
                let why = why.unwrap_or_else(|| "on request".to_owned());
                Err(TuneError::SweepPaused { job: self.job(), why, not_in_force })
            }
            SweepState::Ended(_) | SweepState::Running | SweepState::Waiting { .. } => {
                let same = before.iter().find(|earlier| earlier.profile == key);
                let resumed_after = same.map_or(0, |earlier| earlier.measured);
                Ok((key, Origin::Measured { resumed_after }))
            }
        }
    }

    /// Whether a sweep of the job, its model divided in this way, is not over.
    pub(crate) async fn has_unfinished_sweep(
        &mut self,
        partition: &str,
    ) -> Result<bool, TuneError> {
        let unfinished = self.unfinished_sweeps().await?;
        Ok(unfinished.iter().any(|sweep| sweep.profile.partition == partition))
    }

    /// The sweeps of jobs of this name that are not over.
    async fn unfinished_sweeps(&mut self) -> Result<Vec<SweepStatus>, TuneError> {
        let mut sweeps = match self.agent(AgentRequest::Sweeps).await? {
            AgentResponse::Sweeps(sweeps) => sweeps,
            other => return Err(unexpected(&other)),
        };
        let job = self.job();
        sweeps.retain(|sweep| sweep.job == job && !matches!(sweep.state, SweepState::Ended(_)));
        Ok(sweeps)
    }
}
