//! Jobs that have ranks on other nodes, under a budget of the fleet. What such a job ran before stands in the
//! store beside what it runs, so that it can be brought back from any of its nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pfo_budget::{Curve, Prior};
use pfo_fleet::{Budgeted, Run, Standing, Terms};
use pfo_protocol::{BudgetSteering, JobView, Mhz, Rank, Refusal, RefusalCode};
use pfo_service::lock;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::budget::job_curve::{of_frontier, of_uniform_clocks};
use crate::budget::known::{Known, OWN, Own, UNIFORM};
use crate::fleet::{Change, Fleet, Stands, label_of};
use crate::job::JobKey;
use crate::journal;
use crate::straggler::{JobFrontier, Labelled, Stragglers};

/// How long to wait after nodes did not agree on a change.
const PAUSE: Duration = Duration::from_secs(3);

/// Such jobs of this node.
#[derive(Default)]
pub(in crate::budget) struct Wholes {
    changing: BTreeMap<JobKey, Changing>,
}

struct Changing {
    task: JoinHandle<()>,
    problem: Arc<Mutex<Option<String>>>,
}

/// Who makes the plans.
#[derive(Clone)]
pub(in crate::budget) struct Makers {
    pub(in crate::budget) fleet: Arc<Fleet>,
    pub(in crate::budget) stragglers: Arc<Stragglers>,
}

/// What a whole job runs by itself.
fn own_run(stands: &Stands) -> Run {
    let Standing { straggler, budgeted, .. } = &stands.standing;
    let before = budgeted.as_ref().map(|budgeted| &budgeted.before);
    let before = before.or_else(|| straggler.as_ref().map(|answered| &answered.before));
    before.unwrap_or(&stands.run).clone()
}

/// Whether this node has the first rank of a job: what nobody else is to do is for this one.
pub(in crate::budget) fn has_first_rank(job: &JobView) -> bool {
    job.ranks.iter().any(|rank| rank.position.rank == Rank(0))
}

/// Looks at what a whole job runs.
fn look(known: &mut Known, job: &JobView, stands: &Stands) {
    let tag = stands.standing.budgeted.as_ref().map_or(OWN, |budgeted| budgeted.tag);
    let label = job.plan.as_ref().map(|plan| plan.label.as_str());
    let is_settled = job.ranks.iter().all(|rank| rank.swap == job.swap);
    let is_suspended = job.plan.as_ref().is_some_and(|plan| plan.suspended.is_some());
    let runs_it = label == label_of(&stands.run).as_deref() && !stands.in_trial;
    let is_straggler = stands.standing.straggler.is_some() && tag == OWN;
    let before = own_run(stands);
    if known.own_run.as_ref() != Some(&before) {
        known.forget_own();
        known.own_run = Some(before);
    }
    known.note_whole(tag, is_settled && !is_suspended && runs_it && !is_straggler);
}

impl Makers {
    /// What a whole job runs by itself, if that is known: what its frontier says of it, what an agent knew
    /// when it was slowed down or, without either, what all of its nodes have measured together.
    async fn own(&self, job: &JobView, stands: &Stands) -> Option<Own> {
        let before = own_run(stands);
        let label = label_of(&before);
        let own = |time_s, power_w| Own { label: label.clone(), plan: None, time_s, power_w };
        if let Some(Budgeted { time_s, power_w, .. }) = &stands.standing.budgeted {
            return Some(own(*time_s, *power_w));
        }
        let key = JobKey::of(job);
        if let Some(frontier) = self.stragglers.of(job) {
            let plan = self.fleet.plan_of(&key, &before).await.ok()?;
            if plan.is_some() || before == Run::DefaultClocks {
                let table = plan.map(|plan| plan.table);
                let of_own = move |frontier: &JobFrontier| frontier.point_of(table.as_ref());
                if let Ok(point) = self.stragglers.make(&frontier, of_own).await {
                    let power_w = replicas(job) * point.iteration_energy_j / point.iteration_time_s;
                    return Some(own(point.iteration_time_s, power_w));
                }
            }
        } else if !has_first_rank(job) {
            return None;
        }
        let (time_s, energy_j) = self.fleet.measured_step(&key).await?;
        (time_s > 0.0 && energy_j > 0.0).then(|| own(time_s, energy_j / time_s))
    }

    /// Looks at a whole job. Whether it is in a trial; none if this node does not know what it runs yet.
    pub(in crate::budget) async fn look(&self, known: &mut Known, job: &JobView) -> Option<bool> {
        let stands = self.fleet.stands(&JobKey::of(job)).await?;
        look(known, job, &stands);
        if known.own.is_none() && !stands.in_trial && job.measured_by.is_none() {
            known.own = self.own(job, &stands).await;
        }
        Some(stands.in_trial)
    }

    /// How a whole job is slowed down and what it can run, if this node is to say so: with a frontier, or with
    /// the first rank.
    pub(in crate::budget) async fn curve(
        &self,
        job: &JobView,
        known: &mut Known,
        prior: Prior,
    ) -> (BudgetSteering, Option<Curve>) {
        let curve = self.known_curve(job, known, prior).await;
        curve.map_or((BudgetSteering::Nothing, None), |(steering, curve)| (steering, Some(curve)))
    }

    async fn known_curve(
        &self,
        job: &JobView,
        known: &mut Known,
        prior: Prior,
    ) -> Option<(BudgetSteering, Curve)> {
        let frontier = self.stragglers.of(job);
        if frontier.is_none() && !has_first_rank(job) {
            return None;
        }
        if known.clocks.is_none() {
            known.clocks = self.fleet.common_clocks(&JobKey::of(job)).await;
        }
        let own = known.own.as_ref()?;
        let (clocks, paces) = (known.clocks.as_ref(), (&known.paces, prior));
        let (steering, curve) = match frontier {
            Some(frontier) => {
                let clocks = clocks.map_or(&[][..], Vec::as_slice);
                let own = (own, replicas(job));
                let curve = of_frontier(frontier.frontier(), own, (clocks, paces), None);
                (BudgetSteering::Plans, curve)
            }
            None => {
                let curve = of_uniform_clocks(clocks?, own, paces, None);
                (BudgetSteering::UniformClocks, curve)
            }
        };
        Some((steering, curve.ok()?))
    }

    /// Has a whole job change to a point of its curve, or back to its own.
    async fn change(&self, job: &JobView, tag: u32, own: Option<Own>) -> Result<(), Refusal> {
        let key = JobKey::of(job);
        let stands = self.fleet.known_to_stand(&key).await?;
        let before = own_run(&stands);
        let unknown = || {
            let why = format!("{key} runs something else now");
            Refusal::new(RefusalCode::LimitReached, why, "see `pfoctl status`")
        };
        let (run, budgeted) = if tag == OWN {
            (before, None)
        } else {
            let own = own.filter(|own| own.label == label_of(&before)).ok_or_else(unknown)?;
            let Own { time_s, power_w, .. } = own;
            (self.run_at(job, tag).await?, Some(Budgeted { before, time_s, power_w, tag }))
        };
        let standing = Some(Standing { budgeted, straggler: None, ..stands.standing.clone() });
        let terms = Terms { after: Some(stands.number), standing, ..Terms::default() };
        let what = label_of(&run).unwrap_or_else(|| "default clocks".to_owned());
        let change = Change { run: Some(run), by_uid: key.uid, terms, wait: false };
        let swapped = self.fleet.change(&key, change).await.map_err(Refusal::from)?;
        tracing::info!(
            name: journal::SWAPPED, uid = key.uid.0, job = %key.name, plan = swapped.number,
            "{key} changes to {what} at step {} on all of its nodes for a power budget", swapped.step
        );
        Ok(())
    }

    async fn run_at(&self, job: &JobView, tag: u32) -> Result<Run, Refusal> {
        if let Some(mhz) = tag.checked_sub(UNIFORM) {
            return Ok(Run::Uniform(Mhz(mhz)));
        }
        let frontier = self.stragglers.loaded(job)?;
        let plan = move |frontier: &JobFrontier| frontier.plan_in_budget(tag);
        let Labelled { label, table } = self.stragglers.make(&frontier, plan).await?;
        self.fleet.publish(&JobKey::of(job), job, label, &table).await
    }
}

impl Wholes {
    /// Begins a change, unless one is under way.
    pub(in crate::budget) fn change(
        &mut self,
        makers: &Makers,
        job: &JobView,
        tag: u32,
        own: Option<Own>,
    ) {
        let key = JobKey::of(job);
        if self.changing.get(&key).is_some_and(|changing| !changing.task.is_finished()) {
            return;
        }
        let (makers, job) = (makers.clone(), job.clone());
        let problem: Arc<Mutex<Option<String>>> = Arc::default();
        let said = Arc::clone(&problem);
        let task = tokio::spawn(async move {
            if let Err(why) = makers.change(&job, tag, own).await {
                *lock(&said) = Some(why.message);
                sleep(PAUSE).await;
            }
        });
        let changing = Changing { task, problem };
        self.changing.insert(key, changing);
    }

    /// Why a job could not be changed, if so.
    pub(in crate::budget) fn problem(&self, key: &JobKey) -> Option<String> {
        lock(&self.changing.get(key)?.problem).clone()
    }

    /// Forgets jobs that are gone.
    pub(in crate::budget) fn retain(&mut self, is_there: impl Fn(&JobKey) -> bool) {
        self.changing.retain(|key, _| is_there(key));
    }
}

fn replicas(job: &JobView) -> f64 {
    job.ranks
        .first()
        .map_or(1.0, |rank| f64::from(rank.position.dp_degree) * f64::from(rank.position.tp_degree))
}
