//! A swap of a whole job, as a user asks for it.

use std::collections::BTreeSet;
use std::time::Duration;

use pfo_fleet::{Abort, Node, Purpose, Run, Shared, Standing, Terms, Told, View};
use pfo_protocol::{ClockTable, FleetSwapped, JobView, Refusal, RefusalCode, SwapTarget, Uid};
use pfo_store::{self as store, Holder, Store, StoreError};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::local::at_clocks;
use super::parts::Fleet;
use super::slices::{cut_of, slice_of};
use super::stands::Change;
use super::status::{label_of, members_of};
use crate::job::JobKey;
use crate::refusal::of_store;
use crate::steer::SwapRequest;

/// How long the agents of a job may take to agree: three attempts, of which each has twice the lead
/// of the one before, and time for a store that changes its leader.
const AGREEMENT: Duration = Duration::from_secs(60);

/// How long to wait for a swap that is far ahead. Where steps take longer than they did, one may be by
/// itself; one at a step that a user has named may be an hour ahead.
const TO_COME: Duration = Duration::from_secs(30);

/// How long after a change the GPUs of all nodes may take to show it, or what they do in its place: each
/// node looks at its own for a second, and its agent tells the others at its next look.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// How often a waiting request looks whether every node has changed.
pub(super) const POLL: Duration = Duration::from_millis(200);

/// What the agents of a job are asked for.
pub(super) struct Wanted {
    /// None for what it ran before.
    pub(super) run: Option<Run>,
    pub(super) by_uid: Uid,
    pub(super) purpose: Purpose,
    pub(super) terms: Terms,
    /// Who runs its trials from then on.
    pub(super) holder: Option<Holder>,
}

/// The nodes whose GPUs have yet to show what a swap has led to, those included that have left since. One
/// that has taken up another swap since never will.
fn silent_of(shared: &Shared, number: u64) -> Vec<Node> {
    let members = match shared.swaps.get(&number) {
        Some(swap) => swap.proposal.members.clone(),
        None => shared.members.keys().cloned().collect(),
    };
    let is_silent = |node: &Node| {
        let report = shared.reports.get(node).cloned().unwrap_or_default();
        let is_at_it = report.took.is_none_or(|took| took.number <= number);
        let is_late = report.late_now().is_some_and(|late| late.number >= number);
        is_at_it && report.shown < number && !is_late
    };
    members.into_iter().filter(is_silent).collect()
}

impl Fleet {
    /// Has the whole job run something, at the same step on all of its nodes.
    ///
    /// # Errors
    /// If its nodes do not agree on it.
    pub(crate) async fn swap(
        &self,
        job: &JobView,
        SwapRequest { by, target, at_step, max_slowdown, wait }: SwapRequest,
    ) -> Result<FleetSwapped, Refusal> {
        let key = JobKey::of(job);
        let run = match target {
            SwapTarget::DefaultClocks => Some(Run::DefaultClocks),
            SwapTarget::Previous => None,
            SwapTarget::Uniform(mhz) => Some(Run::Uniform(mhz)),
            SwapTarget::Replicas(clocks) => Some(at_clocks(clocks)),
            SwapTarget::PowerLimits { label, limits_w } => {
                check_limits(&key, job, &limits_w)?;
                Some(Run::PowerLimits { label, limits_w })
            }
            SwapTarget::Table { label, table } => {
                Some(self.publish(&key, job, label, &table).await?)
            }
            SwapTarget::Loaded => {
                return Err(Refusal::new(
                    RefusalCode::NoPlan,
                    format!("{key} has ranks on other nodes, which have loaded no plan"),
                    "give the plan file to `pfoctl plan swap`",
                ));
            }
        };
        let mut terms = Terms { at: at_step, ..Terms::default() };
        if let Some(most) = max_slowdown {
            let watch = self.known_to_stand(&key).await?.standing.watch;
            let guard = Some(self.new_guard(job, most));
            terms.standing = Some(Standing { guard, watch, ..Standing::default() });
        }
        let swapped = self.change(&key, Change { run, by_uid: by.uid, terms, wait }).await?;
        if !wait {
            return Ok(swapped);
        }
        let unknown = self.until_shown(&key, swapped.number).await;
        if let Some(later) = self.replaced_by(&key, swapped.number, swapped.step).await {
            let step = swapped.step;
            return Err(Refusal::new(
                RefusalCode::NotInForce,
                format!("{key} was swapped to something else before step {step}: by swap {later}"),
                "`pfoctl status` shows what it runs",
            ));
        }
        let mut swapped = self.swapped(&key, swapped.number, swapped.step).await;
        swapped.late.extend(unknown);
        Ok(swapped)
    }

    /// Waits until the GPUs of every node have shown what a swap has led to, or something else. Returns
    /// of which nodes that is not known, if of any.
    async fn until_shown(&self, key: &JobKey, number: u64) -> Vec<String> {
        let (began, waited_s) = (Instant::now(), SHOWN_WITHIN.as_secs());
        loop {
            let shown = self.show(key, View::Whole).await.filter(|shown| shown.away.is_none());
            let silent = shown.and_then(|shown| Some(silent_of(shown.shared.as_ref()?, number)));
            if silent.as_ref().is_some_and(Vec::is_empty) {
                return Vec::new();
            }
            if began.elapsed() > SHOWN_WITHIN {
                let says_nothing = |node: &Node| {
                    format!("node {node}: its GPUs have not shown for {waited_s} s what they run")
                };
                let away = || vec![format!("the store has shown no other node for {waited_s} s")];
                return silent.map_or_else(away, |nodes| nodes.iter().map(says_nothing).collect());
            }
            sleep(POLL).await;
        }
    }

    /// The swap that took the place of another one before that one's step, if one did.
    async fn replaced_by(&self, key: &JobKey, number: u64, step: u64) -> Option<u64> {
        let shown = self.show(key, View::Whole).await?;
        replaced_in(&shown.shared?, number, step)
    }

    /// Cuts a plan by stage, and hands the slices to the store.
    pub(crate) async fn publish(
        &self,
        key: &JobKey,
        job: &JobView,
        label: String,
        table: &ClockTable,
    ) -> Result<Run, Refusal> {
        let misfit = |what: String| {
            let remedy = "make a plan for this job with `pfoctl plan optimize`";
            Refusal::new(RefusalCode::PlanDoesNotFit, what, remedy)
        };
        let (stages, wanted) = (table.stages(), job.pp_degree);
        if stages.len() != wanted as usize {
            return Err(misfit(format!("the plan has {} stages, the job {wanted}", stages.len())));
        }
        if let Some(stage) = stages.iter().position(Vec::is_empty) {
            return Err(misfit(format!("stage {stage} has no instruction in the plan")));
        }
        let away = |why: StoreError| unchanged_by(key, &why);
        let engine = self.store_now().map_err(away)?;
        let id = self.id_of(key);
        let mut digests = Vec::with_capacity(stages.len());
        for stage in stages {
            let published = engine.publish(&id, &slice_of(stage)).await;
            digests.push(published.map_err(away)?);
        }
        Ok(Run::Plan(cut_of(label, table, digests)))
    }

    /// What becomes of something that the agents of a job are asked for.
    ///
    /// # Errors
    /// If that is not known.
    pub(super) async fn agreement(&self, key: &JobKey, wanted: Wanted) -> Result<Told, Refusal> {
        let (answer, told) = oneshot::channel();
        let Wanted { run, by_uid, purpose, terms, holder } = wanted;
        if !self.ask(key, store::Asked::Run { run, by_uid, purpose, terms, holder, answer }) {
            return Err(unchanged(key, &"this node does not take part in it yet"));
        }
        match timeout(AGREEMENT, told).await {
            Ok(Ok(Told::Aborted(Abort::TooLate(nodes), attempts))) => {
                match self.late_of(key, &nodes).await {
                    Some(why) if purpose != Purpose::Swap => Err(not_measured(key, &why)),
                    Some(why) => Err(unchanged(key, &why)),
                    None => Ok(Told::Aborted(Abort::TooLate(nodes), attempts)),
                }
            }
            Ok(Ok(told)) => Ok(told),
            Ok(Err(_)) => Err(unchanged(key, &"it has left this node")),
            Err(_) => Err(Refusal::new(
                RefusalCode::LimitReached,
                format!("the nodes of {key} have not agreed within {} s", AGREEMENT.as_secs()),
                "`pfoctl status` shows which one is behind, and whether the swap takes place",
            )),
        }
    }

    /// Which of these nodes does not run what the job runs, and why; none if all do.
    async fn late_of(&self, key: &JobKey, nodes: &BTreeSet<Node>) -> Option<String> {
        let shared = self.show(key, View::Whole).await?.shared?;
        nodes.iter().find_map(|node| {
            let late = shared.reports.get(node)?.late_now()?;
            Some(format!("node {node} does not run what the job runs: {}", late.why))
        })
    }

    /// The same, after what this node was asked for before.
    pub(super) async fn agreement_in_turn(
        &self,
        key: &JobKey,
        (run, by_uid, terms): (Option<Run>, Uid, Terms),
    ) -> Result<Told, Refusal> {
        let began = Instant::now();
        loop {
            let (run, terms) = (run.clone(), terms.clone());
            let wanted = Wanted { run, by_uid, purpose: Purpose::Swap, terms, holder: None };
            match self.agreement(key, wanted).await? {
                Told::Busy if began.elapsed() < AGREEMENT => sleep(POLL).await,
                Told::ToCome { .. } if began.elapsed() < TO_COME => sleep(POLL).await,
                // Who has measured is about to let it go, or has yet to begin.
                Told::Held(_) if began.elapsed() < AGREEMENT && !self.is_in_trial(key).await => {
                    sleep(POLL).await;
                }
                told => return Ok(told),
            }
        }
    }

    pub(super) async fn swapped(&self, key: &JobKey, number: u64, step: u64) -> FleetSwapped {
        let shown = self.show(key, View::Whole).await;
        let shared = shown.as_ref().and_then(|shown| shown.shared.as_ref());
        let run = shared.and_then(|shared| Some(shared.swaps.get(&number)?.proposal.run.clone()));
        let nodes = shared.map(members_of).unwrap_or_default();
        let changed = nodes.iter().filter(|node| node.swap >= number).count();
        let late = nodes.iter().filter_map(|node| {
            let late = node.late.as_ref().filter(|late| late.swap == number)?;
            Some(format!("node {}: {}", node.node, late.why))
        });
        FleetSwapped {
            number,
            plan: run.as_ref().and_then(label_of),
            step,
            nodes: nodes.len() as u32,
            changed: changed as u32,
            late: late.collect(),
        }
    }
}

fn replaced_in(shared: &Shared, number: u64, step: u64) -> Option<u64> {
    let mut later = shared.committed().filter(|(later, _)| *later > number);
    later.find(|(_, proposal)| proposal.step <= step).map(|(later, _)| later)
}

/// # Errors
/// If there is not one limit for each stage.
pub(super) fn check_limits(key: &JobKey, job: &JobView, limits_w: &[u32]) -> Result<(), Refusal> {
    let (limits, stages) = (limits_w.len(), job.pp_degree);
    if limits == stages as usize {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalCode::PlanDoesNotFit,
        format!("there are {limits} power limits for the {stages} stages of {key}"),
        "give one for each stage",
    ))
}

pub(super) fn refusal_of(key: &JobKey, told: Told) -> Refusal {
    match told {
        Told::Aborted(why @ Abort::Veto(..), _) => {
            let what = format!("no node of {key} changes: {why}");
            Refusal::new(RefusalCode::PlanDoesNotFit, what, "make a plan that fits every node")
        }
        Told::Aborted(why, 1) => unchanged(key, &why),
        Told::Aborted(why, attempts) => unchanged(key, &format!("{why}, in {attempts} attempts")),
        Told::Incomplete(why) => Refusal::new(
            RefusalCode::LimitReached,
            format!("{key} cannot be changed as a whole: {why}"),
            "start pfo-agent with the same [fleet] on every node of the job, then try again",
        ),
        Told::Away => {
            unchanged_by(key, &StoreError::Away("it was silent when it was asked last".into()))
        }
        Told::NotNow(why) => unchanged(key, &why),
        Told::Astray(why) => not_measured(key, &why),
        Told::Busy => unchanged(key, &"another swap of the job is under way"),
        Told::Changed => unchanged(key, &"it has changed to something else meanwhile"),
        Told::Held(node) => Refusal::new(
            RefusalCode::LimitReached,
            format!("a trial or sweep that was begun on node {node} holds {key} for measuring"),
            "try again when that is over; `pfoctl profile pause` or `stop` there ends a sweep",
        ),
        Told::ToCome { number, step } => unchanged(
            key,
            &format!("swap {number} is to take place at step {step}, and none before"),
        ),
        Told::NotAt(at, possible) => Refusal::new(
            RefusalCode::LimitReached,
            format!(
                "{key} cannot change at step {at}: {} to {} are possible now",
                possible.start(),
                possible.end()
            ),
            "name one of these, some steps ahead, or leave --at-step out",
        ),
        Told::Committed { .. } => unchanged(key, &"it was committed"),
    }
}

fn not_measured(key: &JobKey, why: &str) -> Refusal {
    let remedy = "`pfoctl doctor` on that node checks pfod's rights and the driver";
    Refusal::new(RefusalCode::NotInForce, format!("{key} cannot be measured: {why}"), remedy)
}

pub(super) fn unchanged(key: &JobKey, why: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(
        RefusalCode::LimitReached,
        format!("no node of {key} changes: {why}"),
        "`pfoctl status` shows its nodes; `pfoctl fleet check` says what is wrong with the store",
    )
}

/// The store was in the way of a change.
pub(super) fn unchanged_by(key: &JobKey, why: &StoreError) -> Refusal {
    of_store(&format!("no node of {key} changes"), why)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pfo_fleet::{Late, Proposal, Report, SharedSwap, Took};

    use super::*;

    fn node(name: &str) -> Node {
        name.parse().unwrap()
    }

    fn took(number: u64, shown: u64) -> Report {
        Report { took: Some(Took { number, step: 9 }), late: None, shown }
    }

    /// Swap 3 of four nodes.
    fn shared(reports: [Report; 4]) -> Shared {
        let nodes = ["a", "b", "c", "d"].map(node);
        let proposal = Proposal {
            run: Run::DefaultClocks,
            step: 9,
            members: nodes.iter().cloned().collect(),
            proposed_at: 3,
            by_uid: Uid(7),
            by_node: node("a"),
            trial: None,
            standing: Standing::default(),
            rollback: None,
            compared: Vec::new(),
        };
        let (answers, decision) = (Default::default(), None);
        let swap = SharedSwap { proposal: Arc::new(proposal), answers, decision };
        Shared {
            members: Default::default(),
            reports: nodes.into_iter().zip(reports).collect(),
            swaps: [(3, swap)].into(),
        }
    }

    #[test]
    fn a_node_that_leaves_before_its_gpus_have_shown_a_swap_is_silent() {
        // No node is a member any more; one of them had time to show it.
        let shared = shared([took(3, 3), took(3, 2), took(2, 2), Report::default()]);
        assert_eq!(silent_of(&shared, 3), ["b", "c", "d"].map(node));
    }

    #[test]
    fn a_node_that_is_late_or_goes_on_to_another_swap_has_said_so() {
        let late = Report {
            late: Some(Late { number: 3, from: 9, until: None, why: "it hung".into() }),
            ..took(3, 0)
        };
        let shared = shared([took(3, 3), late, took(4, 0), took(3, 5)]);
        assert_eq!(silent_of(&shared, 3), [] as [Node; 0]);
    }

    #[test]
    fn a_node_that_is_late_for_the_swap_before_has_said_nothing_of_this_one() {
        let before = Late { number: 2, from: 5, until: None, why: "it hung".into() };
        let late = Report { late: Some(before), ..took(2, 0) };
        let shared = shared([took(3, 3), late, took(3, 3), took(3, 3)]);
        assert_eq!(silent_of(&shared, 3), [node("b")]);
    }
}
