//! What a step of the whole job takes: every node writes what its `pfod` has measured into the store,
//! and the agent that is asked adds it up.

use std::collections::BTreeMap;
use std::time::Duration;

use pfo_fleet::{Node, Shared, View, completeness};
use pfo_protocol::{FleetStep, FleetWindow, JobView};
use pfo_service::lock;
use pfo_store::{Measured, Shown, Store, StoreError};
use tokio::time::{Instant, sleep, timeout_at};

use super::parts::Fleet;
use super::status::label_of;
use crate::job::JobKey;
use crate::pfod::PfodError;

/// How often a node writes what it has measured.
const RHYTHM: Duration = Duration::from_secs(10);

/// How long the store may take to show what was measured of all jobs.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// How many swaps back it is kept what a node has measured. The first of all stays: it is what the others
/// are compared with.
const KEPT: usize = 8;

/// What is known of the steps of a whole job.
#[derive(Default)]
pub(super) struct Steps {
    /// Since the newest swap.
    pub(super) step: Option<FleetStep>,
    /// Under each of the last swaps.
    pub(super) windows: Vec<FleetWindow>,
}

/// What a node has measured of a job under the last swaps.
#[derive(Debug, Default)]
pub(super) struct History {
    measured: Vec<Measured>,
    /// Whether the last of them is a trial, which is not kept.
    in_trial: bool,
}

impl History {
    /// What an earlier agent of this node has written.
    fn of(measured: Vec<Measured>) -> Self {
        Self { measured, in_trial: false }
    }

    fn add(&mut self, newest: Measured, in_trial: bool) {
        let is_over = self.in_trial;
        self.measured.pop_if(|last| is_over || last.swap == newest.swap);
        // A job that begins anew counts its swaps from the first one again.
        self.measured.retain(|former| former.swap < newest.swap);
        self.measured.push(newest);
        self.in_trial = in_trial;
        if self.measured.len() > KEPT {
            self.measured.remove(1);
        }
    }
}

impl Fleet {
    /// Writes what was measured of this node's jobs, for as long as the agent runs.
    pub(super) async fn tell_measured(&self, store: &impl Store) {
        loop {
            match self.try_tell_measured(store).await {
                Ok(written) => self.note_written(written),
                Err(why) => tracing::debug!("cannot ask what was measured: {why}"),
            }
            sleep(RHYTHM).await;
        }
    }

    /// What became of the last write; an error if `pfod` does not say what to write.
    async fn try_tell_measured(
        &self,
        store: &impl Store,
    ) -> Result<Result<(), StoreError>, PfodError> {
        let mut taken = Vec::new();
        for key in self.jobs() {
            let shared = self.show(&key, View::Part).await.and_then(|shown| shown.shared);
            taken.extend(shared.map(|shared| (key, Taken::by(&shared, self.node()))));
        }
        // Asked after that: what `pfod` shows is of this swap or, if it was too late, of a later one,
        // which is committed already, so that nobody takes it for this one's.
        let jobs = self.questions.jobs().await?;
        lock(&self.histories).retain(|key, _| taken.iter().any(|(taken, _)| taken == key));
        for (key, taken) in taken {
            let job = jobs.iter().find(|job| JobKey::of(job) == key);
            if let Some(newest) = job.and_then(|job| measured_of(job, &taken)) {
                if !lock(&self.histories).contains_key(&key) {
                    let mut written = match store.measured(&self.id_of(&key)).await {
                        Ok(written) => written,
                        // To write now would replace it.
                        Err(away) => return Ok(Err(away)),
                    };
                    let history = History::of(written.remove(self.node()).unwrap_or_default());
                    lock(&self.histories).insert(key.clone(), history);
                }
                let measured = {
                    let mut histories = lock(&self.histories);
                    let history = histories.entry(key.clone()).or_default();
                    history.add(newest, taken.in_trial);
                    history.measured.clone()
                };
                let written = store.measure(&self.id_of(&key), &measured).await;
                if written.is_err() {
                    return Ok(written);
                }
            }
        }
        Ok(Ok(()))
    }

    /// What the steps of the whole job take, as far as the store says it by then.
    pub(super) async fn steps(&self, key: &JobKey, shown: &Shown, by: Instant) -> Steps {
        self.known_steps(key, shown, by).await.unwrap_or_default()
    }

    /// The time and the energy of a step of the whole job since its newest swap, if all nodes have measured
    /// that.
    pub(crate) async fn measured_step(&self, key: &JobKey) -> Option<(f64, f64)> {
        let shown = self.show(key, View::Whole).await?;
        let step = self.steps(key, &shown, sleep(TIMEOUT).deadline()).await.step?;
        Some((step.time_s, step.energy_j?))
    }

    async fn known_steps(&self, key: &JobKey, shown: &Shown, by: Instant) -> Option<Steps> {
        let (shared, store) = (shown.shared.as_ref()?, self.store_now().ok()?);
        if shown.away.is_some() {
            return None;
        }
        let measured = timeout_at(by, store.measured(&self.id_of(key))).await.ok()?.ok()?;
        Some(Steps { step: newest_step(shared, &measured), windows: windows(shared, &measured) })
    }
}

/// The newest swap that a node has taken up.
struct Taken {
    swap: u64,
    plan: Option<String>,
    in_trial: bool,
}

impl Taken {
    fn by(shared: &Shared, node: &Node) -> Self {
        let report = shared.reports.get(node);
        let swap = report.and_then(|report| report.took).map_or(0, |took| took.number);
        let proposal = shared.swaps.get(&swap).map(|swap| &swap.proposal);
        Self {
            swap,
            plan: proposal.and_then(|proposal| label_of(&proposal.run)),
            in_trial: proposal.is_some_and(|proposal| proposal.trial.is_some()),
        }
    }
}

/// What was measured of all ranks of a job on this node; none before each of them has run a whole
/// step.
fn measured_of(job: &JobView, taken: &Taken) -> Option<Measured> {
    let (swap, ranks) = (taken.swap, job.ranks.len());
    let plan = if swap == 0 { before_any_swap(job)? } else { taken.plan.clone() };
    let mut measured = Measured { swap, plan, ranks, time_s: 0.0, energy_j: Some(0.0) };
    for rank in &job.ranks {
        let window = rank.window.filter(|window| window.steps > 0)?;
        let steps = window.steps as f64;
        measured.time_s = measured.time_s.max(window.time_s / steps);
        let energy_j = window.energy_j.map(|energy_j| energy_j / steps);
        measured.energy_j = measured.energy_j.zip(energy_j).map(|(sum, energy_j)| sum + energy_j);
    }
    (measured.ranks > 0).then_some(measured)
}

/// What a job runs before the first swap of a fleet: what its last run did, or default clocks. None while
/// that is not known.
fn before_any_swap(job: &JobView) -> Option<Option<String>> {
    let is_at = |swap: u64| job.ranks.iter().all(|rank| rank.swap == swap);
    // The plan of a job is that of its newest swap, also while that waits for its step.
    match is_at(job.swap) {
        true => Some(job.plan.as_ref().map(|plan| plan.label.clone())),
        false => is_at(0).then_some(None),
    }
}

/// What each node has measured.
type Each = BTreeMap<Node, Vec<Measured>>;

/// A step under the swap that the whole job runs, once every node does.
fn newest_step(shared: &Shared, measured: &Each) -> Option<FleetStep> {
    let swap = shared.committed().next().map_or(0, |(number, _)| number);
    if swap > 0 && !shared.behind().is_empty() {
        return None;
    }
    whole(shared, measured, swap)
}

/// Every swap under which all nodes have measured all of their ranks, but for the trial that the job is in.
fn windows(shared: &Shared, measured: &Each) -> Vec<FleetWindow> {
    let trial = shared.committed().next().filter(|(_, proposal)| proposal.trial.is_some());
    let first = shared.members.keys().next().and_then(|node| measured.get(node));
    let first = first.into_iter().flatten().take(KEPT);
    let swaps = first.filter(|one| trial.is_none_or(|(t, _)| one.swap < t));
    let window = |one: &Measured| {
        let step = whole(shared, measured, one.swap)?;
        Some(FleetWindow { swap: one.swap, plan: one.plan.clone(), step })
    };
    swaps.filter_map(window).collect()
}

/// Adds up what the nodes have measured under a swap. None if one of them has not, or not all of its
/// ranks, or is not there.
fn whole(shared: &Shared, measured: &Each, swap: u64) -> Option<FleetStep> {
    completeness(&shared.members).ok()?;
    let mut step = FleetStep { time_s: 0.0, energy_j: Some(0.0) };
    for (node, member) in &shared.members {
        let is_whole = |one: &&Measured| one.swap == swap && one.ranks == member.places.len();
        let Measured { time_s, energy_j, .. } = measured.get(node)?.iter().find(is_whole)?;
        step.time_s = step.time_s.max(*time_s);
        step.energy_j = step.energy_j.zip(*energy_j).map(|(sum, energy_j)| sum + energy_j);
    }
    Some(step)
}

#[cfg(test)]
mod tests {
    use pfo_fleet::{
        Change, Decision, Degrees, Gpus, Member, Place, Proposal, Report, Run, Standing, Took,
        completeness,
    };
    use pfo_protocol::{DpRank, PlanStatus, Rank, RankWindow, Stage, TpRank, Uid};

    use super::*;
    use crate::straggler::tests::job as example_job;

    fn node(name: &str) -> Node {
        name.parse().unwrap()
    }

    /// Nodes `a` and `b` with a stage each.
    fn two_nodes() -> Shared {
        let mut shared = Shared::default();
        for (stage, name) in (0..).zip(["a", "b"]) {
            let rank = Rank(stage.into());
            let place = Place { rank, stage: Stage(stage), dp: DpRank(0), tp: TpRank(0) };
            let degrees = Degrees { pp: 2, dp: 1, tp: 1 };
            let (places, gpus) = (vec![place], Gpus::default());
            let member = Member { degrees, places, gpus, measures: false, slow: Vec::new() };
            shared.apply(Change::Member(node(name), Some(member)));
        }
        assert_eq!(completeness(&shared.members), Ok(()));
        shared
    }

    fn one(swap: u64, time_s: f64, energy_j: f64) -> Measured {
        let plan = (swap > 0).then(|| format!("{swap}.json"));
        Measured { swap, plan, ranks: 1, time_s, energy_j: Some(energy_j) }
    }

    fn measured(swap: u64, time_s: f64, energy_j: f64) -> Vec<Measured> {
        vec![one(swap, time_s, energy_j)]
    }

    #[test]
    fn a_step_takes_the_time_of_the_slowest_node_and_the_energy_of_all() {
        let mut each = BTreeMap::from([(node("a"), measured(0, 1.5, 300.0))]);
        assert_eq!(newest_step(&two_nodes(), &each), None, "node b has measured nothing");
        each.insert(node("b"), measured(0, 1.25, 200.0));
        let step = FleetStep { time_s: 1.5, energy_j: Some(500.0) };
        assert_eq!(newest_step(&two_nodes(), &each), Some(step));
        each.insert(node("b"), vec![Measured { energy_j: None, ..one(0, 1.25, 0.0) }]);
        assert_eq!(newest_step(&two_nodes(), &each), Some(FleetStep { energy_j: None, ..step }));
        each.insert(node("b"), vec![Measured { ranks: 0, ..one(0, 1.25, 0.0) }]);
        assert_eq!(newest_step(&two_nodes(), &each), None, "a rank of node b has run no step");
    }

    #[test]
    fn steps_before_the_first_swap_are_not_those_of_the_plan_that_is_arranged() {
        let mut job = example_job(2);
        job.plan = Some(PlanStatus {
            number: 1,
            label: "next.json".into(),
            predicted_time_s: None,
            predicted_energy_j: None,
            suspended: None,
            power_limits_w: Vec::new(),
        });
        let mut ran = |swap: u64, ranks: u64| {
            job.swap = swap;
            job.ranks.iter_mut().for_each(|rank| rank.swap = ranks);
            before_any_swap(&job)
        };
        assert_eq!(ran(1, 0), Some(None), "they ran at default clocks");
        assert_eq!(ran(1, 1), Some(Some("next.json".to_owned())), "what the last run did");
        assert_eq!(ran(2, 1), None, "that of the swap before is not known");
    }

    #[test]
    fn what_the_nodes_that_are_left_have_measured_is_not_the_whole_job() {
        let mut shared = two_nodes();
        let each: BTreeMap<_, _> =
            ["a", "b"].map(|name| (node(name), measured(0, 1.5, 300.0))).into();
        assert!(newest_step(&shared, &each).is_some());
        shared.apply(Change::Member(node("b"), None));
        assert_eq!(newest_step(&shared, &each), None);
        assert_eq!(windows(&shared, &each), []);
    }

    #[test]
    fn what_was_measured_under_another_swap_is_not_added() {
        let mut shared = two_nodes();
        let proposal = Proposal {
            run: Run::DefaultClocks,
            step: 10,
            members: ["a", "b"].map(node).into(),
            proposed_at: 3,
            by_uid: Uid(1000),
            by_node: node("a"),
            trial: None,
            standing: Standing::default(),
            rollback: None,
            compared: Vec::new(),
        };
        shared.apply(Change::Proposal(1, proposal));
        let old = ["a", "b"].map(|name| (node(name), measured(0, 1.5, 300.0))).into();
        let new: BTreeMap<_, _> =
            ["a", "b"].map(|name| (node(name), measured(1, 1.0, 200.0))).into();
        assert!(newest_step(&shared, &old).is_some());
        shared.apply(Change::Decision(1, Decision::Commit));
        assert_eq!(newest_step(&shared, &old), None);
        let report = Report { took: Some(Took { number: 1, step: 10 }), late: None, shown: 0 };
        shared.apply(Change::Report(node("a"), report.clone()));
        assert_eq!(newest_step(&shared, &new), None, "node b has yet to change");
        shared.apply(Change::Report(node("b"), report));
        let step = FleetStep { time_s: 1.0, energy_j: Some(400.0) };
        assert_eq!(newest_step(&shared, &new), Some(step));
        assert_eq!(Taken::by(&shared, &node("b")).swap, 1);
    }

    #[test]
    fn a_node_has_measured_a_job_when_all_of_its_ranks_there_have_run_a_step() {
        let mut job = example_job(2);
        let taken = Taken { swap: 3, plan: None, in_trial: false };
        let window = |time_s, energy_j| Some(RankWindow { steps: 4, time_s, energy_j });
        job.ranks[0].window = window(6.0, Some(800.0));
        assert_eq!(measured_of(&job, &taken), None);
        job.ranks[1].window = window(5.0, Some(400.0));
        let both = Measured { swap: 3, plan: None, ranks: 2, time_s: 1.5, energy_j: Some(300.0) };
        assert_eq!(measured_of(&job, &taken), Some(both.clone()));
        job.ranks[1].window = window(5.0, None);
        assert_eq!(measured_of(&job, &taken), Some(Measured { energy_j: None, ..both }));
        job.ranks.clear();
        assert_eq!(measured_of(&job, &taken), None);
    }

    #[test]
    fn what_a_job_ran_before_the_first_swap_of_its_nodes_has_the_name_that_pfod_shows() {
        let mut job = example_job(1);
        let energy_j = Some(800.0);
        job.ranks[0].window = Some(RankWindow { steps: 4, time_s: 6.0, energy_j });
        let taken = Taken { swap: 0, plan: None, in_trial: false };
        assert_eq!(measured_of(&job, &taken).unwrap().plan, None);
        job.plan = Some(PlanStatus {
            number: 3,
            label: "tuned".into(),
            predicted_time_s: None,
            predicted_energy_j: None,
            suspended: None,
            power_limits_w: Vec::new(),
        });
        assert_eq!(measured_of(&job, &taken).unwrap().plan.as_deref(), Some("tuned"));
    }

    #[test]
    fn a_window_is_shown_once_all_nodes_have_measured_it_and_trials_are_not_kept() {
        let mut histories = [History::default(), History::default()];
        for swap in 0..20 {
            for history in &mut histories {
                history.add(one(swap, 9.0, 9.0), swap == 4);
                history.add(one(swap, 1.0, 100.0), swap == 4);
            }
        }
        histories[1].add(one(20, 1.0, 100.0), false);
        let [a, b] = histories.map(|history| history.measured);
        assert_eq!((a.len(), b.len()), (KEPT, KEPT));
        let each = BTreeMap::from([(node("a"), a), (node("b"), b)]);
        let shown = windows(&two_nodes(), &each);
        let swaps: Vec<_> = shown.iter().map(|window| window.swap).collect();
        assert_eq!(swaps, [0, 14, 15, 16, 17, 18, 19], "node a has yet to measure 20");
        assert_eq!((shown[0].plan.as_deref(), shown[1].plan.as_deref()), (None, Some("14.json")));
        assert_eq!(shown[1].step, FleetStep { time_s: 1.0, energy_j: Some(200.0) });

        let mut history = History::of(vec![one(0, 1.0, 1.0), one(3, 1.0, 1.0)]);
        history.add(one(4, 1.0, 1.0), true);
        history.add(one(5, 1.0, 1.0), true);
        history.add(one(6, 1.0, 1.0), false);
        let swaps =
            |history: &History| history.measured.iter().map(|one| one.swap).collect::<Vec<_>>();
        assert_eq!(swaps(&history), [0, 3, 6]);
        history.add(one(1, 1.0, 1.0), false);
        assert_eq!(swaps(&history), [0, 1], "the store has forgotten the job meanwhile");
    }
}
