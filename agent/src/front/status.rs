//! The status of the agent and of the jobs that it watches.

use std::collections::BTreeMap;

use pfo_protocol::{AgentStatus, FleetJob, GuardStatus, Pid, SlowRank, Uid, WatchedJob};

use crate::authority::Permit;
use crate::front::Services;
use crate::job::JobKey;

/// Everything that a peer may see.
pub(super) async fn status(services: &Services, permit: &Permit) -> Box<AgentStatus> {
    let only_of = permit.only_of();
    let whole = match &services.fleet {
        Some(fleet) => (fleet.statuses(only_of).await, fleet.guards(only_of).await),
        None => (BTreeMap::new(), BTreeMap::new()),
    };
    Box::new(status_of(services, only_of, whole))
}

/// What is known of whole jobs, and how the slowdowns that were allowed to them are kept.
pub(crate) type Whole = (BTreeMap<JobKey, FleetJob>, BTreeMap<JobKey, GuardStatus>);

/// What the agent knows of the jobs of one user or of all, with what is known of whole jobs.
pub(crate) fn status_of(
    services: &Services,
    only_of: Option<Uid>,
    (whole, whole_guards): Whole,
) -> AgentStatus {
    let Services { started, stragglers, watcher, guards, .. } = services;
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
    for (key, guard) in guards.statuses(only_of).into_iter().chain(whole_guards) {
        jobs.entry(key.clone()).or_insert_with(|| unwatched(&key)).guard = Some(guard);
    }
    for (key, plan) in services.first_plans.statuses(only_of) {
        jobs.entry(key.clone()).or_insert_with(|| unwatched(&key)).first_plan = Some(plan);
    }
    for (key, whole) in whole {
        let job = jobs.entry(key.clone()).or_insert_with(|| unwatched(&key));
        if let Some(frontier) = &mut job.frontier {
            (frontier.straggler, frontier.auto) = (whole.straggler, whole.answered_by.is_some());
        }
        job.fleet = Some(whole);
    }
    AgentStatus {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: Pid(std::process::id()),
        uptime_s: started.elapsed().as_secs_f64(),
        pfod_problem: watcher.problem(),
        jobs: jobs.into_values().collect(),
    }
}

fn unwatched(key: &JobKey) -> WatchedJob {
    let JobKey { uid, name: job } = key.clone();
    let slow = Vec::new();
    let (frontier, drift, guard, fleet, first_plan) = (None, None, None, None, None);
    WatchedJob { job, uid, frontier, drift, slow, guard, fleet, first_plan }
}
