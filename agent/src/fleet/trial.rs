//! Trials of a whole job: a swap of all of its nodes, of which each one measures the same steps and hands
//! them in.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pfo_fleet::{
    Compared, Length, Member, Node, Purpose, Report, Run, Shared, Terms, Told, View, completeness,
};
use pfo_protocol::{JobView, PlanStatus, Refusal, RefusalCode, TrialLength, TrialRun, Uid};
use pfo_store::Store;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::local::at_clocks;
use super::part::{Measured, measured_in, whole};
use super::parts::Fleet;
use super::swap::{Wanted, check_limits, refusal_of};
use crate::job::JobKey;

/// The nodes of a job.
pub(crate) type Members = std::collections::BTreeMap<Node, Member>;

/// The comparisons that the end of trials carries. `tune` makes fewer of a plan.
const MOST_COMPARED: usize = 64;

/// How often to look for what a node has measured.
const POLL: Duration = Duration::from_millis(200);

/// How much later than the first node another one may hand in what it has measured.
const PATIENCE: Duration = Duration::from_secs(30);

/// A whole job that is held for measuring. When this is dropped, it returns to default clocks.
pub(crate) struct WholeHold {
    fleet: Arc<Fleet>,
    key: JobKey,
    by_uid: Uid,
    /// What its last trial ran.
    run: Run,
    /// The comparisons that its trials have been, the newest last.
    compared: Vec<Compared>,
    _holds: oneshot::Sender<Infallible>,
}

impl fmt::Debug for WholeHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeHold")
            .field("key", &self.key)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

impl WholeHold {
    /// Takes a comparison that its trials have been.
    pub(crate) fn take(&mut self, compared: Compared) {
        if self.compared.len() == MOST_COMPARED {
            self.compared.remove(0);
        }
        self.compared.push(compared);
    }

    /// Ends the trials: the job runs what the last one ran, or default clocks, for good. Returns what
    /// runs on this node.
    ///
    /// # Errors
    /// If its nodes do not agree on it; then it returns to default clocks when they do.
    pub(crate) async fn end(self, keep: bool) -> Result<Option<PlanStatus>, Refusal> {
        let Self { fleet, key, by_uid, run, mut compared, _holds } = self;
        let run = if keep { run } else { Run::DefaultClocks };
        compared.retain(|compared| matches!(&run, Run::Plan(plan) if plan.label == compared.label));
        let wanted = Wanted {
            run: Some(run),
            by_uid,
            purpose: Purpose::LastOfTrials,
            terms: Terms { compared, ..Terms::default() },
            holder: None,
        };
        match fleet.agreement(&key, wanted).await? {
            Told::Committed { number, .. } => fleet.until_run(&key, number).await,
            told => return Err(refusal_of(&key, told)),
        }
        let job = fleet.questions.job(&key).await.map_err(Refusal::from)?;
        Ok(job.and_then(|job| job.plan))
    }
}

impl Fleet {
    /// Runs a trial of a whole job, which is held from then on.
    ///
    /// # Errors
    /// If its nodes do not agree on it, or one of them does not measure all of it.
    pub(crate) async fn trial(
        self: &Arc<Self>,
        by_uid: Uid,
        job: &JobView,
        (run, length, samples): (TrialRun, TrialLength, bool),
        held: &mut Option<WholeHold>,
    ) -> Result<Measured, Refusal> {
        let key = JobKey::of(job);
        self.members(&key).await?;
        let run = match run {
            TrialRun::DefaultClocks => Run::DefaultClocks,
            TrialRun::Uniform(mhz) => Run::Uniform(mhz),
            TrialRun::Replicas(clocks) => at_clocks(clocks),
            TrialRun::Plan { label, table } => self.publish(&key, job, label, &table).await?,
            TrialRun::PowerLimits { label, limits_w } => {
                check_limits(&key, job, &limits_w)?;
                Run::PowerLimits { label, limits_w }
            }
            TrialRun::FreeMemory => {
                return Err(Refusal::new(
                    RefusalCode::Malformed,
                    format!("job {key} has ranks on other nodes, which lock their memory clocks"),
                    "calibrate the GPUs of its models with a job of one node",
                ));
            }
        };
        let TrialLength { settling_steps, steps } = length;
        let (holds, holder) = oneshot::channel();
        let purpose = Purpose::Trial(Length { settling_steps, steps, samples });
        let wanted = Wanted {
            run: Some(run.clone()),
            by_uid,
            purpose,
            terms: Terms::default(),
            holder: Some(holder),
        };
        let told = self.agreement(&key, wanted).await?;
        let Told::Committed { number, step } = told else { return Err(refusal_of(&key, told)) };
        let fleet = Arc::clone(self);
        let compared = held.take().map(|held| held.compared).unwrap_or_default();
        let key_of = key.clone();
        *held = Some(WholeHold { fleet, key: key_of, by_uid, run, compared, _holds: holds });
        let uid = key.uid.0;
        tracing::info!(
            uid, job = %key.name,
            "trial of user {by_uid} on all nodes of {key} from step {step} on (swap {number}): {steps} \
             steps are measured"
        );
        self.collect(&key, number).await
    }

    /// The nodes of a job, which have all of its ranks.
    ///
    /// # Errors
    /// Who or what is missing.
    pub(crate) async fn members(&self, key: &JobKey) -> Result<Members, Refusal> {
        let shared = self.shared(key).await?;
        let Err(why) = completeness(&shared.members) else { return Ok(shared.members) };
        let gone: Vec<_> =
            shared.reports.keys().filter(|node| !shared.members.contains_key(*node)).collect();
        let what = match gone.first() {
            Some(node) => format!("node {node} has left {key}, or cannot reach the store"),
            None => format!("{key} cannot be measured as a whole: {why}"),
        };
        Err(disturbed(what))
    }

    async fn shared(&self, key: &JobKey) -> Result<Shared, Refusal> {
        let shown = self.show(key, View::Whole).await;
        let is_away =
            shown.as_ref().is_some_and(|shown| shown.away.is_some() || shown.view == View::Part);
        let shared = shown.and_then(|shown| shown.shared);
        match shared {
            Some(shared) if !is_away => Ok(shared),
            _ => Err(disturbed(format!("the store of the fleet shows nothing of {key} now"))),
        }
    }

    /// What all nodes have measured of a trial.
    pub(super) async fn collect(&self, key: &JobKey, number: u64) -> Result<Measured, Refusal> {
        let shared = self.shared(key).await?;
        let swap = shared.swaps.get(&number).ok_or_else(|| another(key))?;
        let others = swap.proposal.members.iter().filter(|node| *node != self.node());
        let mut parts = Vec::new();
        let mut first = None;
        for node in std::iter::once(self.node()).chain(others) {
            let part = self.part(key, number, node, first).await?;
            first.get_or_insert_with(Instant::now);
            parts.push((node.clone(), part));
        }
        self.check_in_time(key, number).await?;
        let whole =
            whole(parts).map_err(|node| disturbed(format!("node {node} measured other steps")))?;
        whole.ok_or_else(|| another(key))
    }

    /// What a node has measured of a trial, once it has handed that in. `first` is when the first one
    /// had.
    async fn part(
        &self,
        key: &JobKey,
        number: u64,
        node: &Node,
        first: Option<Instant>,
    ) -> Result<Measured, Refusal> {
        let mut store_away = None;
        loop {
            let store = self.store_now().map_err(|why| disturbed(why.to_string()))?;
            match store.handed_in(&self.id_of(key), number, node).await {
                Ok(Some(part)) => {
                    return measured_in(&part).map_err(|refusal| {
                        let Refusal { message, remedy, .. } = refusal;
                        let message = format!("node {node}: {message}");
                        Refusal::new(RefusalCode::LimitReached, message, remedy)
                    });
                }
                Ok(None) => {
                    store_away = None;
                    self.check_goes_on(key, number, node).await?;
                }
                Err(error) => {
                    if store_away.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return Err(disturbed(error.to_string()));
                    }
                }
            }
            if first.is_some_and(|first| first.elapsed() > PATIENCE) {
                return Err(disturbed(format!(
                    "node {node} has not handed in what it measured of {key} within {} s",
                    PATIENCE.as_secs()
                )));
            }
            sleep(POLL).await;
        }
    }

    async fn check_goes_on(&self, key: &JobKey, number: u64, node: &Node) -> Result<(), Refusal> {
        let Ok(shared) = self.shared(key).await else { return Ok(()) };
        if !shared.members.contains_key(node) {
            let what = format!("node {node} has left {key}, or cannot reach the store");
            return Err(disturbed(what));
        }
        if shared.committed().next().is_none_or(|(newest, _)| newest != number) {
            return Err(another(key));
        }
        Ok(())
    }

    /// Checks that every node ran the trial from its first step on.
    async fn check_in_time(&self, key: &JobKey, number: u64) -> Result<(), Refusal> {
        self.until_run(key, number).await;
        let shared = self.shared(key).await?;
        let swap = shared.swaps.get(&number).ok_or_else(|| another(key))?;
        let first_step = swap.proposal.first_step().unwrap_or(0);
        for node in &swap.proposal.members {
            let Report { took, late, .. } = shared.reports.get(node).cloned().unwrap_or_default();
            if took.is_none_or(|took| took.number != number) {
                return Err(disturbed(format!("node {node} has not run the trial of {key}")));
            }
            if let Some(late) =
                late.filter(|late| late.until.is_none_or(|until| until > first_step))
            {
                return Err(disturbed(format!("node {node} was late: {}", late.why)));
            }
        }
        Ok(())
    }

    /// Waits until every node runs a swap, but not for ever.
    pub(super) async fn until_run(&self, key: &JobKey, number: u64) {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Ok(shared) = self.shared(key).await
                && shared.behind().is_empty()
                && shared.committed().next().is_some_and(|(newest, _)| newest >= number)
            {
                return;
            }
            sleep(POLL).await;
        }
    }
}

fn disturbed(what: String) -> Refusal {
    Refusal::new(
        RefusalCode::LimitReached,
        what,
        "`pfoctl status` shows the nodes of the job; try again when all of them are there",
    )
}

fn another(key: &JobKey) -> Refusal {
    disturbed(format!("another swap of {key} ended the trial"))
}
