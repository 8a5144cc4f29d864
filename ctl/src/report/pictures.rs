//! The pictures of a page: a step before and after, the frontier, clocks and power over some seconds. What
//! cannot be drawn is said.

use pfo_planner::at_highest_clocks;
use pfo_protocol::JobStatus;

use super::html::figure;
use super::page::{Known, Section};
use crate::failure::Failure;
use crate::plan::plot::{course_svg, frontier_svg, timeline_svgs};
use crate::status::measured::Measured;

/// A step at the highest clocks, and the same with the plan.
pub(super) fn steps(known: &Known<'_>) -> Section {
    if known.job.pp_degree < 2 {
        return Err("the job has one stage, and so no pipeline to draw".to_owned());
    }
    let plan = known.plan.ok_or_else(|| no_clocks(known.job))?;
    let (profile, source) = known.profile.map_err(|why| format!("no profile is known: {why}"))?;
    let before = at_highest_clocks(profile, plan).map_err(|error| not_drawn(&error.into()))?;
    let [before, after] =
        timeline_svgs(profile, [&before, plan]).map_err(|error| not_drawn(&error))?;
    let caption = |clocks: &str| {
        format!("{clocks}. Predicted: a replay over {source}. Both steps have the same scales.")
    };
    Ok(figure(&before, &caption("Before: all instructions at the highest clock"))
        + &figure(&after, &caption("After: all instructions at the clocks of the job's plan")))
}

/// Why there are no clocks of a plan.
pub(super) fn no_clocks(job: &JobStatus) -> String {
    match &job.plan {
        Some(_) => "the job's plan sets power limits and no clocks".to_owned(),
        None => {
            format!("the job has no plan of clocks; `pfoctl tune {}` looks for one", job.job)
        }
    }
}

pub(super) fn frontier(known: &Known<'_>) -> Section {
    let frontier = known.frontier.map_err(ToOwned::to_owned)?;
    let time_s = known.job.plan.as_ref().and_then(|plan| plan.predicted_time_s);
    let points = points(known.job);
    let count: usize = points.iter().map(|(_, points)| points.len()).sum();
    let caption = match count {
        0 => "Plans: predicted. No measurement of the job can be compared with them.".to_owned(),
        count => format!("Plans: predicted. {count} points: measured on this job."),
    };
    let svg = frontier_svg(frontier, time_s, points).map_err(|error| not_drawn(&error))?;
    Ok(figure(&svg, &caption))
}

/// What was measured while every rank was there, for one pipeline: a frontier is of one rank of each stage.
fn points(job: &JobStatus) -> Vec<(&'static str, Vec<(f64, f64)>)> {
    let pipelines = pipelines(job);
    let in_force = Measured::in_force(job).filter(|row| row.plan.is_some());
    let mut points = vec![
        ("default clocks", Vec::new()),
        ("the job's plan", Vec::new()),
        ("other settings", Vec::new()),
    ];
    for row in Measured::all(job).iter().filter(|row| row.ranks == pipelines * job.pp_degree) {
        let Some(energy_j) = row.energy_j else { continue };
        let set = match row.plan {
            None => 0,
            Some(_) if in_force.as_ref() == Some(row) => 1,
            Some(_) => 2,
        };
        points[set].1.push((row.time_s, energy_j / f64::from(pipelines)));
    }
    points
}

/// How many whole pipelines the ranks of this node are; one if they are no whole ones.
fn pipelines(job: &JobStatus) -> u32 {
    let of_stage =
        |stage| job.ranks.iter().filter(|rank| u32::from(rank.stage.0) == stage).count() as u32;
    let first = of_stage(0).max(1);
    if (0..job.pp_degree).all(|stage| of_stage(stage) == first) { first } else { 1 }
}

/// What the GPUs did while the page was made.
pub(super) fn course(known: &Known<'_>) -> Section {
    let seen = known.observed.iter().any(|course| course.mhz.len() > 1 || course.power_w.len() > 1);
    if !seen {
        return Err(match known.job.ranks.is_empty() {
            true => "the job has no rank on this node".to_owned(),
            false => "nobody looked; --observe says for how many seconds to look".to_owned(),
        });
    }
    let gpus = match known.observed.len() {
        1 => "its GPU".to_owned(),
        count @ 2..=8 => format!("its {count} GPUs"),
        count => format!("its {count} GPUs, the first eight of which are drawn"),
    };
    let caption = format!(
        "What the driver reported of {gpus}, five times a second while this page was made. Clocks that \
         change faster are not all seen."
    );
    let svg = course_svg(known.observed).map_err(|error| not_drawn(&error))?;
    Ok(figure(&svg, &caption))
}

fn not_drawn(error: &Failure) -> String {
    format!("cannot be drawn: {error}")
}
