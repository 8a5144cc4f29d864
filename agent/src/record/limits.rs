//! Whether the GPUs of a job have the power limits of what a trial runs: `pfod` writes each to its
//! ledger before it sets it, which takes as long as the disk does.

use std::time::Duration;

use pfo_protocol::{RankStatus, Refusal, RefusalCode, Status, TrialRun};

use crate::job::JobKey;
use crate::record::trial::disturbed;

/// How often to look whether they are in force.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long to wait until they are.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The power limits of a trial in watts, by stage.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Those of what the job ran before.
    before: Vec<u32>,
    /// Those that it is to have; without any, it is to have none of `before`.
    wanted: Vec<u32>,
}

impl Limits {
    /// Those of a trial of a job that runs what this status shows.
    pub(super) fn of(run: &TrialRun, status: &Status, key: &JobKey) -> Self {
        let wanted = match run {
            TrialRun::PowerLimits { limits_w, .. } => limits_w.clone(),
            _ => Vec::new(),
        };
        Self { before: limits_of_plan(status, key), wanted }
    }

    /// Those of the plan of a job, which may not have begun it.
    pub(super) fn of_plan(status: &Status, key: &JobKey) -> Self {
        Self { before: Vec::new(), wanted: limits_of_plan(status, key) }
    }

    /// The first rank whose GPU has another limit. The agent may keep it below one that is wanted.
    fn late<'a>(&self, status: &'a Status, key: &JobKey) -> Option<&'a RankStatus> {
        let ranks = key.status_in(&status.jobs).into_iter().flat_map(|job| &job.ranks);
        let is_late = |rank: &&RankStatus| {
            let gpu = status.gpus.iter().find(|gpu| gpu.uuid == rank.gpu_uuid);
            let limit_w = gpu.and_then(|gpu| gpu.power_limit_w);
            let of = |limits: &[u32]| limits.get(usize::from(rank.stage.0)).copied();
            match of(&self.wanted) {
                Some(wanted_w) => limit_w.is_none_or(|limit_w| limit_w > wanted_w),
                None => limit_w.is_some() && limit_w == of(&self.before),
            }
        };
        ranks.filter(is_late).min_by_key(|rank| rank.rank)
    }

    /// That a limit holds the job which nothing that it runs or ran asks for: a power budget's. What it would take and
    /// draw without it is not measured then.
    pub(super) fn of_budget(&self, status: &Status, key: &JobKey) -> Option<Refusal> {
        let of_rank = |rank: &RankStatus| {
            let gpu = status.gpus.iter().find(|gpu| gpu.uuid == rank.gpu_uuid)?;
            let limit_w = gpu.power_limit_w?;
            let is_its_own =
                |limits: &[u32]| limits.get(usize::from(rank.stage.0)) == Some(&limit_w);
            let asks = !self.wanted.is_empty() || is_its_own(&self.before);
            (!asks).then(|| {
                let (rank, index) = (rank.rank, gpu.index);
                let message = format!(
                    "a power budget holds rank {rank} of {key} (GPU {index}) at {limit_w} W: what it takes without \
                     that cannot be measured"
                );
                let remedy = "raise the budget while you measure, or wait until it has room: `pfoctl budget status`";
                Refusal::new(RefusalCode::NoPlan, message, remedy)
            })
        };
        key.status_in(&status.jobs)?.ranks.iter().find_map(of_rank)
    }

    pub(super) fn are_in_force(&self, status: &Status, key: &JobKey) -> bool {
        self.late(status, key).is_none()
    }

    /// Whether they came into force before a step that is measured; none if neither has happened yet. A
    /// status shows its GPUs as they were before its ranks: what it has in force was so before a step
    /// that it does not have begun.
    pub(super) fn in_time(&self, status: &Status, key: &JobKey, first_step: u64) -> Option<bool> {
        let mut ranks = key.status_in(&status.jobs).into_iter().flat_map(|job| &job.ranks);
        let has_begun = ranks.any(|rank| rank.step >= Some(first_step));
        (has_begun || self.are_in_force(status, key)).then_some(!has_begun)
    }

    /// That a rank's limit was late for the steps that were measured.
    pub(super) fn were_late(key: &JobKey) -> Refusal {
        disturbed(format!("the power limits of {key} came into force during its measured steps"))
    }

    /// That a rank's limit is not in force after [`PATIENCE`].
    pub(super) fn stay_away(&self, status: &Status, key: &JobKey) -> Refusal {
        let rank = self.late(status, key).map_or_else(String::new, |rank| {
            format!(" of rank {} (GPU {})", rank.rank, rank.gpu_uuid)
        });
        let message =
            format!("the power limit{rank} is not in force after {} s", PATIENCE.as_secs());
        let remedy = "`pfoctl doctor` checks the driver and the ledger's disk";
        Refusal::new(RefusalCode::NotInForce, message, remedy)
    }
}

fn limits_of_plan(status: &Status, key: &JobKey) -> Vec<u32> {
    let plan = key.status_in(&status.jobs).and_then(|job| job.plan.as_ref());
    plan.map(|plan| plan.power_limits_w.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_neither_the_trial_nor_the_plan_before_it_has_is_a_budgets() {
        let text = include_str!("../../../ctl/tests/golden/status.json");
        let mut status: Status = serde_json::from_str(text).unwrap();
        let job = status.jobs.iter().find(|job| !job.ranks.is_empty()).unwrap();
        let key = JobKey { uid: job.uid, name: job.job.clone() };
        let stages = job.ranks.len();
        let limits = |before: &[u32], wanted: &[u32]| {
            let all = |limits: &[u32]| limits.iter().flat_map(|w| vec![*w; stages]).collect();
            Limits { before: all(before), wanted: all(wanted) }
        };
        let mut set = |limit_w| {
            status.gpus.iter_mut().for_each(|gpu| gpu.power_limit_w = limit_w);
            status.clone()
        };
        let (free, held) = (set(None), set(Some(199)));
        assert_eq!(limits(&[], &[]).of_budget(&free, &key), None);
        let refusal = limits(&[], &[]).of_budget(&held, &key).unwrap();
        assert!(refusal.message.contains("at 199 W: what it takes without"), "{refusal}");
        assert_eq!(limits(&[199], &[]).of_budget(&held, &key), None);
        assert_eq!(limits(&[], &[250]).of_budget(&held, &key), None);
    }
}
