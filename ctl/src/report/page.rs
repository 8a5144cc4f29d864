//! The page: pure, from what is known of a job to HTML. What is not known is said.

use std::collections::{BTreeMap, BTreeSet};

use pfo_planner::{Frontier, Plan, Profile, Timeline, Unheld, at_highest_clocks};
use pfo_protocol::{ClockTable, GpuStatus, JobName, JobStatus, RankStatus, SavingsReport, Uid};

use super::html::{element, escaped, figure, list, table};
use super::ledger;
use crate::output::Look;
use crate::plan::plot::{Course, course_svg, frontier_svg, timeline_svg};
use crate::profile::throttle_reasons;
use crate::status::job_table::state;
use crate::status::measured::Measured;
use crate::status::measured_table;
use crate::status::plan_text::described;
use crate::status::quantity::{change, joules, percent, seconds, span, watts};
use crate::status::rank_table;
use crate::status::{Both, attention};

const STYLE: &str = include_str!("page.css");

/// What is known of a job. Nothing that is drawn is known by itself.
pub(super) struct Known<'a> {
    /// The job, its GPUs, and nothing else.
    pub(super) both: &'a Both,
    pub(super) job: &'a JobStatus,
    pub(super) user: &'a dyn Fn(Uid) -> String,
    /// The plan in force.
    pub(super) table: Option<&'a ClockTable>,
    /// The same with what a replay needs.
    pub(super) plan: Option<&'a Plan>,
    /// A profile and where it is from, or why there is none.
    pub(super) profile: Result<(&'a Profile, &'a str), &'a str>,
    pub(super) frontier: Option<&'a Frontier>,
    /// What the GPUs did lately.
    pub(super) observed: &'a [Course],
    /// What the ledger has, or why that is not known.
    pub(super) ledger: Result<&'a SavingsReport, &'a str>,
    /// What `tune` measured, as it prints it.
    pub(super) tuned: Option<&'a str>,
    /// The section of warnings.
    pub(super) warnings: String,
}

/// The whole page.
pub(super) fn page(known: &Known<'_>) -> String {
    let title = format!("Job {} of {}", known.job.job, (known.user)(known.job.uid));
    let parts = [
        element("h1", &title),
        summary(known),
        savings(known),
        known.ledger.map_or_else(unknown_ledger, ledger::section),
        limits(known),
        known.warnings.clone(),
        frontier(known),
        steps(known),
        clocks(known),
        course(known),
        ranks(known),
    ];
    html(&title, &parts)
}

/// The page of a job that has ended.
pub(super) fn ended(
    job: &JobName,
    ledger: &SavingsReport,
    warnings: String,
    user: &dyn Fn(Uid) -> String,
) -> String {
    let owners: BTreeSet<_> = ledger.rows.iter().filter_map(|row| row.uid).collect();
    let owners: Vec<_> = owners.into_iter().map(user).collect();
    let title = format!("Job {job} of {}", owners.join(", "));
    let said = "The job has no rank on this node: it has ended, or not begun. What the ledger has of \
                it is below; pictures need a job that runs.";
    html(&title, &[element("h1", &title), element("p", said), ledger::section(ledger), warnings])
}

fn unknown_ledger(why: &str) -> String {
    element("h2", "Savings with intervals, from the ledger")
        + &element("p", &format!("Not known: {why}."))
}

/// A document of these parts.
pub(crate) fn html(title: &str, parts: &[String]) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{}\
         </body>\n</html>\n",
        escaped(title),
        parts.concat(),
    )
}

fn summary(known: &Known<'_>) -> String {
    let (job, daemon) = (known.job, &known.both.pfod.daemon);
    let plan = job.plan.as_ref().map_or_else(|| "default clocks".to_owned(), described);
    let energy = job.energy_j.map_or_else(
        || "not known: a GPU has no energy counter".to_owned(),
        |energy_j| format!("{}, measured", joules(energy_j)),
    );
    let driver = daemon.driver.as_deref().unwrap_or("none");
    let stages = format!("{} stages", job.pp_degree);
    let [runs, size] = if job.ranks.is_empty() {
        let ended = format!("Has ended: its last rank on this node has left. It ran {plan}.");
        [ended, format!("{stages}.")]
    } else {
        let runs = format!("Runs {plan}, {}.", state(job).shown());
        [runs, format!("{} ranks on this node, {stages}.", job.ranks.len())]
    };
    list(&[
        runs,
        size,
        format!("Energy in the last {}: {energy}.", span(job.measured_for_s)),
        format!("pfod {}, driver {driver}.", daemon.version),
    ])
}

fn savings(known: &Known<'_>) -> String {
    let mut text = element("h2", "Savings, measured");
    let rows = Measured::all(known.job);
    if rows.is_empty() {
        text += &element("p", "Nothing was measured yet: no step is over.");
    } else {
        text += &table(
            ["What ran", "Steps", "Time/step", "Slowdown", "Energy/step", "Saving"],
            rows.iter().map(|row| {
                [
                    Some(measured_table::name(row.plan)),
                    Some(row.steps.to_string()),
                    Some(seconds(row.time_s)),
                    row.slowdown.map(change),
                    row.energy_j.map(joules),
                    row.saving.map(percent),
                ]
            }),
        );
        text += &element(
            "p",
            "Means from the energy counters of the GPUs, compared with the default clocks that were \
             measured next to each plan.",
        );
    }
    match known.tuned {
        Some(tuned) => {
            text += &element(
                "p",
                "Default clocks and plans in turns, with intervals, as tune measured:",
            );
            text += &element("pre", tuned);
        }
        None => {
            text += &element(
                "p",
                "These have no interval. pfoctl tune and pfoctl savings have one; the --report of tune \
                 writes it into this page.",
            );
        }
    }
    text
}

/// What keeps the job from saving more, as far as it is known.
fn limits(known: &Known<'_>) -> String {
    let (pfod, agent) = (&known.both.pfod, &known.both.agent);
    let points = attention::list(pfod, agent, known.user, Look::default()).unwrap_or_default();
    let mut said: Vec<String> =
        points.lines().skip(1).map(|point| point.trim().to_owned()).collect();
    for gpu in pfod.gpus.iter().filter(|gpu| gpu.throttle_reasons != 0) {
        let reasons = throttle_reasons(gpu.throttle_reasons);
        said.push(format!("GPU {} is held back now: {reasons} (measured)", gpu.index));
    }
    for rank in &known.job.ranks {
        if let Some(share) = rank_table::off_plan(rank).filter(|share| *share >= 0.001) {
            said.push(format!(
                "rank {}: {} of the time in instructions ran at another clock than planned (measured)",
                rank.rank,
                percent(share)
            ));
        }
    }
    for unheld in known.profile.iter().flat_map(|(profile, _)| profile.unheld()) {
        let Unheld { stage, instruction, highest, useful } = unheld;
        said.push(format!(
            "{instruction} of stage {stage}: a power limit held the GPUs below {highest}; no clock \
             above {useful} is of use (measured, in the profile)"
        ));
    }
    if let (Some(plan), Ok((profile, _))) = (known.plan, known.profile)
        && let Ok(timeline) = Timeline::new(profile, plan)
    {
        for (stage, spans) in timeline.stages.iter().enumerate() {
            let busy_s: f64 = spans.iter().map(|span| span.end_s - span.start_s).sum();
            let waits = 1.0 - busy_s / timeline.iteration_time_s;
            said.push(format!("stage {stage} waits {} of a step (predicted)", percent(waits)));
        }
    }
    let text = element("h2", "What limits them");
    if said.is_empty() { text + &element("p", "Nothing is known.") } else { text + &list(&said) }
}

fn frontier(known: &Known<'_>) -> String {
    let text = element("h2", "Frontier");
    let Some(frontier) = known.frontier else {
        return text + &element("p", "Not known. --frontier names the one that the plan is from.");
    };
    let time_s = known.job.plan.as_ref().and_then(|plan| plan.predicted_time_s);
    // A frontier is of one rank of each stage.
    let rows = Measured::all(known.job);
    let whole = rows.iter().filter(|row| row.ranks == known.job.pp_degree);
    let measured: Vec<(f64, f64)> =
        whole.filter_map(|row| Some((row.time_s, row.energy_j?))).collect();
    let caption = match measured.len() {
        0 => "Plans: predicted. No measurement of the job can be compared with them.".to_owned(),
        count => format!("Plans: predicted. {count} points: measured on this job."),
    };
    drawn(
        text,
        frontier_svg(frontier, time_s, measured).map_err(|error| error.to_string()),
        &caption,
    )
}

fn drawn(text: String, picture: Result<String, String>, caption: &str) -> String {
    match picture {
        Ok(svg) => text + &figure(&svg, caption),
        Err(why) => text + &element("p", &format!("Cannot be drawn: {why}.")),
    }
}

/// A step at the highest clocks, and the same with the plan.
fn steps(known: &Known<'_>) -> String {
    let text = element("h2", "A step before and after, predicted");
    let Some(plan) = known.plan else {
        return text + &element("p", "No plan of clocks is in force.");
    };
    let (profile, source) = match known.profile {
        Ok(profile) => profile,
        Err(why) => return text + &element("p", &format!("No profile is known: {why}.")),
    };
    let before = at_highest_clocks(profile, plan).map_err(|error| error.to_string());
    let before =
        before.and_then(|plan| timeline_svg(profile, &plan).map_err(|error| error.to_string()));
    let after = timeline_svg(profile, plan).map_err(|error| error.to_string());
    let caption = |clocks: &str| format!("{clocks}: a replay over {source}.");
    let text = drawn(text, before, &caption("All instructions at the highest clock"));
    drawn(text, after, &caption("All instructions at the clocks of the plan"))
}

fn clocks(known: &Known<'_>) -> String {
    let text = element("h2", "Clocks of the plan");
    let Some(clocks) = known.table else {
        return text + &element("p", "No plan of clocks is in force.");
    };
    let mut kinds = BTreeMap::<_, Vec<u32>>::new();
    for (stage, units) in clocks.stages().iter().enumerate() {
        for unit in units {
            kinds.entry((stage, unit.unit.instruction)).or_default().push(unit.mhz.0);
        }
    }
    let rows = kinds.into_iter().map(|((stage, instruction), mhz)| {
        let ends = [mhz.iter().min(), mhz.iter().max()];
        let [lowest, highest] = ends.map(|end| end.map(|mhz| format!("{mhz} MHz")));
        let mean = mhz.iter().map(|mhz| f64::from(*mhz)).sum::<f64>() / mhz.len() as f64;
        let mean = Some(format!("{mean:.0} MHz"));
        [Some(stage.to_string()), Some(instruction.to_string()), lowest, mean, highest]
    });
    text + &table(["Stage", "Instruction", "Lowest", "Mean", "Highest"], rows)
}

/// What the GPUs did while the page was made.
fn course(known: &Known<'_>) -> String {
    let text = element("h2", "Clocks and power over time, measured");
    let seen = known.observed.iter().any(|course| course.mhz.len() > 1 || course.power_w.len() > 1);
    if !seen {
        return text + &element("p", "Nobody looked: --observe says for how many seconds to look.");
    }
    let caption = format!(
        "What the driver reported of {} GPUs, five times a second; of more than eight, the first \
         eight are drawn. Clocks that change faster are not all seen.",
        known.observed.len()
    );
    drawn(text, course_svg(known.observed).map_err(|error| error.to_string()), &caption)
}

fn ranks(known: &Known<'_>) -> String {
    let gpus = &known.both.pfod.gpus;
    let row = |rank: &RankStatus| {
        let gpu = gpus.iter().find(|gpu| gpu.uuid == rank.gpu_uuid);
        let mhz = |clock: fn(&GpuStatus) -> Option<pfo_protocol::Mhz>| {
            gpu.and_then(clock).map(|mhz| format!("{} MHz", mhz.0))
        };
        [
            Some(rank.rank.to_string()),
            Some(rank.stage.to_string()),
            Some(rank_table::gpu(&rank.gpu_uuid, gpus)),
            gpu.map(|gpu| gpu.model.clone()),
            mhz(|gpu| gpu.requested_mhz),
            mhz(|gpu| gpu.observed_mhz),
            gpu.and_then(|gpu| gpu.power_w).map(watts),
            Some(rank.late_instructions.to_string()),
            Some(rank.mismatched_steps.to_string()),
        ]
    };
    let text = element("h2", "Ranks on this node, as they are now");
    if known.job.ranks.is_empty() {
        return text + &element("p", "None.");
    }
    let header =
        ["Rank", "Stage", "GPU", "Model", "Asked", "Observed", "Power", "Late", "Mismatches"];
    text + &table(header, known.job.ranks.iter().map(row))
}
