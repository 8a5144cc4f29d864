//! The status of the agent and of the jobs that it watches.

use std::collections::BTreeMap;
use std::sync::Arc;

use pfo_fleet::Standing;
use pfo_protocol::{AgentStatus, ConfigStatus, FleetJob, Pid, SlowRank, Uid, WatchedJob};
use pfo_service::blocking;

use crate::authority::Permit;
use crate::front::Services;
use crate::guard;
use crate::job::JobKey;

/// Everything that a peer may see.
pub(super) async fn status(services: &Services, permit: &Permit) -> Box<AgentStatus> {
    let only_of = permit.only_of();
    let whole = match &services.fleet {
        Some(fleet) => fleet.statuses(only_of).await,
        None => BTreeMap::new(),
    };
    let standings = services.steering.standings(only_of).await;
    let settings = Arc::clone(&services.settings);
    // A file on a disk that hangs keeps nobody else waiting.
    let config = blocking(move || settings.status()).await.unwrap_or_default();
    Box::new(AgentStatus { config, ..status_of(services, only_of, (whole, standings)) })
}

/// What is known of jobs of several nodes, and what stands beside the plan of each job.
pub(crate) type Whole = (BTreeMap<JobKey, FleetJob>, BTreeMap<JobKey, Standing>);

/// What the agent knows of the jobs of one user or of all, with what is known of whole jobs.
pub(crate) fn status_of(
    services: &Services,
    only_of: Option<Uid>,
    (whole, standings): Whole,
) -> AgentStatus {
    let Services { started, stragglers, watcher, ledger, .. } = services;
    let mut jobs: BTreeMap<JobKey, WatchedJob> = BTreeMap::new();
    let mut seen = watcher.seen();
    seen.retain(|key, _| only_of.is_none_or(|uid| uid == key.uid));
    for (key, seen) in seen {
        let job = jobs.entry(key.clone()).or_insert_with(|| unwatched(&key));
        job.slow = seen.slow.into_iter().map(|(rank, share)| SlowRank { rank, share }).collect();
        job.drift = seen.drift;
    }
    for (key, frontier) in stragglers.statuses(only_of) {
        jobs.entry(key.clone()).or_insert_with(|| unwatched(&key)).frontier = Some(frontier);
    }
    for (key, Standing { guard, straggler, watch, .. }) in standings {
        let job = jobs.entry(key.clone()).or_insert_with(|| unwatched(&key));
        job.guard = guard.as_ref().map(guard::status_of);
        if let Some(frontier) = &mut job.frontier {
            frontier.straggler = straggler.map(|answered| answered.factor);
            frontier.auto = watch.is_some();
        }
    }
    for (key, plan) in services.first_plans.statuses(only_of) {
        jobs.entry(key.clone()).or_insert_with(|| unwatched(&key)).first_plan = Some(plan);
    }
    for (key, whole) in whole {
        jobs.entry(key.clone()).or_insert_with(|| unwatched(&key)).fleet = Some(whole);
    }
    AgentStatus {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: Pid(std::process::id()),
        uptime_s: started.elapsed().as_secs_f64(),
        pfod_problem: watcher.problem(),
        jobs: jobs.into_values().collect(),
        config: ConfigStatus::default(),
        ledger_problem: ledger.problem(),
    }
}

fn unwatched(key: &JobKey) -> WatchedJob {
    let JobKey { uid, name: job } = key.clone();
    let slow = Vec::new();
    let (frontier, drift, guard, fleet, first_plan) = (None, None, None, None, None);
    WatchedJob { job, uid, frontier, drift, slow, guard, fleet, first_plan }
}
