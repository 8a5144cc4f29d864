//! A first plan of a job that has ranks on other nodes, too: it was loaded on one node, so the others do
//! not begin with it. All of them change to it in one swap, as soon as every node takes part.

use std::sync::Arc;

use pfo_protocol::{FirstPlanState, JobView, Rank, Refusal, RefusalCode, SwapTarget};

use crate::first_plan::kept::{FirstPlans, Whole};
use crate::fleet::{Fleet, fleet_of};
use crate::job::JobKey;
use crate::steer::{SwapRequest, owner};
use crate::straggler::Labelled;

impl FirstPlans {
    /// Whether a job with this plan certainly has ranks on other nodes of the fleet: it has more stages
    /// than this node has GPUs. Then no node begins with the plan alone.
    pub(super) async fn spans_nodes(&self, plan: &Labelled) -> bool {
        if self.means.steering.fleet.is_none() {
            return false;
        }
        let gpus = self.means.questions.gpus().await;
        gpus.is_ok_and(|gpus| plan.table.stages().len() > gpus.len())
    }

    /// Has all nodes of a job run the plan that is kept for it here, once after the job has begun. The node
    /// of the first rank asks; another one does if that keeps no plan.
    pub(super) fn tell_all_nodes(self: &Arc<Self>, key: &JobKey, job: &JobView) {
        let Some(fleet) = fleet_of(self.means.steering.fleet.as_ref(), job).map(Arc::clone) else {
            return;
        };
        let before = match self.kept().get_mut(key) {
            Some(kept) => std::mem::replace(&mut kept.whole, Whole::Settled),
            None => return,
        };
        if before == Whole::Settled {
            return;
        }
        let (plans, key, job) = (Arc::clone(self), key.clone(), job.clone());
        // The nodes may take a minute to agree.
        tokio::spawn(async move {
            if let Err(why) = plans.ask_all_nodes(&fleet, &key, &job, before).await {
                // Nodes that have yet to come do so until it is tried again.
                let is_final = why.code == RefusalCode::PlanDoesNotFit;
                if is_final {
                    tracing::info!("{key} does not run the plan that is kept for it: {why}");
                } else {
                    tracing::debug!("{key} does not change on all of its nodes yet: {why}");
                }
                match plans.kept().get_mut(&key) {
                    Some(kept) if is_final => kept.state = FirstPlanState::Refused(why.message),
                    Some(kept) => kept.whole = before,
                    None => {}
                }
            }
        });
    }

    async fn ask_all_nodes(
        &self,
        fleet: &Fleet,
        key: &JobKey,
        job: &JobView,
        before: Whole,
    ) -> Result<(), Refusal> {
        let has_first = job.ranks.iter().any(|rank| rank.position.rank == Rank(0));
        let goes_first = has_first && before == Whole::ToAsk;
        if !goes_first && fleet.has_swapped(key).await? {
            return Ok(());
        }
        let Some(Labelled { label, table }) = self.plan_of(key).await? else { return Ok(()) };
        let target = SwapTarget::Table { label, table };
        let by = owner(key);
        let request = SwapRequest { by, target, at_step: None, max_slowdown: None, wait: false };
        let swapped = self.means.steering.of(job).swap(request).await?;
        tracing::info!(
            uid = key.uid.0, job = %key.name,
            "{key} changes to the plan that is kept for it on all of its nodes, at step {}",
            swapped.step()
        );
        Ok(())
    }
}

impl Fleet {
    /// Whether the nodes of a job have agreed on a swap.
    ///
    /// # Errors
    /// If this node has not seen the job in the store yet.
    async fn has_swapped(&self, key: &JobKey) -> Result<bool, Refusal> {
        let statuses = self.statuses(Some(key.uid)).await;
        let Some(job) = statuses.get(key).filter(|job| !job.nodes.is_empty()) else {
            let message = format!("the store has not shown {key} yet");
            return Err(Refusal::new(RefusalCode::UnknownJob, message, "try again in a moment"));
        };
        Ok(job.swap.is_some())
    }
}
