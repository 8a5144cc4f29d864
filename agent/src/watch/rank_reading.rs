//! One rank at one moment, as the watch compares it with an earlier one.

use std::collections::BTreeMap;

use pfo_protocol::{JobView, Rank, RankView, RankWindow, SessionId, Stage};

use crate::watch::own_times::OwnTimes;

/// One rank at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankReading {
    pub(crate) rank: Rank,
    pub(crate) stage: Stage,
    pub(crate) session: SessionId,
    /// The swap that it has taken up.
    pub(crate) swap: u64,
    /// The step that it has begun.
    pub(crate) step: u64,
    /// What its instructions took and should have taken so far.
    pub(crate) own_times: OwnTimes,
    /// What was measured under this swap.
    pub(crate) window: Option<RankWindow>,
}

impl RankReading {
    /// Reads a rank that has begun a step.
    pub(crate) fn of(rank: &RankView, own_times: OwnTimes) -> Option<Self> {
        Some(Self {
            rank: rank.position.rank,
            stage: rank.position.pp_rank,
            session: rank.session,
            swap: rank.swap,
            step: rank.step?,
            own_times,
            window: rank.window.filter(|window| window.steps > 0),
        })
    }
}

/// How many whole pipelines there are on this node, if there are only whole ones.
pub(crate) fn whole_pipelines(job: &JobView) -> Option<f64> {
    let mut ranks: BTreeMap<Stage, u32> = BTreeMap::new();
    for rank in &job.ranks {
        let count = ranks.entry(rank.position.pp_rank).or_default();
        *count = count.saturating_add(1);
    }
    let first = *ranks.values().next()?;
    let whole =
        ranks.len() == job.pp_degree as usize && ranks.values().all(|count| *count == first);
    whole.then_some(f64::from(first))
}
