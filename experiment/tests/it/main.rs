//! Experiments on a job that is played, in tokio's paused time.

mod disturbed;
mod one_stage;
mod played;
mod tune;
#[allow(dead_code)]
mod world;
