//! Budgets as people read them.

use pfo_protocol::{
    BudgetFileTrouble, BudgetLevel, BudgetReason, BudgetReport, BudgetStatus, BudgetSteering,
    BudgetTerms, BudgetedJob,
};

use super::scope::shown;
use crate::lease::now_unix_s;
use crate::output::Look;
use crate::status::quantity::{percent, span, watt_hours, watts};
use crate::status::table::{Cell, Table};
use crate::text::harmless;
use crate::user;

/// Everything, as tables.
pub(super) fn report(report: &BudgetReport, look: Look) -> String {
    let mut text = String::new();
    if report.budgets.is_empty() && report.disobeyed.is_some() {
        text += "No power budget is in force on this node.\n";
    } else if report.budgets.is_empty() {
        text += "No power budget is set, or it is not yours to see.\n";
    } else {
        let mut table = Table::new(look)
            .left("Budget for")
            .right("Power")
            .right("Drawn")
            .right("Reserve")
            .left("From")
            .left("Ordered by");
        report.budgets.iter().for_each(|budget| table.row(budget_row(budget)));
        text += &table.render();
    }
    let troubles = report.budgets.iter().flat_map(|budget| troubles(budget, &report.jobs));
    for said in report.disobeyed.iter().cloned().chain(troubles) {
        text += &format!("{}\n", harmless(&said));
    }
    if !report.jobs.is_empty() {
        let mut table = Table::new(look)
            .left("Job")
            .left("User")
            .right("Weight")
            .right("Drawn")
            .right("Gives up")
            .right("Slower by")
            .left("Why");
        report.jobs.iter().for_each(|job| table.row(job_row(job)));
        text += &format!("\n{}", table.render());
    }
    if !report.terms.is_empty() {
        text += &format!("\n{}", terms(&report.terms, look));
    }
    text
}

fn budget_row(budget: &BudgetStatus) -> [Cell; 6] {
    let from = match &budget.order.level {
        BudgetLevel::Watts(_) => String::new(),
        BudgetLevel::File(path) => path.clone(),
    };
    let power = |power_w: Option<f64>| Cell::option(power_w.map(watts));
    [
        Cell::text(shown(&budget.order.scope)),
        power(budget.budget_w.or(match budget.order.level {
            BudgetLevel::Watts(power_w) => Some(power_w),
            BudgetLevel::File(_) => None,
        })),
        power(budget.drawn_w),
        power(budget.budget_w.map(|_| budget.reserve_w)),
        Cell::text(if budget.order.emergency { format!("{from} emergency") } else { from }.trim()),
        Cell::text(ordered_by(budget)),
    ]
}

fn ordered_by(budget: &BudgetStatus) -> String {
    let at = budget.by_node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
    let with = budget.by_key.as_ref().map_or(String::new(), |key| format!(", key {key}"));
    format!("{}{at}{with}", user::name_of(budget.by_uid))
}

/// That no job may give up what a budget lacks.
pub(super) fn missing(budget: &BudgetStatus, jobs: &[BudgetedJob]) -> Option<String> {
    let scope = shown(&budget.order.scope);
    let missing_w = watts(budget.missing_w?);
    let own = || jobs.iter().filter(|job| job.scope == budget.order.scope);
    let is_kept = budget.drawn_w.zip(budget.budget_w).is_some_and(|(drawn, most)| drawn <= most);
    if is_kept {
        let is_limited = own().any(|job| job.steering == BudgetSteering::PowerLimits);
        return is_limited.then(|| {
            format!(
                "the budget for {scope} is kept by power limits: plans and clocks alone lack {missing_w}"
            )
        });
    }
    let counted: Vec<_> = own()
        .filter(|job| job.reason == BudgetReason::Unknown)
        .map(|job| job.job.as_str())
        .collect();
    let counted = match &counted[..] {
        [] => String::new(),
        jobs => format!(" (not measured yet, or not to be slowed down: {})", jobs.join(", ")),
    };
    Some(format!(
        "the budget for {scope} cannot be kept: {missing_w} are missing with every job at its \
         floor{counted}; raise it, lower floors, or end a job"
    ))
}

fn troubles(budget: &BudgetStatus, jobs: &[BudgetedJob]) -> Vec<String> {
    let scope = shown(&budget.order.scope);
    let file = budget.file.as_ref().map(|BudgetFileTrouble { node, why, since_unix_s }| {
        let on = node.as_ref().map_or(String::new(), |node| format!("on node {node}, "));
        let for_s = now_unix_s().saturating_sub(*since_unix_s) as f64;
        format!(
            "the budget for {scope}: {on}{why} (for {}); what the file said before stays in force",
            span(for_s)
        )
    });
    let problem = budget.problem.as_ref().map(|why| format!("the budget for {scope}: {why}"));
    missing(budget, jobs).into_iter().chain(file).chain(problem).collect()
}

fn job_row(job: &BudgetedJob) -> [Cell; 7] {
    [
        Cell::text(job.job.as_str()),
        Cell::text(user::name_of(job.uid)),
        Cell::text(format!("{}", job.weight)),
        Cell::option(job.drawn_w.map(watts)),
        Cell::text(watts(job.given_w)),
        Cell::text(percent(longer(job))),
        Cell::text(job.problem.as_deref().unwrap_or(word(job))),
    ]
}

/// The share by which a step takes longer than at the job's own pace.
fn longer(job: &BudgetedJob) -> f64 {
    job.lost / (1.0 - job.lost).max(f64::MIN_POSITIVE)
}

fn word(job: &BudgetedJob) -> &'static str {
    match (job.reason, job.steering) {
        (BudgetReason::Own, _) => "runs its own",
        (BudgetReason::Price, _) => "least loss",
        (BudgetReason::Floor, _) => "at its floor",
        (BudgetReason::Held, _) => "being measured",
        (BudgetReason::Unknown, _) => "only counted",
    }
}

fn terms(terms: &[BudgetTerms], look: Look) -> String {
    let mut table = Table::new(look).left("Terms for").right("Weight").right("Floor");
    for terms in terms {
        table.row([
            Cell::text(shown(&terms.scope)),
            Cell::option(terms.weight.map(|weight| weight.to_string())),
            Cell::option(terms.slowest.map(|slowest| percent(slowest - 1.0))),
        ]);
    }
    table.render()
}

/// What one job gives up, in sentences.
pub(super) fn explained(job: &BudgetedJob, report: &BudgetReport) -> String {
    let mut lines = vec![format!(
        "job {} of user {} belongs to the budget for {}, with weight {}",
        job.job,
        user::name_of(job.uid),
        shown(&job.scope),
        job.weight
    )];
    if let Some(partition) = &job.partition {
        lines.push(format!("Its scheduler runs it in partition {partition}."));
    }
    if let Some((own_w, drawn_w)) = job.own_w.zip(job.drawn_w) {
        lines.push(format!(
            "It draws {}, and would draw {} with what it runs by itself.",
            watts(drawn_w),
            watts(own_w)
        ));
    }
    lines.push(reason(job));
    match job.steering {
        BudgetSteering::Plans => lines.push("It runs plans of its frontier.".to_owned()),
        BudgetSteering::UniformClocks => lines.push(
            "It has no frontier, or its energy counters contradict it, so it runs one clock for \
             everything; `pfoctl tune` makes a frontier."
                .to_owned(),
        ),
        BudgetSteering::PowerLimits => lines.push(
            "Power limits hold its GPUs: its plan does not keep it below its share, or not yet."
                .to_owned(),
        ),
        BudgetSteering::Nothing => {}
    }
    if let Some(price) = job.next_price {
        let per_kw = 1e3 * price / job.weight;
        let of_all = report.budgets.iter().find(|budget| budget.order.scope == job.scope);
        let all = of_all.and_then(|budget| budget.price).map_or(String::new(), |price| {
            format!("; the last kilowatt cost {:.4} of weighted progress", 1e3 * price)
        });
        lines.push(format!(
            "The next kilowatt would cost it {} of its speed{all}.",
            percent(per_kw)
        ));
    }
    lines.push(format!(
        "So far it has given up {}, and {} at its own pace.",
        watt_hours(job.given_j),
        span(job.lost_s)
    ));
    lines.extend(job.problem.as_ref().map(|why| format!("It could not be changed: {why}")));
    lines.iter().map(|line| harmless(line) + "\n").collect()
}

/// Why it runs what it runs.
fn reason(job: &BudgetedJob) -> String {
    match job.reason {
        BudgetReason::Own => {
            "The budget takes nothing from it: it has room, or others lose less for each watt."
                .to_owned()
        }
        BudgetReason::Price => format!(
            "It gives up {}, for which its steps take {} longer; another watt of it would cost more \
             progress than a watt of others.",
            watts(job.given_w),
            percent(longer(job))
        ),
        BudgetReason::Floor => format!(
            "It gives up {}, for which its steps take {} longer, and is as slow as it may be{}.",
            watts(job.given_w),
            percent(longer(job)),
            job.slowest.map_or(String::new(), |slowest| format!(
                " (its floor is {} longer)",
                percent(slowest - 1.0)
            ))
        ),
        BudgetReason::Held => {
            "Somebody measures it, so it does not change; other jobs give up power instead.".to_owned()
        }
        BudgetReason::Unknown => {
            "Its power counts, but it cannot be slowed down: it is not measured yet, pfod cannot set its \
             clocks, one of its nodes is silent, or the budget does not cover all of its nodes."
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{BudgetOrder, BudgetScope, Uid};

    use super::*;

    fn job(reason: BudgetReason) -> BudgetedJob {
        BudgetedJob {
            job: "j".parse().unwrap(),
            uid: Uid(4_000_000),
            partition: Some("big".parse().unwrap()),
            scope: BudgetScope::Node,
            steering: BudgetSteering::Plans,
            weight: 4.0,
            slowest: Some(1.25),
            drawn_w: Some(801.0),
            own_w: Some(1001.0),
            given_w: 200.0,
            lost: 0.2,
            reason,
            next_price: Some(0.002),
            given_j: 7.2e6,
            lost_s: 3700.0,
            problem: None,
        }
    }

    fn report_of(job: BudgetedJob) -> BudgetReport {
        let order = BudgetOrder {
            scope: BudgetScope::Node,
            level: BudgetLevel::Watts(900.0),
            up_w_per_s: None,
            down_w_per_s: None,
            emergency: false,
        };
        let budget = BudgetStatus {
            order,
            by_uid: Uid(0),
            by_node: Some("node-a".into()),
            by_key: Some("ann".into()),
            since_unix_s: 0,
            budget_w: Some(900.0),
            drawn_w: Some(950.0),
            base_w: 150.0,
            reserve_w: 1.0,
            price: Some(0.001),
            missing_w: Some(50.0),
            file: Some(BudgetFileTrouble {
                node: Some("node-c".into()),
                why: "/etc/pfo/day.csv: line 1".into(),
                since_unix_s: now_unix_s() - 7200,
            }),
            problem: Some("pfod does not answer".into()),
        };
        BudgetReport { budgets: vec![budget], terms: Vec::new(), jobs: vec![job], disobeyed: None }
    }

    #[test]
    fn what_a_job_gave_up_is_said_with_figures() {
        let job = job(BudgetReason::Floor);
        insta::assert_snapshot!(explained(&job, &report_of(job.clone())));
    }

    #[test]
    fn a_budget_that_cannot_be_kept_is_no_table_alone() {
        let look = Look { colour: false, width: None };
        insta::assert_snapshot!(report(&report_of(job(BudgetReason::Price)), look));
    }

    #[test]
    fn what_a_budget_lacks_names_jobs_that_only_count_and_is_no_alarm_where_it_is_kept() {
        let said = |job: BudgetedJob, drawn_w| {
            let mut report = report_of(job);
            report.budgets[0].drawn_w = Some(drawn_w);
            missing(&report.budgets[0], &report.jobs)
        };
        let unknown = job(BudgetReason::Unknown);
        let only_counts = "the budget for node cannot be kept: 50 W are missing with every job at its floor \
                           (not measured yet, or not to be slowed down: j); raise it, lower floors, or end \
                           a job";
        assert_eq!(said(unknown.clone(), 950.0).as_deref(), Some(only_counts));
        assert_eq!(said(unknown, 850.0), None);
        let limited =
            BudgetedJob { steering: BudgetSteering::PowerLimits, ..job(BudgetReason::Floor) };
        let kept = "the budget for node is kept by power limits: plans and clocks alone lack 50 W";
        assert_eq!(said(limited, 850.0).as_deref(), Some(kept));
    }
}
