//! Series of ranks. A GPU has one rank at most, and its UUID is their only label: `pfo_job_info` says
//! which job that is.

use std::fmt;

use super::super::known::JobRank;
use super::{Known, Series, Sink, Subject, count, counter, flag, gauge, text};

pub(super) fn series(known: &Known, sink: &mut impl Sink) -> fmt::Result {
    let ranks: Vec<_> = known.ranks().collect();
    let rank = Subject {
        labels: &["gpu_uuid"],
        label_values: |rank: &JobRank<'_>| vec![text(&rank.status.gpu_uuid)],
        series: instructions().into_iter().chain(clocks()).chain(troubles()).collect(),
    };
    sink.take(&rank, &ranks)
}

/// A time that was counted in whole nanoseconds, without what computing with it has added: a counter that
/// falls by the last digit counts as one that started again.
fn counted_s(seconds: f64) -> Option<f64> {
    Some((seconds * 1e9).round() / 1e9)
}

fn instructions<'a>() -> Vec<Series<JobRank<'a>>> {
    vec![
        counter(
            "pfo_rank_instructions_total",
            None,
            "Instructions that the rank has run under plans since its session began.",
            |rank| count(rank.status.instructions),
        ),
        counter(
            "pfo_rank_instruction_seconds_total",
            Some("seconds"),
            "Time that these instructions took.",
            |rank| counted_s(rank.status.instruction_s),
        ),
        counter(
            "pfo_rank_off_plan_seconds_total",
            Some("seconds"),
            "Time of these at another clock than the plan's, as far as pfod knows.",
            |rank| counted_s(rank.status.off_plan_s),
        ),
        counter(
            "pfo_rank_late_instructions_total",
            None,
            "Instructions that began before their clock was in force, since the session began.",
            |rank| count(rank.status.late_instructions),
        ),
    ]
}

fn clocks<'a>() -> Vec<Series<JobRank<'a>>> {
    vec![
        counter(
            "pfo_rank_clock_changes_total",
            None,
            "Clock changes that pfod has asked of the driver since the session began.",
            |rank| count(rank.status.clock_changes),
        ),
        counter(
            "pfo_rank_skipped_clock_changes_total",
            None,
            "Clock changes that pfod has left out since then, because of the limit per second.",
            |rank| count(rank.status.skipped_changes),
        ),
        counter(
            "pfo_rank_clock_set_seconds_total",
            Some("seconds"),
            "Time that the calls for clock changes took.",
            |rank| {
                let calls = rank.status.clock_changes as f64;
                counted_s(rank.status.set_call_mean_us * calls / 1e6)
            },
        ),
        gauge(
            "pfo_rank_longest_clock_set_seconds",
            Some("seconds"),
            "The longest of these calls; absent before the first one.",
            |rank| {
                let longest_s = rank.status.set_call_max_us / 1e6;
                (rank.status.clock_changes > 0).then_some(longest_s)
            },
        ),
        gauge(
            "pfo_rank_settling_seconds",
            Some("seconds"),
            "From such a call until the clock is in force, as measured or as configured.",
            |rank| Some(rank.status.settle_ms / 1e3),
        ),
    ]
}

fn troubles<'a>() -> Vec<Series<JobRank<'a>>> {
    vec![
        counter(
            "pfo_rank_mismatched_steps_total",
            None,
            "Steps in which the rank did not follow its plan, since the session began.",
            |rank| count(rank.status.mismatched_steps),
        ),
        counter(
            "pfo_rank_lost_events_total",
            None,
            "Events that the rank could not deliver since the session began.",
            |rank| count(rank.status.lost_events),
        ),
        gauge(
            "pfo_rank_problem",
            None,
            "1 if something is wrong with the rank, which `pfoctl status` says, else 0.",
            |rank| flag(rank.status.problem.is_some()),
        ),
        gauge(
            "pfo_rank_slow_ratio",
            Some("ratio"),
            "The share by which its instructions take longer than profiled; absent if they do not.",
            |rank| {
                let slow = &rank.job.watched?.slow;
                let slow = slow.iter().find(|slow| slow.rank == rank.status.rank);
                slow.map(|slow| slow.share)
            },
        ),
    ]
}
