//! Watching jobs that run plans: which ranks are slow by themselves, how far what is measured has
//! moved from the prediction, and the answer to slow stages where that was asked for.

mod answering;
mod conditions;
mod deviation;
mod drift;
mod duties;
mod own_times;
mod rank_reading;
mod reference;
mod replica_times;
mod report;
mod slow_ranks;
mod stage_times;
mod tapped_times;
mod watched;
mod watcher;

pub(crate) use deviation::Limit;
pub(crate) use stage_times::StageTimes;
pub(crate) use tapped_times::Taps;
pub(crate) use watched::Limits;
pub(crate) use watcher::Watcher;
#[cfg(feature = "fuzzing")]
pub(crate) use {
    conditions::RecentTimes,
    drift::Drift,
    rank_reading::RankReading,
    slow_ranks::SlowRanks,
    tapped_times::{Followed, Tapped},
    watched::predicted,
};
