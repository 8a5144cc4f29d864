//! The whole of a job, and the nodes of the fleet, as status shows them.

use std::collections::BTreeMap;

use pfo_fleet::{Decision, Late, Member, Node, Report, Run, Shared, Standing, View, completeness};
use pfo_protocol::{
    FleetJob, FleetLate, FleetMember, FleetNode, FleetOutcome, FleetStatus, FleetSwap, Rank,
    Refusal, Uid,
};
use pfo_store::{Shown, Store, StoreError};
use tokio::time::{sleep, timeout};

use super::measured::{Steps, TIMEOUT};
use super::parts::Fleet;
use crate::job::JobKey;
use crate::refusal::of_store;

impl Fleet {
    /// The jobs that this node takes part in, of one user or of all.
    pub(crate) async fn statuses(&self, only_of: Option<Uid>) -> BTreeMap<JobKey, FleetJob> {
        let (mut jobs, by) = (BTreeMap::new(), sleep(TIMEOUT).deadline());
        for (key, shown) in self.shown(only_of, View::Whole).await {
            let steps = self.steps(&key, &shown, by).await;
            jobs.insert(key, job_of(&shown, steps));
        }
        jobs
    }

    /// The guards, straggler answers and budgets of its jobs, of one user or of all.
    pub(crate) async fn standings(&self, only_of: Option<Uid>) -> BTreeMap<JobKey, Standing> {
        let shown = self.shown(only_of, View::Part).await.into_iter();
        let standing = |shown: &Shown| shown.shared.as_ref()?.standing().cloned();
        shown.filter_map(|(key, shown)| Some((key, standing(&shown)?))).collect()
    }

    /// The jobs that this node takes part in, of all users, without asking the store: what a step of the whole job takes is left out,
    /// and its nodes unless this one watches them.
    pub(crate) async fn parts_shown(&self) -> BTreeMap<JobKey, FleetJob> {
        let shown = self.shown(None, View::Part).await.into_iter();
        shown.map(|(key, shown)| (key, job_of(&shown, Steps::default()))).collect()
    }

    async fn shown(&self, only_of: Option<Uid>, view: View) -> Vec<(JobKey, Shown)> {
        let mut jobs = Vec::new();
        for key in self.jobs() {
            if only_of.is_none_or(|uid| uid == key.uid)
                && let Some(shown) = self.show(&key, view).await
            {
                jobs.push((key, shown));
            }
        }
        jobs
    }

    /// The nodes of the fleet.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(crate) async fn status(&self) -> Result<FleetStatus, Refusal> {
        let nodes = async { self.store_now()?.nodes().await };
        let late = || StoreError::Away(format!("it takes more than {} s", TIMEOUT.as_secs()));
        let nodes = timeout(TIMEOUT, nodes).await.unwrap_or_else(|_| Err(late()));
        let nodes = nodes.map_err(|why| of_store("the nodes of the fleet are not known", &why))?;
        let node = |(node, version): (Node, String)| FleetNode { node: node.into(), version };
        Ok(FleetStatus {
            node: self.node().to_string(),
            endpoints: self.settings.endpoints.clone(),
            nodes: nodes.into_iter().map(node).collect(),
        })
    }
}

fn job_of(shown: &Shown, Steps { step, windows }: Steps) -> FleetJob {
    let store_away_s = shown.away.map(|away| away.as_secs_f64());
    let Some(shared) = &shown.shared else {
        return FleetJob {
            nodes: Vec::new(),
            problem: None,
            store_away_s,
            swap: None,
            step,
            windows,
            guarded_by: None,
            answered_by: None,
            straggler: None,
        };
    };
    let Standing { guard, straggler, watch, .. } = shared.standing().cloned().unwrap_or_default();
    let is_whole = shown.view == View::Whole;
    let problem = completeness(&shared.members).err().filter(|_| is_whole);
    let acts = |node: Node| acting(shared, node).to_string();
    FleetJob {
        nodes: if is_whole { members_of(shared) } else { Vec::new() },
        problem: problem.map(|why| why.to_string()),
        store_away_s,
        swap: newest_of(shared),
        step,
        windows,
        guarded_by: guard.map(|guard| acts(guard.by_node)),
        answered_by: watch.map(|watch| acts(watch.by_node)),
        straggler: straggler.map(|answered| answered.factor),
    }
}

/// The node that does what was asked for at this one: the one that has rank 0, if this is no member of the
/// job any more, as far as that is known.
fn acting(shared: &Shared, node: Node) -> Node {
    if shared.members.contains_key(&node) {
        return node;
    }
    let has_first = |member: &Member| member.places.iter().any(|place| place.rank == Rank(0));
    let first = shared.members.iter().find(|(_, member)| has_first(member));
    first.map_or(node, |(first, _)| first.clone())
}

pub(super) fn members_of(shared: &Shared) -> Vec<FleetMember> {
    let late = |late: &Late| FleetLate {
        swap: late.number,
        from_step: late.from,
        until_step: late.until,
        why: late.why.clone(),
    };
    let members = shared.members.iter().map(|(node, member)| {
        let Report { took, late: was_late, .. } =
            shared.reports.get(node).cloned().unwrap_or_default();
        let mut ranks: Vec<_> = member.places.iter().map(|place| place.rank).collect();
        ranks.sort_unstable();
        FleetMember {
            node: node.to_string(),
            ranks,
            swap: took.map_or(0, |took| took.number),
            late: was_late.as_ref().map(late),
        }
    });
    members.collect()
}

fn newest_of(shared: &Shared) -> Option<FleetSwap> {
    let (number, swap) = shared.swaps.last_key_value()?;
    let proposal = &swap.proposal;
    Some(FleetSwap {
        number: *number,
        plan: label_of(&proposal.run),
        step: proposal.step,
        by_uid: proposal.by_uid,
        by_node: proposal.by_node.to_string(),
        outcome: match &swap.decision {
            None => FleetOutcome::Open,
            Some(Decision::Commit) => FleetOutcome::Committed,
            Some(Decision::Abort(why)) => FleetOutcome::Aborted(why.to_string()),
        },
    })
}

/// What a plan is called; none for default clocks.
pub(crate) fn label_of(run: &Run) -> Option<String> {
    match run {
        Run::DefaultClocks => None,
        _ => Some(run.to_string()),
    }
}
