//! A job that its scheduler has requeued begins with nothing in the store. What its former run has left
//! there is carried over by a node that had a part of both: its frontier, its profile, its sweep, and what
//! it ran with what stood beside that. Nodes that are new then run what the others do.

use std::time::{Duration, Instant};

use pfo_fleet::{Digest, Run, Shared, Standing, Terms, View, completeness};
use pfo_protocol::{JobView, Rank};
use pfo_service::lock;
use pfo_store::{JobId, News, Note, Store, WatchedJob};
use tokio::time::{sleep, timeout};

use super::parts::Fleet;
use super::stands::Change;
use super::unchanged::Unchanged;
use crate::job::JobKey;
use crate::refusal::is_temporary;
use crate::steer::next_step;

/// How often to look at jobs that are to be carried over, and for how long.
const RHYTHM: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// How long all nodes may have taken part without a swap before they change to what the former run ran:
/// what a user has kept for the job goes first. Nodes without rank 0 leave it to that one for longer.
const FIRST: Duration = Duration::from_secs(15);
const OTHERS: Duration = Duration::from_secs(30);

/// How long the store may take to show the former run.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A run of a job that this node had a part of, while there is another one.
#[derive(Clone, Debug)]
pub(super) struct Former {
    pub(super) id: JobId,
    /// Since when there is the other one.
    pub(super) since: Instant,
    /// Whether what was noted is carried over.
    noted: bool,
    /// Since when all nodes take part.
    complete_since: Option<Instant>,
}

impl Former {
    pub(super) fn of(id: JobId) -> Self {
        Self { id, since: Instant::now(), noted: false, complete_since: None }
    }
}

impl Fleet {
    /// Carries over what former runs have left, for as long as the agent runs.
    pub(super) async fn carry_over(&self) {
        loop {
            sleep(RHYTHM).await;
            let carried: Vec<_> =
                lock(&self.carried).iter().map(|(key, of)| (key.clone(), of.clone())).collect();
            for (key, mut former) in carried {
                let over = match self.carry(&key, &mut former).await {
                    Ok(over) => over,
                    Err(why) => {
                        tracing::debug!("the former run of {key} is not carried over yet: {why}");
                        false
                    }
                };
                let mut carried = lock(&self.carried);
                if over || former.since.elapsed() > PATIENCE {
                    carried.remove(&key);
                } else if let Some(known) = carried.get_mut(&key).filter(|of| of.id == former.id) {
                    *known = former;
                }
            }
        }
    }

    /// Whether a job may still change to what its former run ran.
    pub(crate) fn is_carried_over(&self, key: &JobKey) -> bool {
        lock(&self.carried).contains_key(key)
    }

    /// Returns whether there is nothing left to do.
    async fn carry(&self, key: &JobKey, former: &mut Former) -> Result<bool, String> {
        if !self.jobs().contains(key) {
            return Ok(false);
        }
        if !former.noted {
            for note in [Note::Frontier, Note::Profile, Note::Sweep] {
                self.carry_note(key, &former.id, note).await?;
            }
            former.noted = true;
        }
        let Some(stands) = self.stands(key).await else { return Ok(false) };
        if stands.number > 0 {
            return Ok(true);
        }
        let job = self.questions.job(key).await.map_err(|error| error.to_string())?;
        let Some(job) = job else { return Ok(false) };
        let shown = self.show(key, View::Whole).await;
        let shared = shown.filter(|shown| shown.view == View::Whole).and_then(|shown| shown.shared);
        if shared.is_none_or(|shared| completeness(&shared.members).is_err()) {
            former.complete_since = None;
            return Ok(false);
        }
        let since = *former.complete_since.get_or_insert_with(Instant::now);
        let has_first = job.ranks.iter().any(|rank| rank.position.rank == Rank(0));
        if since.elapsed() < if has_first { FIRST } else { OTHERS } {
            return Ok(false);
        }
        let Some(left) = self.left_by(&former.id).await? else { return Ok(true) };
        if !left.is_of_use() {
            return Ok(true);
        }
        self.run_again(key, &job, &former.id, left).await
    }

    async fn carry_note(&self, key: &JobKey, former: &JobId, note: Note) -> Result<(), String> {
        if self.noted(key, note).await?.is_some() {
            return Ok(());
        }
        let Some(noted) = self.noted_of(former, note).await? else { return Ok(()) };
        let bytes = self.fetch_noted_of(former, &noted).await?;
        let written = self.write_note_of(key, note, (noted.label, noted.by_node), bytes).await;
        written.map_err(|refusal| refusal.message)
    }

    /// What a former run ran for good, and what stood beside it; none if it has left nothing.
    async fn left_by(&self, former: &JobId) -> Result<Option<Left>, String> {
        let store = self.store_now().map_err(|why| why.to_string())?;
        let first = async {
            let mut watch = store.watch(former, View::Part).await?;
            watch.next().await
        };
        let shown = timeout(TIMEOUT, first).await.map_err(|_| "the store does not show it")?;
        let News::Snapshot(shared) = shown.map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        Ok(Left::in_store(&shared))
    }

    /// Has all nodes of a job run what its former run ran, unless they have agreed on something else.
    async fn run_again(
        &self,
        key: &JobKey,
        job: &JobView,
        former: &JobId,
        Left { run, standing, .. }: Left,
    ) -> Result<bool, String> {
        let plan = match &run {
            Run::Plan(cut) => cut.stages.clone(),
            _ => Vec::new(),
        };
        let profile = standing.watch.iter().flat_map(|watch| watch.profile.clone());
        self.carry_slices(key, former, plan.into_iter().chain(profile)).await?;
        let standing = Some(standing.for_another(next_step(job)));
        let terms = Terms { after: Some(0), standing, ..Terms::default() };
        let label = run.to_string();
        let change = Change { run: Some(run), by_uid: key.uid, terms, wait: false };
        match self.change(key, change).await {
            Ok(swapped) => {
                tracing::info!(
                    uid = key.uid.0, job = %key.name,
                    "{key} runs {label} on all of its nodes from step {} on, on which they had agreed before \
                     it was requeued", swapped.step
                );
                Ok(true)
            }
            Err(Unchanged::Meanwhile(_)) => Ok(true),
            Err(Unchanged::Refused(refusal)) if is_temporary(refusal.code) => Err(refusal.message),
            Err(Unchanged::Refused(refusal)) => {
                tracing::info!(
                    uid = key.uid.0, job = %key.name,
                    "{key} does not go on with {label}, which it ran before it was requeued: {refusal}"
                );
                self.run_default_clocks(key).await
            }
        }
    }

    /// Otherwise each `pfod` would go back by itself to what it had run of the former run, as soon as that
    /// fits again, and nothing would stand beside it.
    async fn run_default_clocks(&self, key: &JobKey) -> Result<bool, String> {
        let terms =
            Terms { after: Some(0), standing: Some(Standing::default()), ..Terms::default() };
        let run = Some(Run::DefaultClocks);
        match self.change(key, Change { run, by_uid: key.uid, terms, wait: false }).await {
            Ok(_) | Err(Unchanged::Meanwhile(_)) => Ok(true),
            Err(Unchanged::Refused(refusal)) => Err(refusal.message),
        }
    }

    async fn carry_slices(
        &self,
        key: &JobKey,
        former: &JobId,
        slices: impl Iterator<Item = Digest>,
    ) -> Result<(), String> {
        let (store, job) = (self.store_now().map_err(|why| why.to_string())?, self.id_of(key));
        for digest in slices {
            let slice = store.fetch(former, digest).await.map_err(|error| error.to_string())?;
            store.publish(&job, &slice).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// What a run has left.
#[derive(Debug, PartialEq)]
struct Left {
    /// What it ran by itself when its ranks left, without the plan for a straggler.
    run: Run,
    /// What stood beside it.
    standing: Standing,
    /// Whether it was in a trial: each `pfod` goes on with what was tried.
    in_trial: bool,
}

impl Left {
    fn in_store(shared: &Shared) -> Option<Self> {
        let standing = shared.standing()?.clone();
        let answered = standing.straggler.as_ref();
        let run = answered.map_or_else(|| shared.for_good(), |answered| answered.before.clone());
        let in_trial = shared.committed().next().is_some_and(|(_, newest)| newest.trial.is_some());
        Some(Self { run, standing, in_trial })
    }

    /// Whether another run has anything of it.
    fn is_of_use(&self) -> bool {
        let Self { run, standing, in_trial } = self;
        *in_trial
            || matches!(run, Run::Plan(_))
            || standing.guard.is_some()
            || standing.watch.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pfo_fleet::{Answered, Decision, Guard, Length, PlanCut, Proposal, Trial};
    use pfo_protocol::Uid;

    use super::*;

    fn plan(label: &str) -> Run {
        let stages = Vec::new();
        let label = label.to_owned();
        Run::Plan(PlanCut { label, num_microbatches: 1, predicted: None, stages })
    }

    fn left(run: Run, trial: Option<Trial>, standing: Standing) -> Option<Left> {
        let proposal = Proposal {
            run,
            step: 10,
            members: BTreeSet::new(),
            proposed_at: 3,
            by_uid: Uid(1000),
            by_node: "a".parse().unwrap(),
            trial,
            standing,
            rollback: None,
            compared: Vec::new(),
        };
        let mut shared = Shared::default();
        shared.apply(pfo_fleet::Change::Proposal(1, proposal));
        shared.apply(pfo_fleet::Change::Decision(1, Decision::Commit));
        Left::in_store(&shared)
    }

    #[test]
    fn a_run_leaves_what_it_ran_by_itself_and_no_trial_and_no_straggler() {
        let guard = Guard::of(0.1, "a".parse().unwrap(), 7);
        let guarded = Standing { guard: Some(guard), ..Standing::default() };
        assert_eq!(Left::in_store(&Shared::default()), None);
        let ran = |in_trial| Left { run: plan("p"), standing: guarded.clone(), in_trial };
        assert_eq!(left(plan("p"), None, guarded.clone()), Some(ran(false)));
        let length = Length { settling_steps: 1, steps: 1, samples: false };
        let trial = Some(Trial { length, before: plan("p"), returns: false });
        assert_eq!(left(plan("q"), trial, guarded.clone()), Some(ran(true)));
        let (before, found) = (plan("p"), [].into());
        let straggler = Some(Answered { factor: 1.2, before, found });
        let left = left(plan("q"), None, Standing { straggler, ..guarded.clone() }).unwrap();
        assert_eq!(left.run, plan("p"));
    }

    #[test]
    fn default_clocks_are_of_use_only_with_a_guard_or_a_watch_or_after_a_trial() {
        let guard = Some(Guard::of(0.1, "a".parse().unwrap(), 7));
        let guarded = Standing { guard, ..Standing::default() };
        let is_of_use = |run, standing, in_trial| Left { run, standing, in_trial }.is_of_use();
        assert!(is_of_use(plan("p"), Standing::default(), false));
        assert!(!is_of_use(Run::DefaultClocks, Standing::default(), false));
        assert!(is_of_use(Run::DefaultClocks, guarded, false));
        assert!(is_of_use(Run::DefaultClocks, Standing::default(), true));
    }
}
