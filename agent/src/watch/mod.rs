//! Watching jobs that run plans.

mod deviation;
mod drift;
mod own_times;
mod rank_reading;
mod slow_ranks;
mod stage_times;
