//! The jobs: what each one runs, how far it is, and what it used.

use pfo_protocol::{FrontierStatus, JobStatus, MeasuredBy, PlanStatus, Uid, WatchedJob};

use super::plan_text::{described, described_frontier, name, prediction};
use super::quantity::joules;
use super::table::{Cell, Table, Tone, heading};
use crate::output::Look;
use crate::plan::first;
use crate::text::harmless;

/// One row for each job, and what the agent watches of them below.
pub(crate) fn render(
    jobs: &[JobStatus],
    watched: &[WatchedJob],
    user: &dyn Fn(Uid) -> String,
    look: Look,
) -> String {
    if jobs.is_empty() {
        return "No jobs.\n".to_owned();
    }
    let mut table = Table::new(look)
        .left("Job")
        .left("User")
        .right("Ranks")
        .right("Step")
        .left("Plan")
        .left("Predicted")
        .left("State")
        .right("Energy");
    for job in jobs {
        table.row([
            Cell::text(job.job.as_str()),
            Cell::text(user(job.uid)),
            Cell::number(job.ranks.len() as u64),
            Cell::option(steps(job)),
            Cell::text(job.plan.as_ref().map_or("default clocks".into(), name)),
            Cell::option(job.plan.as_ref().and_then(prediction)),
            state(job),
            Cell::option(job.energy_j.map(joules)),
        ]);
    }
    let mut text = heading("Jobs", look) + &table.render();
    for job in jobs {
        if let Some(MeasuredBy { uid, pid }) = job.measured_by {
            let (owner, by) = (user(job.uid), user(uid));
            let what = match pid {
                Some(pid) => format!("Process {pid} of {by} measures"),
                None => format!("A sweep, tune or guard of {by} measures"),
            };
            let line = format!("{what} job {} of {owner}", job.job);
            text += &format!("{}\n", harmless(&line));
        }
        if let Some(plan) = waiting_plan(job) {
            let line =
                format!("Loaded for job {} of {}: {}", job.job, user(job.uid), described(plan));
            text += &format!("{}\n", harmless(&line));
        }
        let watched = watched.iter().find(|other| (&other.job, other.uid) == (&job.job, job.uid));
        if let Some(plan) = watched.and_then(|watched| watched.first_plan.as_ref()) {
            let (owner, state) = (user(job.uid), first::state(plan));
            let line = format!("Kept for job {} of {owner}: plan {}; {state}", job.job, plan.label);
            text += &format!("{}\n", harmless(&line));
        }
        if let Some(frontier) = watched.and_then(|watched| watched.frontier.as_ref()) {
            let line = format!(
                "For stragglers of job {} of {}: {}",
                job.job,
                user(job.uid),
                for_stragglers(frontier)
            );
            text += &format!("{}\n", harmless(&line));
        }
    }
    text
}

fn for_stragglers(frontier: &FrontierStatus) -> String {
    let answered = frontier.straggler.map_or_else(String::new, |factor| {
        format!("; the job is as slow as a straggler of {factor}x")
    });
    let auto = if frontier.auto { "; pfo-agent responds to slow ranks" } else { "" };
    described_frontier(frontier) + &answered + auto
}

/// The steps that the ranks are in; neighbours in a pipeline are rarely in the same one.
pub(crate) fn steps(job: &JobStatus) -> Option<String> {
    let steps = || job.ranks.iter().filter_map(|rank| rank.step);
    let (first, last) = (steps().min()?, steps().max()?);
    Some(if first == last { first.to_string() } else { format!("{first}-{last}") })
}

/// What the job is at.
pub(crate) fn state(job: &JobStatus) -> Cell {
    let suspended = job.plan.as_ref().is_some_and(|plan| plan.suspended.is_some());
    match (job.swap_at_step, suspended) {
        (Some(step), true) => Cell::text(format!("suspended, swap at step {step}")).tone(Tone::Bad),
        (Some(step), false) => Cell::text(format!("swap at step {step}")).tone(Tone::Notable),
        (None, true) => Cell::text("suspended").tone(Tone::Bad),
        (None, false) if job.ranks.is_empty() => Cell::text("no rank here"),
        (None, false) if job.measured_by.is_some() => Cell::text("measured").tone(Tone::Notable),
        (None, false) => Cell::text("running"),
    }
}

/// The plan that a swap would take up, if it is another one than the job runs.
pub(crate) fn waiting_plan(job: &JobStatus) -> Option<&PlanStatus> {
    job.loaded
        .as_ref()
        .filter(|loaded| job.plan.as_ref().is_none_or(|plan| plan.number != loaded.number))
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Pid;

    use super::*;
    use crate::status::measured::tests as measured;

    fn job() -> JobStatus {
        measured::job(Vec::new())
    }

    fn plan(number: u32, suspended: Option<&str>) -> PlanStatus {
        PlanStatus { suspended: suspended.map(str::to_owned), ..measured::plan(number) }
    }

    #[test]
    fn the_one_who_measures_a_job_is_named() {
        for pid in [Some(Pid(4711)), None] {
            let job = JobStatus { measured_by: Some(MeasuredBy { uid: Uid(7), pid }), ..job() };
            let text = render(&[job], &[], &|uid| format!("user{uid}"), Look::default());
            insta::assert_snapshot!(text);
        }
    }

    #[test]
    fn a_plan_that_the_job_runs_already_is_not_shown_as_waiting() {
        let running = JobStatus { plan: Some(plan(2, None)), loaded: Some(plan(2, None)), ..job() };
        assert_eq!(waiting_plan(&running), None);
        let waiting = JobStatus { loaded: Some(plan(3, None)), ..running };
        assert_eq!(waiting_plan(&waiting).map(|plan| plan.number), Some(3));
    }

    #[test]
    fn the_straggler_that_a_job_runs_a_plan_for_is_shown() {
        let frontier = FrontierStatus {
            label: "a100.frontier".to_owned(),
            plans: 200,
            fastest_s: 2.5,
            slowest_s: 3.25,
            straggler: Some(1.2),
            auto: true,
            curve: Vec::new(),
        };
        let (name, uid) = (job().job, job().uid);
        let watched = WatchedJob {
            job: name,
            uid,
            frontier: Some(frontier),
            drift: None,
            slow: Vec::new(),
            guard: None,
            fleet: None,
            first_plan: None,
        };
        let text = render(&[job()], &[watched], &|_| "root".to_owned(), Look::default());
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_suspended_plan_and_a_swap_under_way_are_both_shown() {
        let job =
            JobStatus { plan: Some(plan(2, Some("because"))), swap_at_step: Some(40), ..job() };
        let text = render(&[job], &[], &|_| "root".to_owned(), Look::default());
        insta::assert_snapshot!(text);
    }
}
