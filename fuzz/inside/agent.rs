//! What the agent makes of a job, from the records of its ranks and the frontier of its user.

use std::collections::BTreeMap;

use pfo_planner::{Profile, Straggler};
use pfo_protocol::{
    JobView, Rank, RecordedTrial, SessionId, SweepSettings, SweepState, TapBatch, TappedRank,
    TrialResult, Uid,
};

use crate::job::JobKey;
use crate::p2p::Samples;
use crate::record::{Recording, together};
use crate::steer::alone;
use crate::straggler::JobFrontier;
use crate::sweep::{JobShape, SweepRecord, allowed_clocks, ladder};
use crate::watch::{
    Drift, Followed, Limit, RankReading, RecentTimes, SlowRanks, StageTimes, Tapped, predicted,
};

/// Memory for a frontier, in bytes.
const MOST_BYTES: usize = 4 << 20;

const LIMIT: Limit = Limit { share: 0.05, steps: 2 };

const USER: Uid = Uid(7);

/// A job that runs a plan of a frontier.
pub struct Watch {
    frontier: JobFrontier,
    times: Vec<StageTimes>,
    followed: BTreeMap<Rank, Followed>,
    sums: BTreeMap<(Rank, SessionId), Tapped>,
    recent: RecentTimes,
    slow: SlowRanks,
    drift: Drift,
}

impl Watch {
    /// Begins with the bytes of a frontier; none if they are none.
    #[must_use]
    pub fn of(frontier: &[u8], ranks: &[TappedRank]) -> Option<Self> {
        let frontier = JobFrontier::read("fuzz".into(), frontier, MOST_BYTES).ok()?;
        Some(Self {
            times: StageTimes::of(frontier.profile()),
            frontier,
            followed: ranks.iter().map(|rank| (rank.rank, Followed::new(rank))).collect(),
            sums: BTreeMap::new(),
            recent: RecentTimes::default(),
            slow: SlowRanks::default(),
            drift: Drift::default(),
        })
    }

    /// Takes what a tap sent, looks at the job, and answers a straggler of this factor and the
    /// stages that are slow.
    ///
    /// # Panics
    /// If a plan is none of the frontier's stages, or of no straggler.
    pub fn look(&mut self, job: &JobView, batches: &[TapBatch], factor: f64) {
        batches.iter().for_each(|batch| self.take(job, batch));
        let sums = |rank: Rank, session| self.sums.get(&(rank, session));
        let readings: Vec<_> = job
            .ranks
            .iter()
            .filter_map(|rank| {
                let sums = sums(rank.position.rank, rank.session);
                RankReading::of(rank, sums.map(|sum| sum.times).unwrap_or_default())
            })
            .collect();
        self.recent.look(
            &readings,
            |_| LIMIT.steps,
            |reading| {
                let sums = sums(reading.rank, reading.session);
                sums.map(|sum| sum.clocks.clone()).unwrap_or_default()
            },
        );
        let conditions = self.recent.conditions(self.frontier.profile());
        let _ = self.slow.look(&readings, LIMIT);
        if let Some(predicted) = predicted(job) {
            let _ = self.drift.look(&readings, predicted, LIMIT);
        }
        let _ = (self.frontier.check(job), self.frontier.status());
        let Ok(straggler) = Straggler::new(factor) else { return };
        let Ok(own) = self.frontier.plan_for(straggler) else { return };
        let stages = self.frontier.stages();
        assert_eq!(own.table.stages().len() as u32, stages, "{own:?}");
        let slow = self.slow.stages();
        let corrected = self.frontier.corrected(&own.table, [factor, 0.01], &conditions);
        let made = [self.frontier.plan_for_now(straggler, &conditions), corrected];
        for made in made.into_iter().flatten() {
            assert_eq!(made.plan.table.stages().len() as u32, stages, "{made:?}");
        }
        let answer = self.frontier.plan_for_slow_now(&own.table, &slow, &conditions);
        if let Ok(Some((straggler, made))) = answer {
            assert_eq!(made.plan.table.stages().len() as u32, stages, "{made:?}");
            assert!(straggler.factor().is_finite() && straggler.factor() >= 1.0, "{straggler}");
        }
    }

    fn take(&mut self, job: &JobView, batch: &TapBatch) {
        let view = job.ranks.iter().find(|rank| rank.position.rank == batch.rank);
        let Some((view, followed)) = view.zip(self.followed.get_mut(&batch.rank)) else { return };
        let Some(times) = self.times.get(view.position.pp_rank.index()) else { return };
        let sum = self.sums.entry((batch.rank, view.session)).or_default();
        batch.records.iter().for_each(|record| followed.take(record, times, sum));
    }
}

/// A sweep of a job, whose trials `measure` returns with what the tap sent meanwhile.
///
/// # Panics
/// If a power or a row is not a figure.
pub fn sweep_of(
    job: &JobView,
    ranks: &[TappedRank],
    settings: SweepSettings,
    trials: impl Iterator<Item = (TrialResult, Vec<TapBatch>)>,
) {
    let Some(shape) = JobShape::of(job, &alone(job)) else { return };
    let allowed = allowed_clocks(job);
    let clocks = ladder(&allowed, settings.stride_mhz, settings.min_mhz);
    let (key, model) = (JobKey::of(job), job.job.clone());
    let record = SweepRecord::new(key.clone(), USER, model, settings, shape, clocks);
    let mut record = record.among(allowed);
    let mut samples = Samples::default();
    for (trial, batches) in trials {
        let mut recording = Recording::of(ranks.to_vec(), Some(64));
        for batch in batches {
            recording.take(batch);
            let _ = recording.progress();
        }
        let Ok((recorded, _)) = together(&key, trial, recording.finish()) else { continue };
        assert_figures(&recorded);
        samples.add(None, &recorded);
        if record.take(&recorded).is_err() {
            break;
        }
        let _ = (record.status(SweepState::Running), record.length());
    }
    let _ = (record.profile(), Profile::from_csv(record.csv().as_bytes()));
    for power in samples.powers(USER, u64::MAX) {
        let is_known = power.power_w > 0.0 && power.power_w < 1e6 && power.error_w >= 0.0;
        assert!(is_known && power.error_w.is_finite(), "{power:?}");
    }
}

fn assert_figures(trial: &RecordedTrial) {
    for row in trial.ranks.iter().flat_map(|rank| &rank.rows) {
        assert!(row.time_mean_s.is_finite() && row.time_mean_s >= 0.0, "{row:?}");
    }
}
