//! Steps of a job that are measured while it runs whatever it runs: `pfod` is asked for nothing but the
//! tap.

use pfo_protocol::{JobView, RankView, RecordedTrial, Refusal, TrialRank, TrialResult, TrialStep};

use tokio::time::sleep;

use crate::job::JobKey;
use crate::pfod::{Pfod, PfodError, Questions};
use crate::record::limits::{self, Limits};
use crate::record::recorded::{Recorded, StepMark};
use crate::record::recorder::{Outcome, RecordedRanks};
use crate::record::samples::TrialSamples;
use crate::record::trial::{Tap, disturbed, together};

/// Measures steps that have yet to begin, and waits until they are over. `room` is for how many
/// instructions of each rank are kept one by one, if they are to be kept.
///
/// # Errors
/// If the job does not get to their end as it began, or the tap missed some of it.
pub(crate) async fn observe(
    pfod: &Pfod,
    questions: &Questions,
    key: &JobKey,
    (first_step, steps): (u64, u32),
    room: Option<usize>,
) -> Result<(RecordedTrial, TrialSamples), PfodError> {
    let before = find(questions, key).await?;
    let mut tap = Tap::open(pfod, key, room).await?;
    let ranks: Vec<_> = before.ranks.iter().map(|rank| rank.position.rank).collect();
    tap.begin(&ranks, first_step, steps).await;
    let in_time = tap.feed_until(limits_in_time(questions, key, first_step)).await?;
    tap.until_complete().await?;
    let recorded = tap.finish().await?;
    let job = find(questions, key).await?;
    check_unchanged(key, &before, &job)?;
    if !in_time {
        return Err(Limits::were_late(key).into());
    }
    let trial = windows(job, first_step, steps, &recorded);
    Ok(together(key, trial, recorded)?)
}

/// Whether the GPUs have the power limits of the job's plan, if it has any, before this step begins.
async fn limits_in_time(
    questions: &Questions,
    key: &JobKey,
    first_step: u64,
) -> Result<bool, PfodError> {
    let status = questions.status().await?;
    let limits = Limits::of_plan(&status, key);
    if limits.are_in_force(&status, key) {
        return Ok(true);
    }
    loop {
        if let Some(in_time) = limits.in_time(&questions.status().await?, key, first_step) {
            return Ok(in_time);
        }
        sleep(limits::LOOK_EVERY).await;
    }
}

async fn find(questions: &Questions, key: &JobKey) -> Result<JobView, PfodError> {
    let job = questions.job(key).await?;
    Ok(job.ok_or_else(|| disturbed(format!("{key} has no rank on this node")))?)
}

/// Checks that a job has the ranks that it had, and still follows its plan.
///
/// # Errors
/// If it does not.
pub(super) fn check_unchanged(
    key: &JobKey,
    before: &JobView,
    now: &JobView,
) -> Result<(), Refusal> {
    let sessions = |job: &JobView| job.ranks.iter().map(|rank| rank.session).collect::<Vec<_>>();
    if sessions(before) != sessions(now) {
        return Err(disturbed(format!("{key} lost or gained a rank during the trial")));
    }
    match now.plan.as_ref().and_then(|plan| plan.suspended.as_ref()) {
        Some(why) => Err(disturbed(format!("{key} had its plan suspended: {why}"))),
        None => Ok(()),
    }
}

/// What the steps took and used. Those of which a rank has no record take no time.
pub(super) fn windows(
    job: JobView,
    first_step: u64,
    steps: u32,
    recorded: &RecordedRanks,
) -> TrialResult {
    let whole = |rank: &RankView| match recorded.get(&rank.position.rank) {
        Some(Outcome::Recorded(of_rank)) if of_rank.steps.len() > steps as usize => Some(of_rank),
        _ => None,
    };
    let each: Option<Vec<&Recorded>> = job.ranks.iter().map(whole).collect();
    let each = each.unwrap_or_default();
    let ranks = job.ranks.iter().zip(&each).map(|(rank, of_rank)| rank_of(rank, of_rank));
    TrialResult {
        ranks: ranks.collect(),
        plan: job.plan,
        first_step,
        steps: (0..steps as usize).map(|step| step_of(&each, step)).collect(),
    }
}

/// From the last rank that begins a step to the last that begins the next one.
fn step_of(ranks: &[&Recorded], step: usize) -> TrialStep {
    let next = step.saturating_add(1);
    let begin_ns = |step: usize| ranks.iter().map(|rank| rank.steps[step].at_ns).max().unwrap_or(0);
    TrialStep {
        time_s: seconds(begin_ns(step), begin_ns(next)),
        energy_j: ranks.iter().map(|rank| used(&rank.steps[step], &rank.steps[next])).sum(),
    }
}

fn rank_of(view: &RankView, recorded: &Recorded) -> TrialRank {
    let last = recorded.steps.len().saturating_sub(1);
    let (from, until, steps) = (&recorded.steps[0], &recorded.steps[last], last as f64);
    let position = &view.position;
    TrialRank {
        rank: position.rank,
        stage: position.pp_rank,
        dp_rank: position.dp_rank,
        tp_rank: position.tp_rank,
        gpu_uuid: view.gpu_uuid.clone(),
        gpu_model: view.gpu_model.clone(),
        time_s: seconds(from.at_ns, until.at_ns) / steps,
        energy_j: used(from, until).map(|energy_j| energy_j / steps),
        mismatched_steps: recorded.mismatched_steps,
    }
}

fn seconds(from_ns: u64, until_ns: u64) -> f64 {
    until_ns.saturating_sub(from_ns) as f64 / 1e9
}

fn used(from: &StepMark, until: &StepMark) -> Option<f64> {
    Some(until.energy_j? - from.energy_j?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::tests::job as example_job;

    fn recorded(marks: &[(u64, f64)]) -> Outcome {
        let mark = |(step, (at_ns, energy_j)): (u64, &(u64, f64))| StepMark {
            step,
            at_ns: *at_ns,
            energy_j: Some(*energy_j),
        };
        Outcome::Recorded(Recorded {
            steps: (7..).zip(marks).map(mark).collect(),
            mismatched_steps: 1,
            ..Recorded::default()
        })
    }

    #[test]
    fn windows_are_from_the_last_rank_that_begins_a_step_to_the_last_that_begins_the_next() {
        let job = example_job(2);
        let ranks: Vec<_> = job.ranks.iter().map(|rank| rank.position.rank).collect();
        let first = recorded(&[(1_000_000_000, 5.0), (3_000_000_000, 25.0), (4_000_000_000, 30.0)]);
        let second = recorded(&[(2_000_000_000, 1.0), (2_500_000_000, 4.0), (5_000_000_000, 5.0)]);
        let both = RecordedRanks::from([(ranks[0], first), (ranks[1], second)]);
        let trial = windows(job.clone(), 7, 2, &both);
        let step = |time_s, energy_j| TrialStep { time_s, energy_j: Some(energy_j) };
        assert_eq!(trial.steps, [step(1.0, 23.0), step(2.0, 6.0)]);
        assert_eq!((trial.ranks[0].time_s, trial.ranks[0].energy_j), (1.5, Some(12.5)));
        assert_eq!((trial.ranks[1].rank, trial.ranks[1].mismatched_steps), (ranks[1], 1));
        let longer = windows(job, 7, 3, &both);
        assert_eq!((longer.steps.len(), longer.ranks.len()), (3, 0), "which `together` refuses");
    }
}
