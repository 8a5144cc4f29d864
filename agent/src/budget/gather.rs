//! What runs and what it draws, from what `pfod` counts.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use pfo_budget::{Curve, Point, Prior, Steering};
use pfo_protocol::{
    BudgetScope, BudgetSteering, GpuStatus, GpuUuid, JobStatus, JobView, PartitionName,
    RankPosition,
};

use crate::budget::book::{Book, Place};
use crate::budget::budgets::BudgetMeans;
use crate::budget::caps::Caps;
use crate::budget::decision::Gathered;
use crate::budget::job_curve::{
    assumed_below_plans, common_clocks, is_uniform, of_frontier, of_uniform_clocks,
};
use crate::budget::known::{Known, OWN, Own, measured};
use crate::budget::partitions::Partitions;
use crate::fleet::spans_nodes;
use crate::job::JobKey;
use crate::pfod::PfodError;
use crate::straggler::{FrontierJob, JobFrontier, Labelled};

/// How far the counters of a job may be off what its frontier says before it is steered without that.
const BELIEVED: std::ops::RangeInclusive<f64> = 0.6..=1.5;

/// No job counts for less, in watts.
pub(super) const LEAST_W: f64 = 1.0;

/// The node at one moment.
pub(super) struct Node {
    pub(super) jobs: Vec<JobView>,
    pub(super) gpus: Vec<GpuStatus>,
    /// What the counters of the GPUs of each job have come to, in joules.
    energies_j: BTreeMap<JobKey, f64>,
    elapsed_s: f64,
    /// The GPUs whose power the driver does not say, and that in words.
    unread: BTreeMap<GpuUuid, String>,
}

/// What the driver said of the power of GPUs so far.
#[derive(Debug, Default)]
pub(super) struct LastRead {
    /// The last power of each, in watts.
    watts: BTreeMap<GpuUuid, f64>,
    /// Those whose power it does not say any more.
    unread: BTreeMap<GpuUuid, String>,
}

impl LastRead {
    /// Gives GPUs whose power the driver does not say their last one.
    fn complete(&mut self, gpus: &mut [GpuStatus]) {
        let before = mem::take(&mut self.unread);
        for gpu in gpus {
            if let Some(power_w) = gpu.power_w.filter(|power_w| power_w.is_finite()) {
                self.watts.insert(gpu.uuid.clone(), power_w);
                continue;
            }
            gpu.power_w = self.watts.get(&gpu.uuid).copied();
            let counts = match gpu.power_w {
                Some(power_w) => format!("its last {power_w:.0} W stand for it"),
                None => "it counts as 0 W".to_owned(),
            };
            let words = format!("GPU {} reports no power: {counts}", gpu.index);
            if !before.contains_key(&gpu.uuid) {
                tracing::warn!("power budgets: {words}");
            }
            self.unread.insert(gpu.uuid.clone(), words);
        }
    }
}

/// A job that counts for a budget.
pub(super) struct Member {
    pub(super) key: JobKey,
    pub(super) partition: Option<PartitionName>,
    pub(super) scope: BudgetScope,
    pub(super) weight: f64,
    /// Whether this node knows what it runs.
    pub(super) is_known: bool,
    /// What terms say of that.
    pub(super) own_weight: Option<f64>,
    ranks: u32,
    /// Its ranks, on this node and on others.
    pub(super) all_ranks: u32,
    pub(super) slowest: Option<f64>,
    pub(super) steering: BudgetSteering,
    /// None if it cannot be slowed down.
    pub(super) curve: Option<Curve>,
    pub(super) measured_w: Option<f64>,
    /// The same, also under power limits, since they hold as they do now.
    counted_w: Option<f64>,
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
    pub(super) async fn now(
        means: &BudgetMeans,
        elapsed_s: f64,
        last: &mut LastRead,
    ) -> Result<Self, PfodError> {
        let jobs = means.questions.jobs().await?;
        let mut status = means.questions.status().await?;
        last.complete(&mut status.gpus);
        let energy_j = |job: &JobStatus| {
            let key = JobKey { uid: job.uid, name: job.job.clone() };
            Some((key, job.ranks.iter().map(|rank| rank.energy_j).sum::<Option<f64>>()?))
        };
        let energies_j = status.jobs.iter().filter_map(energy_j).collect();
        Ok(Self { jobs, gpus: status.gpus, energies_j, elapsed_s, unread: last.unread.clone() })
    }

    /// What the driver says that these GPUs draw, or said last, in watts.
    pub(super) fn power_w(&self, gpus: &BTreeSet<&GpuUuid>) -> f64 {
        let drawn = self.gpus.iter().filter(|gpu| gpus.contains(&gpu.uuid));
        drawn.filter_map(|gpu| gpu.power_w).sum()
    }

    /// What is not known of the power that a budget of these jobs counts, in words.
    pub(super) fn unread_of(&self, scope: &BudgetScope, own: &[&Member]) -> Option<String> {
        let counts = |gpu: &GpuUuid| {
            *scope == BudgetScope::Node || own.iter().any(|member| member.gpus.contains(gpu))
        };
        let unread = self.unread.iter().filter(|(gpu, _)| counts(gpu));
        let words: Vec<&str> = unread.map(|(_, what)| what.as_str()).collect();
        (!words.is_empty()).then(|| words.join("; "))
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
    (book, partitions): (&Book, &Partitions),
    node: &Node,
    known: &mut BTreeMap<JobKey, Known>,
    caps: &Caps,
) -> Vec<Member> {
    let makers = means.makers();
    let mut members = Vec::new();
    for job in node.jobs.iter().filter(|job| !job.ranks.is_empty()) {
        let key = JobKey::of(job);
        let spans_nodes = spans_nodes(job);
        let partition = partitions.of_job(job).cloned();
        let place = Place { key: &key, partition: partition.as_ref(), spans_nodes };
        let Some(scope) = book.scope_of(place) else { continue };
        let (weight, slowest) = book.terms_of(place);
        let is_emergency = book.orders.get(&scope).is_some_and(|kept| kept.order.emergency);
        let of_job = known.entry(key.clone()).or_default();
        let whole = makers.as_ref().filter(|_| spans_nodes && scope.is_of_fleet());
        let (mut is_held, mut is_known) = (job.measured_by.is_some(), true);
        match whole {
            Some(makers) => {
                let in_trial = makers.look(of_job, job).await;
                (is_held, is_known) = (is_held || in_trial == Some(true), in_trial.is_some());
            }
            None if !is_held => of_job.look(job),
            None => {}
        }
        let gpus: BTreeSet<_> = job.ranks.iter().map(|rank| rank.gpu_uuid.clone()).collect();
        of_job.problem = caps.not_taken(&gpus, &node.gpus);
        let is_limited = gpus.iter().any(|gpu| caps.holds(gpu));
        let gpus_w = node.power_w(&gpus.iter().collect());
        let energy = (node.energies_j.get(&key).copied(), node.elapsed_s);
        let (measured_w, counted_w) = of_job.drawn(job, energy, (is_held, is_limited));
        if !is_limited {
            of_job.note_unlimited((measured_w.unwrap_or(gpus_w), is_held), job);
        }
        let (prior, slowest) = promised(slowest.filter(|_| !is_emergency));
        // Where others decide, they have to know it without its floor.
        let cut = slowest.filter(|_| !scope.is_of_fleet());
        let (steering, curve) = match whole {
            Some(makers) => makers.curve(job, of_job, prior).await,
            None => curve(means, job, of_job, (prior, cut)).await,
        };
        let curve = curve.and_then(|curve| bounded(means, &scope, curve));
        members.push(Member {
            own_weight: weight,
            is_known,
            weight: weight.unwrap_or(job.ranks.len() as f64),
            ranks: job.ranks.len() as u32,
            all_ranks: all_ranks(job),
            gpus_w,
            gpus,
            is_limited,
            key,
            partition,
            scope,
            slowest,
            steering,
            curve,
            measured_w,
            counted_w,
            is_held,
        });
    }
    members
}

/// What a job can run for a budget: for one of the fleet, as far as this node lets it.
fn bounded(means: &BudgetMeans, scope: &BudgetScope, curve: Curve) -> Option<Curve> {
    if !scope.is_of_fleet() {
        return Some(curve);
    }
    within(&curve, means.settings.now().config.budget.slowest_in_fleet())
}

/// How long the steps of a job with this floor are taken to be where they were not measured.
fn promised(slowest: Option<f64>) -> (Prior, Option<f64>) {
    (if slowest.is_some() { Prior::Slowest } else { Prior::Usual }, slowest)
}

fn within(curve: &Curve, slowest: f64) -> Option<Curve> {
    let points = curve.points().iter().copied();
    let cut = Curve::steered(curve.steering(), points, Some(slowest)).ok()?;
    Some(assumed_below_plans(cut))
}

/// Whether a curve has a point that is not below a floor.
fn has(curve: &Curve, tag: u32, slowest: Option<f64>) -> bool {
    let shortest_s = curve.points().first().map_or(0.0, |point| point.time_s);
    let slowest_s = slowest.unwrap_or(f64::INFINITY) * shortest_s;
    curve.points().iter().any(|point| point.tag == tag && point.time_s <= slowest_s)
}

impl Member {
    /// Whether the node that decides for the fleet may have the job run this point.
    pub(super) fn may_run(&self, tag: u32) -> bool {
        tag == OWN || self.curve.as_ref().is_some_and(|curve| has(curve, tag, self.slowest))
    }

    /// As a decision sees it. A job that no plan and no clock slows down has the one point that it runs,
    /// so that only power limits can hold it.
    pub(super) fn gathered(&self, known: &Known) -> Option<Gathered> {
        let Some(curve) = self.curve.clone() else { return self.fixed(known) };
        let running = known.running().filter(|_| !self.is_held);
        Some(self.with(curve, running, self.measured_w))
    }

    /// The same of a job that is not to change.
    pub(super) fn fixed(&self, known: &Known) -> Option<Gathered> {
        let power_w = known.free_w.unwrap_or_else(|| self.drawn_w()).max(LEAST_W);
        let point = Point { time_s: 1.0, power_w, tag: known.running().unwrap_or(OWN) };
        let curve = Curve::steered(Steering::PowerLimits, [point], None).ok()?;
        let running = known.running().filter(|_| !self.is_held);
        Some(self.with(curve, running, None))
    }

    fn with(&self, curve: Curve, running: Option<u32>, measured_w: Option<f64>) -> Gathered {
        Gathered {
            key: self.key.clone(),
            curve,
            weight: self.weight,
            running,
            measured_w,
            is_held: self.is_held,
            has_floor: self.slowest.is_some(),
            is_limited: self.is_limited,
        }
    }

    /// Its ranks on this node.
    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Whether it has ranks on other nodes.
    pub(super) fn is_whole(&self) -> bool {
        self.ranks < self.all_ranks
    }

    /// What it draws, in watts.
    pub(super) fn drawn_w(&self) -> f64 {
        self.counted_w.unwrap_or(self.gpus_w)
    }
}

/// How a job is slowed down, and what it can run then.
async fn curve(
    means: &BudgetMeans,
    job: &JobView,
    known: &mut Known,
    (prior, slowest): (Prior, Option<f64>),
) -> (BudgetSteering, Option<Curve>) {
    let Some(pipelines) = pipelines(job) else { return (BudgetSteering::Nothing, None) };
    let frontier = means.stragglers.of(job).filter(|_| !known.is_off);
    if known.own.is_none() && job.measured_by.is_none() {
        known.own = own(means, job, frontier.as_ref(), pipelines, known).await;
    }
    let Some(own) = &known.own else { return (BudgetSteering::Nothing, None) };
    let (steering, made) = match &frontier {
        Some(frontier) => {
            let (clocks, own) = (common_clocks(job), (own, pipelines));
            let made =
                of_frontier(frontier.frontier(), own, (&clocks, (&known.paces, prior)), slowest);
            (BudgetSteering::Plans, made)
        }
        None => (
            BudgetSteering::UniformClocks,
            of_uniform_clocks(&common_clocks(job), own, (&known.paces, prior), slowest),
        ),
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

/// The ranks of a job on all nodes, as those on this one say.
fn all_ranks(job: &JobView) -> u32 {
    let ranks = |position: &RankPosition| {
        let degrees = [position.pp_degree, position.dp_degree, position.tp_degree];
        degrees.into_iter().fold(1_u32, u32::saturating_mul)
    };
    job.ranks.first().map_or(0, |rank| ranks(&rank.position))
}

/// The pipelines of a job, if all of it is on this node.
fn pipelines(job: &JobView) -> Option<f64> {
    let position = &job.ranks.first()?.position;
    let replicas = position.dp_degree.checked_mul(position.tp_degree)?;
    (job.ranks.len() == all_ranks(job) as usize).then_some(f64::from(replicas))
}

/// What a job runs by itself: what its frontier says of that or, without one, what was measured.
async fn own(
    means: &BudgetMeans,
    job: &JobView,
    frontier: Option<&Arc<FrontierJob>>,
    pipelines: f64,
    known: &Known,
) -> Option<Own> {
    let key = JobKey::of(job);
    let own_plan = job.plan.as_ref().map(|plan| plan.label.clone());
    let plan = match frontier.and_then(|_| means.steering.standings.before_straggler(&key)) {
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
        None => {
            let (time_s, power_w) = known.unlimited.or_else(|| measured(job))?;
            (time_s, power_w.max(known.witness.least_w()?))
        }
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
        let is_of_frontier = curve.steering() == Steering::Plans && !is_uniform(point.tag);
        let is_off = !believed.contains(&(drawn_w / point.power_w));
        self.off = if is_off { self.off.saturating_add(1) } else { 0 };
        if self.off >= 3 && !self.is_off && is_of_frontier {
            (self.is_off, self.off) = (true, 0);
            if self.running() == Some(OWN) {
                // What it draws by itself is measured instead.
                self.own = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_runs_nothing_slower_than_its_floor_and_that_of_its_node_allow() {
        let point = |time_s, power_w, tag| Point { time_s, power_w, tag };
        let points = [point(1.0, 900.0, OWN), point(1.5, 700.0, 1), point(2.5, 500.0, 2)];
        let whole = Curve::new(points, None).unwrap();
        let runs = |curve: &Curve, slowest| [1, 2, 3].map(|tag| has(curve, tag, slowest));
        assert_eq!(runs(&whole, None), [true, true, false]);
        assert_eq!(runs(&whole, Some(1.6)), [true, false, false]);
        let of_node = within(&whole, 2.0).unwrap();
        assert_eq!(runs(&of_node, None), [true, false, false]);
        assert_eq!(runs(&of_node, Some(1.1)), [false, false, false]);
    }

    #[test]
    fn a_gpu_without_a_power_reading_counts_with_its_last_one_and_is_named() {
        let status: pfo_protocol::Status =
            serde_json::from_str(include_str!("../../../ctl/tests/golden/status.json")).unwrap();
        let mut last = LastRead::default();
        let mut look = |power_w: Option<f64>| {
            let mut gpus = vec![GpuStatus { index: 2, power_w, ..status.gpus[0].clone() }];
            last.complete(&mut gpus);
            (gpus[0].power_w, last.unread.values().next().cloned())
        };
        let never = "GPU 2 reports no power: it counts as 0 W".to_owned();
        let stale = "GPU 2 reports no power: its last 390 W stand for it".to_owned();
        assert_eq!(look(None), (None, Some(never)));
        assert_eq!(look(Some(390.0)), (Some(390.0), None));
        assert_eq!(look(Some(f64::NAN)), (Some(390.0), Some(stale.clone())));
        assert_eq!(look(None), (Some(390.0), Some(stale)));
        assert_eq!(look(Some(54.0)), (Some(54.0), None));
    }
}
