//! A job that has ranks on other nodes, too, with the agents there.

use std::sync::Arc;

use pfo_protocol::{JobView, PlanStatus};

use crate::fleet::{Asked, Fleet, WholeHold};
use crate::job::JobKey;
use crate::ledger::Compared;
use crate::pfod::Asker;
use crate::steer::{
    Doing, Hold, Measured, Steer, SteerError, SwapRequest, Swapped, Turn, WholeJob,
};
use crate::straggler::Labelled;

/// The hand on a job of several nodes.
#[derive(Debug)]
pub(super) struct OnNodes {
    fleet: Arc<Fleet>,
    job: JobView,
    key: JobKey,
}

impl OnNodes {
    pub(super) fn of(fleet: &Arc<Fleet>, job: &JobView) -> Self {
        Self { fleet: Arc::clone(fleet), job: job.clone(), key: JobKey::of(job) }
    }
}

impl Steer for OnNodes {
    fn key(&self) -> &JobKey {
        &self.key
    }

    fn look(&self) -> Doing<'_, WholeJob> {
        Box::pin(async {
            let view = self.fleet.view(&self.key).await?;
            let members = self.fleet.members(&self.key).await?;
            Ok(WholeJob { view, members })
        })
    }

    fn swap(&self, request: SwapRequest) -> Doing<'_, Swapped> {
        let SwapRequest { by, target, at_step, wait } = request;
        let asked = Asked { target, at_step, max_slowdown: None, wait };
        Box::pin(async move {
            let swapped = self.fleet.swap(by.uid, &self.job, asked).await?;
            Ok(Swapped::Fleet(swapped))
        })
    }

    fn plan(&self) -> Doing<'_, Option<Labelled>> {
        Box::pin(async {
            let stands = self.fleet.known_to_stand(&self.key).await?;
            Ok(self.fleet.plan_of(&self.key, &stands.run).await?)
        })
    }

    fn hold(&self, by: Asker) -> Box<dyn Hold> {
        let (fleet, job) = (Arc::clone(&self.fleet), self.job.clone());
        Box::new(HoldOnNodes { fleet, job, by, held: None })
    }
}

/// A job that the agents of its nodes hold.
#[derive(Debug)]
struct HoldOnNodes {
    fleet: Arc<Fleet>,
    job: JobView,
    by: Asker,
    held: Option<WholeHold>,
}

impl Hold for HoldOnNodes {
    fn turn(&mut self, turn: Turn) -> Doing<'_, Measured> {
        let Turn { setting, length, samples } = turn;
        Box::pin(async move {
            let turn = (setting, length, samples);
            Ok(self.fleet.trial(self.by.uid, &self.job, turn, &mut self.held).await?)
        })
    }

    fn is_held(&self) -> bool {
        self.held.is_some()
    }

    fn take(&mut self, plan: PlanStatus, compared: Compared) {
        if let Some(held) = &mut self.held {
            held.take(compared.shared(plan.label, plan.predicted_energy_j));
        }
    }

    fn end(&mut self, keep: bool) -> Doing<'_, Option<PlanStatus>> {
        let held = self.held.take();
        Box::pin(async move {
            match held {
                Some(held) => held.end(keep).await.map_err(SteerError::from),
                None => Ok(None),
            }
        })
    }
}
