//! What whoever watches a job reads of a rank, without a lock on it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use crate::job::{Member, Members};
use crate::measure::RankWindow;
use crate::own_times::OwnTimes;

/// One rank at one moment.
#[derive(Clone, Copy, Debug)]
pub struct RankReading {
    /// The rank.
    pub rank: u32,
    /// Its stage.
    pub stage: u32,
    /// Its session.
    pub session: u64,
    /// The swap that it has taken up.
    pub swap: u64,
    /// The step that it has begun.
    pub step: u64,
    /// What its instructions took and should have taken so far.
    pub own_times: OwnTimes,
    /// What was measured under this swap.
    pub window: Option<RankWindow>,
}

impl RankReading {
    /// Reads a rank that has begun a step.
    #[must_use]
    pub fn of(member: &Member) -> Option<Self> {
        let progress = &member.session.progress;
        let swap = progress.swap.load(Relaxed);
        let measured = progress.measured.load();
        Some(Self {
            rank: member.hello.position.rank,
            stage: member.hello.position.pp_rank,
            session: member.session.holder.session,
            swap,
            step: progress.step()?,
            own_times: progress.own_times.load(),
            window: measured.windows.measured().find(|window| window.swap == swap),
        })
    }
}

/// How many whole pipelines there are on this node, if there are only whole ones.
#[must_use]
pub fn whole_pipelines(members: &Members, stages: u32) -> Option<f64> {
    let mut ranks: BTreeMap<u32, u32> = BTreeMap::new();
    for member in members.ranks.values() {
        *ranks.entry(member.hello.position.pp_rank).or_default() += 1;
    }
    let first = *ranks.values().next()?;
    let whole = ranks.len() == stages as usize && ranks.values().all(|count| *count == first);
    whole.then_some(f64::from(first))
}
