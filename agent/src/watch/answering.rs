//! Slow stages: each node says which of its own are slow, and one node of the job answers for all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pfo_fleet::Digest;
use pfo_planner::Profile;
use pfo_service::lock;
use tokio::task::JoinHandle;

use crate::fleet::AllSlow;
use crate::job::JobKey;
use crate::steer::{Stands, Steer, SteerError, Swapped};
use crate::straggler::{FrontierJob, SlowStages, Stragglers};
use crate::watch::reference::Reference;
use crate::watch::report;

/// The slow stages of a job, and the answers to them.
#[derive(Debug, Default)]
pub(super) struct Answering {
    profile: Arc<Mutex<Fetched>>,
    fetching: Option<JoinHandle<()>>,
    answering: Option<JoinHandle<Option<Decided>>>,
    /// The slow stages that were answered or left alone, and the number of the job's change then.
    decided: Option<Decided>,
}

/// What was profiled, by the digests of its parts.
type Fetched = Option<(Vec<Digest>, Arc<Profile>)>;

/// The shares of slow stages in millionths, and the number of a change.
type Decided = (BTreeMap<pfo_protocol::Stage, i32>, u64);

impl Answering {
    /// What the job is to be compared with, once that is here; none if its slow stages are not watched.
    pub(super) fn reference(
        &mut self,
        job: &Arc<dyn Steer>,
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
            let (job, digests) = (Arc::clone(job), digests.clone());
            let profile = Arc::clone(&self.profile);
            self.fetching = Some(tokio::spawn(async move {
                match job.fetch_profile(&digests).await {
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
    /// already. `are_limited` says that power limits hold all slow ranks of this node.
    pub(super) async fn answer(
        &mut self,
        stragglers: &Arc<Stragglers>,
        job: &Arc<dyn Steer>,
        stands: &Stands,
        are_limited: bool,
    ) {
        if let Some(answering) = self.answering.take_if(|answering| answering.is_finished()) {
            self.decided = answering.await.ok().flatten();
        }
        let Some(watch) = &stands.standing.watch else { return };
        if stands.in_trial || self.answering.is_some() {
            return;
        }
        if !matches!(job.is_for_this_node(&watch.by_node).await, Ok(true)) {
            return;
        }
        let frontier = stragglers.of(&stands.view);
        let Ok(Some(slow)) = job.all_slow().await else { return };
        if let Some(frontier) = &frontier {
            frontier.note(slow.conditions.clone());
        }
        let answered = stands.standing.straggler.as_ref();
        let found = answered.map(|answered| answered.found.clone()).unwrap_or_default();
        let is_left_alone = answered.is_some_and(|answered| answered.found.is_empty());
        let is_paced = frontier.is_none_or(|frontier| frontier.may_answer(are_limited));
        let may_answer = slow.stages.is_empty() || is_paced;
        let decision = (slow.stages.clone(), stands.number);
        let is_decided = self.decided.as_ref() == Some(&decision);
        if is_left_alone || found == slow.stages || !may_answer || is_decided {
            return;
        }
        let (job, stragglers) = (Arc::clone(job), Arc::clone(stragglers));
        let view = stands.view.clone();
        self.answering = Some(tokio::spawn(async move {
            let answered = stragglers.answer_slow(&*job, &view, &slow).await;
            decided(job.key(), decision, answered)
        }));
    }
}

/// Whether a decision stands, by what became of it.
fn decided(
    key: &JobKey,
    decision: Decided,
    answered: Result<Option<Swapped>, SteerError>,
) -> Option<Decided> {
    match answered {
        Ok(Some(swapped)) => report::answered(key, decision.0.len(), &swapped),
        Ok(None) => {}
        // Its nodes are just changing to something else, or cannot agree now.
        Err(error) if error.is_temporary() => return None,
        Err(error) => tracing::warn!(
            job = %key.name, uid = key.uid.0, "cannot answer the slow stages of {key}: {error}"
        ),
    }
    Some(decision)
}
