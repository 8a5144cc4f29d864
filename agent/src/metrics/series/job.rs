//! Series of jobs that have ranks on this node. Their labels are the job and its owner; those that have a
//! GPU, too, are as many as there are leased GPUs.

use std::fmt;

use pfo_protocol::{
    CurvePoint, DriftStatus, FleetJob, GuardStatus, PlanStatus, SavedEnergy, Window,
};

use super::super::known::{Job, JobRank};
use super::{Known, Series, Sink, Subject, count, counter, flag, gauge, info, text};

pub(super) fn series(known: &Known, sink: &mut impl Sink) -> fmt::Result {
    let ranks: Vec<_> = known.ranks().collect();
    sink.take(&description(), &ranks)?;
    sink.take(&energy(), &ranks)?;
    let bounds =
        known.saved().flat_map(|(job, saved)| {
            let SavedEnergy { low_j, estimate_j, high_j, .. } = *saved;
            [("low", low_j), ("estimate", estimate_j), ("high", high_j)]
                .map(|(bound, saved_j)| Bound { job, bound, saved_j })
        });
    sink.take(&saved(), &bounds.collect::<Vec<_>>())?;
    let jobs: Vec<_> = known.jobs().collect();
    let points = jobs.iter().flat_map(|&job| {
        let curve = job.watched.and_then(|known| known.frontier.as_ref()).map(|known| &known.curve);
        curve.into_iter().flatten().enumerate().map(move |(place, of)| Traded { job, place, of })
    });
    sink.take(&curve(), &points.collect::<Vec<_>>())?;
    let job = Subject {
        labels: &["pfo_job", "uid"],
        label_values: job_labels,
        series: runs().into_iter().chain(measured()).chain(watched()).chain(whole()).collect(),
    };
    sink.take(&job, &jobs)
}

fn job_labels(job: &Job<'_>) -> Vec<String> {
    vec![text(&job.status.job), text(job.status.uid)]
}

/// One end or the middle of what a job has saved.
struct Bound<'a> {
    job: Job<'a>,
    bound: &'static str,
    saved_j: f64,
}

fn saved<'a>() -> Subject<Bound<'a>> {
    Subject {
        labels: &["pfo_job", "uid", "bound"],
        label_values: |of| {
            let mut labels = job_labels(&of.job);
            labels.push(of.bound.to_owned());
            labels
        },
        series: vec![gauge(
            "pfo_job_saved_joules",
            Some("joules"),
            "What plans have saved of the energy that the job would have used at default clocks on this \
             node, since the ledger of savings knows it: what is most likely (estimate), and its 95 % \
             interval (low, high). It may fall, because each comparison corrects what was estimated \
             before; absent before two comparisons.",
            |of| Some(of.saved_j),
        )],
    }
}

/// A point of what a job trades.
struct Traded<'a> {
    job: Job<'a>,
    place: usize,
    of: &'a CurvePoint,
}

fn curve<'a>() -> Subject<Traded<'a>> {
    Subject {
        labels: &["pfo_job", "uid", "point"],
        label_values: |traded| {
            let mut labels = job_labels(&traded.job);
            labels.push(text(traded.place));
            labels
        },
        series: vec![
            gauge(
                "pfo_job_curve_watts",
                Some("watts"),
                "What the job trades, by the frontier that is loaded for it: the mean power over a step of \
                 one rank of each stage, by point, the fastest plan first. From every node that has the \
                 frontier, and absent without one.",
                |traded| Some(traded.of.power_w),
            ),
            gauge(
                "pfo_job_curve_step_seconds",
                Some("seconds"),
                "The time of a step at the same point.",
                |traded| Some(traded.of.step_s),
            ),
        ],
    }
}

fn description<'a>() -> Subject<JobRank<'a>> {
    Subject {
        labels: &["pfo_job", "uid", "gpu_uuid", "rank", "stage"],
        label_values: |rank| {
            let mut labels = job_labels(&rank.job);
            let of_rank = rank.status;
            labels.extend([text(&of_rank.gpu_uuid), text(of_rank.rank), text(of_rank.stage)]);
            labels
        },
        series: vec![info("pfo_job_info", "A rank of the job on this node, and its GPU.")],
    }
}

fn energy<'a>() -> Subject<JobRank<'a>> {
    Subject {
        labels: &["pfo_job", "uid", "gpu_uuid"],
        label_values: |rank| {
            let mut labels = job_labels(&rank.job);
            labels.push(text(&rank.status.gpu_uuid));
            labels
        },
        series: vec![counter(
            "pfo_job_energy_joules_total",
            Some("joules"),
            "Energy of the GPU since the rank's session began, by its energy counter, read as steps \
             begin. It starts again at 0 with each session and when pfod restarts, but not when \
             pfo-agent does; what was used in between is counted nowhere.",
            |rank| rank.status.energy_j.filter(|energy_j| *energy_j >= 0.0),
        )],
    }
}

fn plan<'a>(job: &Job<'a>) -> Option<&'a PlanStatus> {
    job.status.plan.as_ref()
}

/// What was measured since the newest swap.
fn window<'a>(job: &Job<'a>) -> Option<&'a Window> {
    let number = |plan: &PlanStatus| plan.number;
    let now = job.status.plan.as_ref().map(number);
    let newest = job.status.windows.last()?;
    (newest.plan.as_ref().map(number) == now && newest.steps > 0).then_some(newest)
}

fn drift<'a>(job: &Job<'a>) -> Option<&'a DriftStatus> {
    let runs = job.status.plan.as_ref()?.number;
    job.watched?.drift.as_ref().filter(|drift| drift.plan == runs)
}

fn guard<'a>(job: &Job<'a>) -> Option<&'a GuardStatus> {
    job.watched?.guard.as_ref()
}

fn fleet<'a>(job: &Job<'a>) -> Option<&'a FleetJob> {
    job.watched?.fleet.as_ref()
}

fn runs<'a>() -> Vec<Series<Job<'a>>> {
    vec![
        gauge("pfo_job_stages", None, "Stages of the job, on all nodes.", |job| {
            count(job.status.pp_degree)
        }),
        gauge("pfo_job_ranks", None, "Ranks of the job on this node.", |job| {
            count(job.status.ranks.len())
        }),
        gauge(
            "pfo_job_step",
            None,
            "The number of the newest step that a rank on this node has begun.",
            |job| count(job.status.ranks.iter().filter_map(|rank| rank.step).max()?),
        ),
        gauge(
            "pfo_job_plan",
            None,
            "The number of the plan that the job runs, 0 at default clocks.",
            |job| count(plan(job).map_or(0, |plan| plan.number)),
        ),
        gauge(
            "pfo_job_plan_suspended",
            None,
            "1 if the plan is suspended, so that the job is at default clocks, else 0; absent without \
             a plan.",
            |job| flag(plan(job)?.suspended.is_some()),
        ),
        gauge("pfo_job_held", None, "1 if somebody holds the job for measuring, else 0.", |job| {
            flag(job.status.measured_by.is_some())
        }),
    ]
}

fn measured<'a>() -> Vec<Series<Job<'a>>> {
    vec![
        gauge(
            "pfo_job_predicted_step_seconds",
            Some("seconds"),
            "The time of a step that the plan predicts.",
            |job| plan(job)?.predicted_time_s,
        ),
        gauge(
            "pfo_job_predicted_step_joules",
            Some("joules"),
            "The energy of a step that the plan predicts, of one rank of each stage on all nodes.",
            |job| plan(job)?.predicted_energy_j,
        ),
        gauge("pfo_job_measured_steps", None, "Steps measured since the newest swap.", |job| {
            count(window(job)?.steps)
        }),
        gauge(
            "pfo_job_step_seconds",
            Some("seconds"),
            "The time of a step, of the slowest rank on this node: the mean over these steps.",
            |job| Some(window(job)?.iteration_time_s),
        ),
        gauge(
            "pfo_job_step_joules",
            Some("joules"),
            "The energy of a step, of all ranks on this node: the mean over these steps.",
            |job| window(job)?.iteration_energy_j,
        ),
    ]
}

fn watched<'a>() -> Vec<Series<Job<'a>>> {
    vec![
        gauge(
            "pfo_job_time_drift_ratio",
            Some("ratio"),
            "The share by which steps take longer than predicted, below 0 if they take less; absent \
             unless that, or the energy, is too far off.",
            |job| Some(drift(job)?.time),
        ),
        gauge(
            "pfo_job_energy_drift_ratio",
            Some("ratio"),
            "The share by which steps take more energy than predicted; absent likewise, and where not \
             every stage is on this node.",
            |job| drift(job)?.energy,
        ),
        gauge(
            "pfo_job_frontier_plans",
            None,
            "Plans of the frontier that is loaded for the job; absent without one.",
            |job| count(job.watched?.frontier.as_ref()?.plans),
        ),
        gauge(
            "pfo_job_straggler_ratio",
            Some("ratio"),
            "How many times the fastest iteration the straggler's takes that the job runs a plan \
             for; absent without one.",
            |job| job.watched?.frontier.as_ref()?.straggler,
        ),
        gauge(
            "pfo_job_allowed_slowdown_ratio",
            Some("ratio"),
            "The slowdown that the guard allows, as a share of the step at default clocks; absent \
             without a guard.",
            |job| Some(guard(job)?.max_slowdown),
        ),
        gauge(
            "pfo_job_slowdown_ratio",
            Some("ratio"),
            "The slowdown of the plan by the newest comparisons; absent before the first one.",
            |job| guard(job)?.slowdown,
        ),
        gauge(
            "pfo_job_guard_gave_up",
            None,
            "1 if the guard has brought the job to default clocks, else 0; absent without a guard.",
            |job| flag(guard(job)?.given_up.is_some()),
        ),
    ]
}

fn whole<'a>() -> Vec<Series<Job<'a>>> {
    vec![
        gauge(
            "pfo_job_nodes",
            None,
            "Nodes of the job; from the node that has rank 0, and absent for a job of one node.",
            |job| {
                fleet(job)
                    .filter(|fleet| !fleet.nodes.is_empty())
                    .and_then(|it| count(it.nodes.len()))
            },
        ),
        gauge(
            "pfo_job_late_nodes",
            None,
            "Nodes that do not run what the whole job does; absent likewise.",
            |job| {
                let nodes =
                    fleet(job).map(|fleet| &fleet.nodes).filter(|nodes| !nodes.is_empty())?;
                let is_late = |late: &pfo_protocol::FleetLate| late.until_step.is_none();
                count(
                    nodes
                        .iter()
                        .filter_map(|node| node.late.as_ref())
                        .filter(|it| is_late(it))
                        .count(),
                )
            },
        ),
        gauge(
            "pfo_job_incomplete",
            None,
            "1 if the job cannot be changed as a whole, because ranks are missing or are there \
             twice, else 0; absent likewise.",
            |job| {
                let watched = fleet(job).filter(|fleet| !fleet.nodes.is_empty());
                flag(watched?.problem.is_some())
            },
        ),
        gauge(
            "pfo_job_store_away_seconds",
            Some("seconds"),
            "For how long the store has not answered for this job; absent while it answers.",
            |job| fleet(job)?.store_away_s,
        ),
    ]
}
