//! One job that runs a plan, from one look to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pfo_planner::Conditions;
use pfo_protocol::{DriftStatus, GpuUuid, JobView, Rank, RankView};

use crate::job::JobKey;
use crate::straggler::SlowStages;
use crate::watch::conditions::RecentTimes;
use crate::watch::deviation::Limit;
use crate::watch::drift::{Drift, Look, Predicted};
use crate::watch::rank_reading::{RankReading, whole_pipelines};
use crate::watch::reference::Reference;
use crate::watch::report;
use crate::watch::slow_ranks::SlowRanks;
use crate::watch::stage_times::StageTimes;
use crate::watch::tapped_times::{TappedTimes, Taps, Times};

/// How far is too far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For the time of a rank's instructions.
    pub(crate) slow: Limit,
    /// For the time and energy of steps.
    pub(crate) drift: Limit,
}

/// What was seen of a job, for status.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The slow ranks, each with the share by which its instructions take longer.
    pub(crate) slow: BTreeMap<Rank, f64>,
    /// How far what is measured is from the prediction, if it is too far.
    pub(crate) drift: Option<DriftStatus>,
}

/// A job that is watched.
#[derive(Debug, Default)]
pub(super) struct Watched {
    slow: Option<SlowRanks>,
    drift: Drift,
    seen: Seen,
    tap: Option<TappedTimes>,
    recent: RecentTimes,
    /// The stages that were faster than profiled when a drift was seen, and the swap then.
    fast: (SlowStages, u64),
    /// What the profiled times are from, and these.
    times: Option<(Reference, Times)>,
    /// How the job runs beside that.
    conditions: Conditions,
}

/// Whether a job runs a plan, and not only to be measured.
pub(super) fn is_watched(job: &JobView) -> bool {
    let runs_plan = job.plan.as_ref().is_some_and(|plan| plan.suspended.is_none());
    runs_plan && job.measured_by.is_none() && !job.ranks.is_empty()
}

impl Watched {
    /// Compares a job with the last look. Power limits hold some GPUs now.
    pub(super) fn look(
        &mut self,
        taps: &Taps,
        job: &JobView,
        (reference, answered): (Option<&Reference>, &SlowStages),
        (limits, limited): (Limits, &BTreeSet<GpuUuid>),
    ) {
        self.follow_times(taps, job, reference);
        let readings: Vec<_> = job
            .ranks
            .iter()
            .filter_map(|rank| {
                let times = self.tap.as_ref().map(|tap| tap.of(rank.position.rank, rank.session));
                RankReading::of(rank, times.unwrap_or_default())
            })
            .collect();
        let slow = self.slow.get_or_insert_with(|| SlowRanks::again(&readings, answered));
        let limited = |rank: &&RankView| limited.contains(&rank.gpu_uuid);
        for rank in job.ranks.iter().filter(limited) {
            slow.note_limit(rank.position.rank);
        }
        for (rank, turn) in slow.look(&readings, limits.slow) {
            report::slow_rank(job, rank, turn);
        }
        self.seen.slow = slow.ranks();
        self.note_conditions(job, &readings, (reference, answered), limits);
        // That of another plan is none of this one.
        let plan = job.plan.as_ref().map(|plan| plan.number);
        self.seen.drift.take_if(|drift| Some(drift.plan) != plan);
        let look = predicted(job)
            .map_or(Look::Near, |predicted| self.drift.look(&readings, predicted, limits.drift));
        match look {
            Look::TooSoon => {}
            Look::Near => self.seen.drift = None,
            Look::Far(drift) => {
                if self.seen.drift.is_none() {
                    report::drift(job, &drift);
                    self.fast = (self.recent.faster_stages(limits.drift.share), job.swap);
                }
                self.seen.drift = Some(drift);
            }
        }
    }

    /// Notes how the job runs beside its profile.
    fn note_conditions(
        &mut self,
        job: &JobView,
        readings: &[RankReading],
        (reference, answered): (Option<&Reference>, &SlowStages),
        limits: Limits,
    ) {
        let Some((reference, tap)) = reference.zip(self.tap.as_ref()) else { return };
        let of = |rank| {
            self.slow.as_ref().map_or(limits.slow.steps, |slow| slow.steps_of(rank, limits.slow))
        };
        self.recent.look(readings, of, |reading| tap.by_clock(reading.rank, reading.session));
        self.conditions = self.recent.conditions(reference.profile());
        reference.note(self.conditions.clone());
        if self.fast.1 != job.swap && answered.is_empty() {
            self.fast = (SlowStages::new(), job.swap);
        }
    }

    /// Whether the last steps of a rank say that it may be slow, or slow otherwise than is known.
    pub(super) fn may_turn(&self) -> bool {
        self.slow.as_ref().is_some_and(SlowRanks::may_turn)
    }

    /// Whether there are slow ranks on this node, and power limits hold all of them.
    pub(super) fn are_limited(&self) -> bool {
        self.slow.as_ref().is_some_and(SlowRanks::are_limited)
    }

    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Taps the job's ranks where a profile says what their instructions should take.
    fn follow_times(&mut self, taps: &Taps, job: &JobView, reference: Option<&Reference>) {
        let Some(reference) = reference else {
            (self.tap, self.times) = (None, None);
            return;
        };
        let is_known = self.times.as_ref().is_some_and(|(known, _)| known.is(reference));
        if !is_known {
            let times = Arc::new(StageTimes::of(reference.profile()));
            self.times = Some((reference.clone(), times));
        }
        let Some((_, times)) = &self.times else { return };
        if !self.tap.as_ref().is_some_and(|tap| tap.is_of(job, times)) {
            let selector = JobKey::of(job).selector();
            self.tap = Some(TappedTimes::open(taps, selector, job, times));
            self.recent = RecentTimes::default();
        }
    }

    /// The stages on this node that do not run as they were profiled.
    pub(super) fn stages(&self) -> SlowStages {
        let slow = self.slow.as_ref().map(SlowRanks::stages).unwrap_or_default();
        self.fast.0.iter().map(|(stage, share)| (*stage, *share)).chain(slow).collect()
    }

    /// How their instructions run beside the profile.
    pub(super) fn conditions(&self) -> &Conditions {
        &self.conditions
    }
}

/// What the plan that a job runs predicts, if it predicts anything.
pub(crate) fn predicted(job: &JobView) -> Option<Predicted> {
    let plan = job.plan.as_ref()?;
    let (time_s, energy_j) = plan.predicted_time_s.zip(plan.predicted_energy_j)?;
    let energy_j = whole_pipelines(job).map(|pipelines| pipelines * energy_j);
    Some(Predicted { plan: plan.number, time_s, energy_j })
}
