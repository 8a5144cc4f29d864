//! Slow stages of jobs that have ranks on other nodes: each node says which of its own are slow, and one
//! of them answers for all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pfo_fleet::Digest;
use pfo_planner::Profile;
use pfo_protocol::{FleetSwapped, JobView, Refusal, RefusalCode};
use pfo_service::lock;
use tokio::task::JoinHandle;

use crate::fleet::{AllSlow, Fleet, Stands};
use crate::job::JobKey;
use crate::straggler::{FrontierJob, SlowStages, Stragglers};
use crate::watch::reference::Reference;
use crate::watch::report;

/// A job of several nodes that is watched.
#[derive(Debug, Default)]
pub(super) struct WatchedWhole {
    profile: Arc<Mutex<Fetched>>,
    fetching: Option<JoinHandle<()>>,
    answering: Option<JoinHandle<Option<Decided>>>,
    /// The slow stages that were answered or left alone, and the swap of the whole job then.
    decided: Option<Decided>,
}

/// What was profiled, by the digests of its parts.
type Fetched = Option<(Vec<Digest>, Arc<Profile>)>;

/// The shares of slow stages in millionths, and a swap.
type Decided = (BTreeMap<pfo_protocol::Stage, i32>, u64);

impl WatchedWhole {
    /// What the job is to be compared with, once that is here; none if its slow stages are not watched.
    pub(super) fn reference(
        &mut self,
        fleet: &Arc<Fleet>,
        job: &JobView,
        (stands, frontier): (&Stands, Option<&Arc<FrontierJob>>),
    ) -> Option<Reference> {
        if let Some(frontier) = frontier {
            return Some(Reference::Frontier(Arc::clone(frontier)));
        }
        let digests = &stands.standing.watch.as_ref()?.profile;
        let known = lock(&self.profile).clone();
        if let Some((_, profile)) = known.filter(|(known, _)| known == digests) {
            return Some(Reference::Profile(profile));
        }
        if self.fetching.as_ref().is_none_or(JoinHandle::is_finished) {
            let (fleet, job, digests) = (Arc::clone(fleet), job.clone(), digests.clone());
            let profile = Arc::clone(&self.profile);
            self.fetching = Some(tokio::spawn(async move {
                match fleet.fetch_profile(&job, &digests).await {
                    Ok(fetched) => *lock(&profile) = Some((digests, Arc::new(fetched))),
                    Err(why) => tracing::debug!("cannot watch the stages of a job: {why}"),
                }
            }));
        }
        None
    }

    /// The slow stages that an earlier agent has answered.
    pub(super) fn answered(stands: &Stands) -> SlowStages {
        let answered = stands.standing.straggler.as_ref();
        let found = answered.map(|answered| answered.found.clone()).unwrap_or_default();
        AllSlow { stages: found, ..AllSlow::default() }.shares()
    }

    /// Answers what has changed about slow stages anywhere, if that is for this node and was not answered
    /// already.
    pub(super) async fn answer(
        &mut self,
        (fleet, stragglers): (&Arc<Fleet>, &Arc<Stragglers>),
        job: &JobView,
        stands: &Stands,
    ) {
        if let Some(answering) = self.answering.take_if(|answering| answering.is_finished()) {
            self.decided = answering.await.ok().flatten();
        }
        let Some(watch) = &stands.standing.watch else { return };
        if stands.in_trial || self.answering.is_some() {
            return;
        }
        if !fleet.is_for_this_node(job, &watch.by_node).await {
            return;
        }
        let (key, frontier) = (JobKey::of(job), stragglers.of(job));
        let Some(slow) = fleet.all_slow(&key).await else { return };
        if let Some(frontier) = &frontier {
            frontier.note(slow.conditions.clone());
        }
        let answered = stands.standing.straggler.as_ref();
        let found = answered.map(|answered| answered.found.clone()).unwrap_or_default();
        let is_left_alone = answered.is_some_and(|answered| answered.found.is_empty());
        let is_paced = frontier.is_none_or(|frontier| frontier.may_answer());
        let may_answer = slow.stages.is_empty() || is_paced;
        let decision = (slow.stages.clone(), stands.number);
        let is_decided = self.decided.as_ref() == Some(&decision);
        if is_left_alone || found == slow.stages || !may_answer || is_decided {
            return;
        }
        let (fleet, stragglers) = (Arc::clone(fleet), Arc::clone(stragglers));
        let job = job.clone();
        self.answering = Some(tokio::spawn(async move {
            let answered = stragglers.answer_slow_whole(&fleet, &job, &slow).await;
            decided(&key, decision, answered)
        }));
    }
}

/// Whether a decision stands, by what became of it.
fn decided(
    key: &JobKey,
    decision: Decided,
    answered: Result<Option<FleetSwapped>, Refusal>,
) -> Option<Decided> {
    match answered {
        Ok(Some(swapped)) => report::answered_whole(key, decision.0.len(), &swapped),
        Ok(None) => {}
        // Its nodes are just changing to something else, or cannot agree now.
        Err(refusal) if refusal.code == RefusalCode::LimitReached => return None,
        Err(error) => tracing::warn!(
            job = %key.name, uid = key.uid.0, "cannot answer the slow stages of {key}: {error}"
        ),
    }
    Some(decision)
}
