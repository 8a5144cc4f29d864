//! What a whole job runs for good, what stands beside that, and changes of the two together.

use pfo_fleet::{Guard, Run, Standing, Terms, Told, View, completeness};
use pfo_protocol::{FleetSwapped, JobView, Mhz, Rank, Refusal, RefusalCode, Uid};
use pfo_store::Store;
use tokio::time::sleep;

use super::parts::Fleet;
use super::slices::table_of;
use super::swap::{POLL, refusal_of, unchanged, unchanged_by};
use super::unchanged::Unchanged;
use crate::job::{JobKey, no_job};
use crate::pfod::PfodError;
use crate::steer::next_step;
use crate::straggler::Labelled;

/// What a whole job runs for good.
#[derive(Clone, Debug)]
pub(crate) struct Stands {
    /// The number of the newest committed swap, 0 before the first.
    pub(crate) number: u64,
    /// Its step.
    pub(crate) step: u64,
    /// Whether that is a trial.
    pub(crate) in_trial: bool,
    pub(crate) run: Run,
    pub(crate) standing: Standing,
}

/// What a whole job is to change to.
pub(crate) struct Change {
    /// None for what it ran before.
    pub(crate) run: Option<Run>,
    pub(crate) by_uid: Uid,
    pub(crate) terms: Terms,
    /// Answer only when every node has changed.
    pub(crate) wait: bool,
}

impl Fleet {
    /// The ranks of a job on this node.
    ///
    /// # Errors
    /// If there are none, or `pfod` does not answer.
    pub(crate) async fn view(&self, key: &JobKey) -> Result<JobView, PfodError> {
        self.questions.job(key).await?.ok_or_else(|| no_job(key).into())
    }

    /// What a job runs, as this node knows it; none if it takes no part in the job, or the store has
    /// never answered.
    pub(crate) async fn stands(&self, key: &JobKey) -> Option<Stands> {
        let shared = self.show(key, View::Part).await?.shared?;
        let newest = shared.committed().next();
        Some(Stands {
            number: newest.map_or(0, |(number, _)| number),
            step: newest.map_or(0, |(_, proposal)| proposal.step),
            in_trial: newest.is_some_and(|(_, proposal)| proposal.trial.is_some()),
            run: shared.for_good(),
            standing: shared.standing().cloned().unwrap_or_default(),
        })
    }

    /// The clocks that every rank of a job may have, rising; none if not all of its nodes are there.
    pub(crate) async fn common_clocks(&self, key: &JobKey) -> Option<Vec<Mhz>> {
        let shared = self.show(key, View::Whole).await?.shared?;
        completeness(&shared.members).ok()?;
        let (first, others) = {
            let mut members = shared.members.values();
            (members.next()?, members)
        };
        let mut clocks = first.gpus.clocks.clone();
        others.for_each(|other| clocks.retain(|mhz| other.gpus.clocks.contains(mhz)));
        Some(clocks)
    }

    pub(super) async fn is_in_trial(&self, key: &JobKey) -> bool {
        self.stands(key).await.is_some_and(|stands| stands.in_trial)
    }

    /// What a job runs.
    ///
    /// # Errors
    /// If it is not known.
    pub(crate) async fn known_to_stand(&self, key: &JobKey) -> Result<Stands, Refusal> {
        let unknown = || unchanged(key, &"this node does not take part in it yet");
        self.stands(key).await.ok_or_else(unknown)
    }

    /// Whether it is for this node to do what was asked for at another one: that is no member of the job
    /// any more, and this one has rank 0.
    pub(crate) async fn is_for_this_node(&self, job: &JobView, node: &pfo_fleet::Node) -> bool {
        if node == self.node() {
            return true;
        }
        if !job.ranks.iter().any(|rank| rank.position.rank == Rank(0)) {
            return false;
        }
        let Some(shown) = self.show(&JobKey::of(job), View::Whole).await else { return false };
        let is_gone = |shared: &pfo_fleet::Shared| !shared.members.contains_key(node);
        let is_whole = shown.view == View::Whole && shown.away.is_none();
        is_whole && shown.shared.as_ref().is_some_and(is_gone)
    }

    /// All stages of the plan that a job runs; none if it runs no plan.
    ///
    /// # Errors
    /// If the store does not have them, or they are no plan.
    pub(crate) async fn plan_of(
        &self,
        key: &JobKey,
        run: &Run,
    ) -> Result<Option<Labelled>, Refusal> {
        let Run::Plan(cut) = run else { return Ok(None) };
        let store = self.store_now().map_err(|why| unchanged_by(key, &why))?;
        let mut slices = pfo_store::Slices::new();
        for digest in &cut.stages {
            let slice = store.fetch(&self.id_of(key), *digest).await;
            slices.insert(*digest, slice.map_err(|error| unchanged_by(key, &error))?);
        }
        let table = table_of(cut, &slices).map_err(|why| unchanged(key, &why))?;
        Ok(Some(Labelled { label: cut.label.clone(), table }))
    }

    /// Keeps something of a job in the store, under its digest.
    ///
    /// # Errors
    /// If the store does not take it.
    pub(crate) async fn keep(
        &self,
        key: &JobKey,
        slice: &[u8],
    ) -> Result<pfo_fleet::Digest, Refusal> {
        let store = self.store_now().map_err(|why| unchanged_by(key, &why))?;
        store.publish(&self.id_of(key), slice).await.map_err(|error| unchanged_by(key, &error))
    }

    /// Has the whole job change, at the same step on all of its nodes.
    ///
    /// # Errors
    /// If its nodes do not agree on it.
    pub(crate) async fn change(
        &self,
        key: &JobKey,
        Change { run, by_uid, terms, wait }: Change,
    ) -> Result<FleetSwapped, Unchanged> {
        let of = self.id_of(key);
        let (number, step) = match self.agreement_in_turn(key, (run, by_uid, terms)).await? {
            Told::Committed { number, step } => (number, step),
            Told::Changed => return Err(Unchanged::Meanwhile(refusal_of(key, Told::Changed))),
            told => return Err(refusal_of(key, told).into()),
        };
        loop {
            let swapped = self.swapped(key, number, step).await;
            if !wait {
                return Ok(swapped);
            }
            // Another run counts its swaps anew.
            if self.id_of(key) != of {
                let message = format!(
                    "{key} has ended, or another run of it has begun, before all of its nodes had \
                     changed at step {step}"
                );
                let remedy = "`pfoctl status` shows what it runs";
                return Err(Refusal::new(RefusalCode::NotInForce, message, remedy).into());
            }
            // Its nodes leave the store before this one knows that the run has ended.
            let has_nodes = swapped.nodes > 0 || of.run.is_none();
            if has_nodes && swapped.changed >= swapped.nodes {
                return Ok(swapped);
            }
            sleep(POLL).await;
        }
    }

    /// A guard by this node, from now on.
    pub(super) fn new_guard(&self, job: &JobView, max_slowdown: f64) -> Guard {
        Guard::of(max_slowdown, self.node().clone(), next_step(job))
    }
}
