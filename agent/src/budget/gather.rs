//! What runs and what it draws, from what `pfod` counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pfo_budget::{Curve, Point, Steering};
use pfo_protocol::{BudgetScope, BudgetSteering, GpuStatus, GpuUuid, JobView};

use crate::budget::book::Book;
use crate::budget::budgets::BudgetMeans;
use crate::budget::caps::Caps;
use crate::budget::decision::Gathered;
use crate::budget::job_curve::{of_frontier, of_uniform_clocks};
use crate::budget::known::{Known, OWN, Own, measured};
use crate::job::JobKey;
use crate::pfod::PfodError;
use crate::straggler::{FrontierJob, JobFrontier, Labelled};

/// How far the counters of a job may be off what its frontier says before it is steered without that.
const BELIEVED: std::ops::RangeInclusive<f64> = 0.6..=1.5;

/// No job counts for less, in watts.
const LEAST_W: f64 = 1.0;

/// The node at one moment.
pub(super) struct Node {
    pub(super) jobs: Vec<JobView>,
    pub(super) gpus: Vec<GpuStatus>,
}

/// A job that counts for a budget.
pub(super) struct Member {
    pub(super) key: JobKey,
    pub(super) scope: BudgetScope,
    pub(super) weight: f64,
    pub(super) slowest: Option<f64>,
    pub(super) steering: BudgetSteering,
    /// None if it cannot be slowed down.
    pub(super) curve: Option<Curve>,
    pub(super) measured_w: Option<f64>,
    /// What the driver says that its GPUs draw now, in watts.
    pub(super) gpus_w: f64,
    pub(super) gpus: BTreeSet<GpuUuid>,
    /// Whether power limits hold some of these.
    pub(super) is_limited: bool,
    pub(super) is_held: bool,
}

impl Node {
    /// # Errors
    /// If `pfod` does not answer.
    pub(super) async fn now(means: &BudgetMeans) -> Result<Self, PfodError> {
        let jobs = means.questions.jobs().await?;
        let gpus = means.questions.status().await?.gpus;
        Ok(Self { jobs, gpus })
    }

    /// What the driver says that these GPUs draw, in watts.
    fn power_w(&self, gpus: &BTreeSet<&GpuUuid>) -> f64 {
        let drawn = self.gpus.iter().filter(|gpu| gpus.contains(&gpu.uuid));
        drawn.filter_map(|gpu| gpu.power_w).filter(|power_w| power_w.is_finite()).sum()
    }

    /// What GPUs draw that no job has, in watts.
    pub(super) fn idle_w(&self) -> f64 {
        let taken: BTreeSet<_> =
            self.jobs.iter().flat_map(|job| &job.ranks).map(|rank| &rank.gpu_uuid).collect();
        let idle = self.gpus.iter().map(|gpu| &gpu.uuid).filter(|gpu| !taken.contains(gpu));
        self.power_w(&idle.collect())
    }
}

/// Looks at every job that counts for a budget, or did.
pub(super) async fn gather(
    means: &BudgetMeans,
    book: &Book,
    node: &Node,
    known: &mut BTreeMap<JobKey, Known>,
    caps: &Caps,
) -> Vec<Member> {
    let mut members = Vec::new();
    for job in node.jobs.iter().filter(|job| !job.ranks.is_empty()) {
        let key = JobKey::of(job);
        let Some(scope) = book.scope_of(&key) else { continue };
        let (weight, slowest) = book.terms_of(&key);
        let is_emergency = book.orders.get(&scope).is_some_and(|kept| kept.order.emergency);
        let of_job = known.entry(key.clone()).or_default();
        let is_held = job.measured_by.is_some();
        if !is_held {
            of_job.look(job);
        }
        let gpus: BTreeSet<_> = job.ranks.iter().map(|rank| rank.gpu_uuid.clone()).collect();
        of_job.problem = caps.not_taken(&gpus, &node.gpus);
        let is_limited = gpus.iter().any(|gpu| caps.holds(gpu));
        let gpus_w = node.power_w(&gpus.iter().collect());
        // What it draws under a power limit says nothing of its plan.
        let measured_w = of_job.measure(job).filter(|_| !is_held && !is_limited);
        if !is_limited {
            of_job.free_w = Some(measured_w.unwrap_or(gpus_w));
        }
        let slowest = slowest.filter(|_| !is_emergency);
        let (steering, curve) = curve(means, job, of_job, slowest).await;
        members.push(Member {
            weight: weight.unwrap_or(job.ranks.len() as f64),
            gpus_w,
            gpus,
            is_limited,
            key,
            scope,
            slowest,
            steering,
            curve,
            measured_w,
            is_held,
        });
    }
    members
}

impl Member {
    /// As a decision sees it. A job that no plan and no clock slows down has the one point that it runs,
    /// so that only power limits can hold it.
    pub(super) fn gathered(&self, known: &Known) -> Option<Gathered> {
        let fixed = || {
            let power_w = known.free_w.unwrap_or_else(|| self.drawn_w()).max(LEAST_W);
            let point = Point { time_s: 1.0, power_w, tag: known.running().unwrap_or(OWN) };
            Curve::steered(Steering::PowerLimits, [point], None).ok()
        };
        let is_fixed = self.curve.is_none();
        Some(Gathered {
            key: self.key.clone(),
            curve: self.curve.clone().or_else(fixed)?,
            weight: self.weight,
            running: known.running().filter(|_| !self.is_held),
            measured_w: self.measured_w.filter(|_| !is_fixed),
            is_held: self.is_held,
            has_floor: self.slowest.is_some(),
            is_limited: self.is_limited,
        })
    }

    /// What it draws, in watts.
    pub(super) fn drawn_w(&self) -> f64 {
        self.measured_w.unwrap_or(self.gpus_w)
    }
}

/// How a job is slowed down, and what it can run then.
async fn curve(
    means: &BudgetMeans,
    job: &JobView,
    known: &mut Known,
    slowest: Option<f64>,
) -> (BudgetSteering, Option<Curve>) {
    let Some(pipelines) = pipelines(job) else { return (BudgetSteering::Nothing, None) };
    let frontier = means.stragglers.of(job).filter(|_| !known.is_off);
    if known.own.is_none() && job.measured_by.is_none() {
        known.own = own(means, job, frontier.as_ref(), pipelines).await;
    }
    let Some(own) = &known.own else { return (BudgetSteering::Nothing, None) };
    let (steering, made) = match &frontier {
        Some(frontier) => {
            (BudgetSteering::Plans, of_frontier(frontier.frontier(), own, pipelines, slowest))
        }
        None => (BudgetSteering::UniformClocks, of_uniform_clocks(job, own, slowest)),
    };
    match made {
        Ok(curve) => {
            known.compare(&curve, &BELIEVED);
            (steering, Some(curve))
        }
        Err(error) => {
            known.problem = Some(error.to_string());
            (BudgetSteering::Nothing, None)
        }
    }
}

/// The pipelines of a job, if all of it is on this node.
fn pipelines(job: &JobView) -> Option<f64> {
    let position = &job.ranks.first()?.position;
    let replicas = position.dp_degree.checked_mul(position.tp_degree)?;
    let ranks = replicas.checked_mul(position.pp_degree)?;
    (job.ranks.len() == ranks as usize).then_some(f64::from(replicas))
}

/// What a job runs by itself: what its frontier says of that or, without one, what was measured.
async fn own(
    means: &BudgetMeans,
    job: &JobView,
    frontier: Option<&Arc<FrontierJob>>,
    pipelines: f64,
) -> Option<Own> {
    let key = JobKey::of(job);
    let own_plan = job.plan.as_ref().map(|plan| plan.label.clone());
    let plan = match frontier.and_then(|frontier| frontier.before_straggler()) {
        Some(before) => before,
        None if own_plan.is_none() => None,
        None => {
            let table = means.questions.plan(key.selector()).await.ok()?;
            table.zip(own_plan.clone()).map(|(table, label)| Labelled { label, table })
        }
    };
    let is_known = own_plan.is_none() || plan.is_some();
    let table = plan.as_ref().map(|plan| plan.table.clone());
    let point = match frontier.filter(|_| is_known) {
        Some(known) => {
            let of_own = move |frontier: &JobFrontier| frontier.point_of(table.as_ref());
            means.stragglers.make(known, of_own).await.ok()
        }
        None => None,
    };
    let (time_s, power_w) = match point {
        Some(point) => {
            let power_w = pipelines * point.iteration_energy_j / point.iteration_time_s;
            (point.iteration_time_s, power_w)
        }
        None => measured(job)?,
    };
    let label =
        if plan.is_some() { plan.as_ref().map(|plan| plan.label.clone()) } else { own_plan };
    Some(Own { label, plan, time_s, power_w })
}

impl Known {
    /// Compares what was measured with what its curve says. Far off in three looks in a row, what its
    /// owner loaded is no frontier of it.
    fn compare(&mut self, curve: &Curve, believed: &std::ops::RangeInclusive<f64>) {
        let point = curve.points().iter().find(|point| Some(point.tag) == self.running());
        let Some((drawn_w, point)) = self.fresh_w.zip(point) else { return };
        let is_off = !believed.contains(&(drawn_w / point.power_w));
        self.off = if is_off { self.off.saturating_add(1) } else { 0 };
        if self.off >= 3 && !self.is_off && curve.steering() == Steering::Plans {
            (self.is_off, self.off) = (true, 0);
            if self.running() == Some(OWN) {
                // What it draws by itself is measured instead.
                self.own = None;
            }
        }
    }
}
