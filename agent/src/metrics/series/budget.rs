//! Series of power budgets, and of what jobs give up for them.

use std::fmt;

use pfo_protocol::{BudgetReason, BudgetScope, BudgetStatus, BudgetedJob, JobSelector};

use super::{Known, Sink, Subject, flag, gauge, text};

pub(super) fn series(known: &Known, sink: &mut impl Sink) -> fmt::Result {
    sink.take(&budgets(), &known.budget.budgets.iter().collect::<Vec<_>>())?;
    sink.take(&jobs(), &known.budgeted().collect::<Vec<_>>())
}

fn budgets<'a>() -> Subject<&'a BudgetStatus> {
    Subject {
        labels: &["scope"],
        label_values: |budget: &&BudgetStatus| vec![scope(&budget.order.scope)],
        series: vec![
            gauge(
                "pfo_budget_watts",
                Some("watts"),
                "The power budget that is in force now.",
                |budget| budget.budget_w,
            ),
            gauge(
                "pfo_budget_drawn_watts",
                Some("watts"),
                "What counts for the budget and is drawn, by the energy counters.",
                |budget| budget.drawn_w,
            ),
            gauge(
                "pfo_budget_base_watts",
                Some("watts"),
                "What of this no plan changes: GPUs without a job, jobs that only count, the site.",
                |budget| budget.budget_w.map(|_| budget.base_w),
            ),
            gauge(
                "pfo_budget_reserve_watts",
                Some("watts"),
                "What is kept free, because counters scatter or do not say everything.",
                |budget| budget.budget_w.map(|_| budget.reserve_w),
            ),
            gauge(
                "pfo_budget_missing_watts",
                Some("watts"),
                "What is missing even with every job at its floor; absent if the budget can be kept.",
                |budget| budget.missing_w,
            ),
            gauge(
                "pfo_budget_problem",
                None,
                "1 if something is wrong with the budget, which `pfoctl budget status` says, else 0.",
                |budget| flag(budget.problem.is_some() || budget.file.is_some()),
            ),
        ],
    }
}

fn jobs<'a>() -> Subject<&'a BudgetedJob> {
    Subject {
        labels: &["pfo_job", "uid"],
        label_values: |job: &&BudgetedJob| vec![text(&job.job), text(job.uid)],
        series: vec![
            gauge(
                "pfo_job_budget_given_watts",
                Some("watts"),
                "The power that the job gives up for a budget; absent for a job that only counts.",
                |job| job.own_w.map(|_| job.given_w),
            ),
            gauge(
                "pfo_job_budget_lost_ratio",
                Some("ratio"),
                "The share of its speed that the job gives up for a budget; absent likewise.",
                |job| job.own_w.map(|_| job.lost),
            ),
            gauge(
                "pfo_job_budget_floor",
                None,
                "1 if the job is as slow as it may be for a budget, else 0.",
                |job| flag(job.reason == BudgetReason::Floor),
            ),
        ],
    }
}

fn scope(scope: &BudgetScope) -> String {
    match scope {
        BudgetScope::Node => "node".into(),
        BudgetScope::User(uid) => format!("user:{uid}"),
        BudgetScope::Fleet => "fleet".into(),
        BudgetScope::FleetUser(uid) => format!("fleet/user:{uid}"),
        BudgetScope::Job(job) => format!("job:{}", of_job(job)),
        BudgetScope::FleetJob(job) => format!("fleet/job:{}", of_job(job)),
        BudgetScope::Partition(name) => format!("partition:{name}"),
        BudgetScope::FleetPartition(name) => format!("fleet/partition:{name}"),
    }
}

fn of_job(job: &JobSelector) -> String {
    format!("{}/{}", job.uid.map(text).unwrap_or_default(), job.job)
}
