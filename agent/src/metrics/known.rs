//! What is known at one moment: the node as `pfod` reports it, and what the agent has made of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pfo_protocol::{
    AgentStatus, BudgetReport, BudgetedJob, JobStatus, RankStatus, SavedEnergy, Status, Tariff,
    WatchedJob,
};
use pfo_service::blocking;
use tokio::time::timeout;

use crate::front::{Services, agent_status};
use crate::job::JobKey;
use crate::ledger::Account;
use crate::pfod::Questions;

/// How long `pfod` may take to answer: less than the 10 s that Prometheus waits by default.
const PATIENCE: Duration = Duration::from_secs(5);

/// Everything that there is a series of.
#[derive(Debug)]
pub(super) struct Known {
    /// The node; none if `pfod` does not answer.
    pub(super) node: Option<Status>,
    pub(super) agent: AgentStatus,
    /// The power budgets.
    pub(super) budget: BudgetReport,
    /// Requests that the agent has refused.
    pub(super) refusals: u64,
    /// Whether the store of the fleet answers, if the node is in one.
    pub(super) store: Option<bool>,
    /// Entries of the ledger of savings.
    pub(super) ledger_entries: u64,
    pub(super) failing_duties: usize,
    /// What the plans of jobs have saved, as far as that is known.
    pub(super) saved: BTreeMap<JobKey, SavedEnergy>,
    /// What was saved so far, by user and partition.
    pub(super) accounts: Vec<Account>,
    /// What energy costs now.
    pub(super) tariff: Tariff,
}

/// A job that has ranks on this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) status: &'a JobStatus,
    pub(super) watched: Option<&'a WatchedJob>,
}

/// A rank on this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobRank<'a> {
    pub(super) job: Job<'a>,
    pub(super) status: &'a RankStatus,
}

impl Known {
    /// What is known now. `questions` are of nobody else: a `pfod` that is slow to report the status of
    /// sick GPUs must not delay the watch over jobs.
    pub(super) async fn now(services: &Services, questions: &Questions) -> Self {
        let fleet = async {
            let shown = match &services.fleet {
                Some(fleet) => fleet.parts_shown().await,
                None => BTreeMap::new(),
            };
            (shown, services.steering.standings(None).await)
        };
        let ledger = Arc::clone(&services.ledger);
        let saved = blocking(move || (ledger.saved_lately(), ledger.tariff()));
        let (node, fleet, saved) = tokio::join!(
            timeout(PATIENCE, questions.status()),
            timeout(PATIENCE, fleet),
            timeout(PATIENCE, saved)
        );
        let here = || (BTreeMap::new(), services.steering.standings.all(None));
        let fleet = fleet.unwrap_or_else(|_| here());
        let (saved, tariff) = saved.ok().and_then(Result::ok).unwrap_or_default();
        Self {
            node: node.ok().and_then(Result::ok),
            agent: agent_status(services, None, fleet),
            budget: services.budgets.report(None),
            refusals: services.refusals.load(Relaxed),
            accounts: services.ledger.accounts(),
            ledger_entries: services.ledger.entries(),
            failing_duties: services.watcher.failing_duties(),
            saved,
            tariff,
            store: services.fleet.as_ref().map(|fleet| fleet.reaches_store()),
        }
    }

    /// The jobs that have ranks.
    pub(super) fn jobs(&self) -> impl Iterator<Item = Job<'_>> {
        let jobs = self.node.iter().flat_map(|node| &node.jobs);
        jobs.filter(|job| !job.ranks.is_empty()).map(|status| {
            let key = |uid, name: &_| JobKey { uid, name: Clone::clone(name) };
            let own = key(status.uid, &status.job);
            let watched = self.agent.jobs.iter().find(|job| key(job.uid, &job.job) == own);
            Job { status, watched }
        })
    }

    /// What each job has saved, if that is known.
    pub(super) fn saved(&self) -> impl Iterator<Item = (Job<'_>, &SavedEnergy)> {
        self.jobs().filter_map(|job| {
            let key = JobKey { uid: job.status.uid, name: job.status.job.clone() };
            Some((job, self.saved.get(&key)?))
        })
    }

    /// What each job gives up for a power budget, if it counts for one.
    pub(super) fn budgeted(&self) -> impl Iterator<Item = &BudgetedJob> {
        self.jobs().filter_map(|Job { status, .. }| {
            let own = |job: &&BudgetedJob| (job.uid, &job.job) == (status.uid, &status.job);
            self.budget.jobs.iter().find(own)
        })
    }

    /// The ranks of all jobs.
    pub(super) fn ranks(&self) -> impl Iterator<Item = JobRank<'_>> {
        self.jobs()
            .flat_map(|job| job.status.ranks.iter().map(move |status| JobRank { job, status }))
    }
}
