//! The definition of a pipeline besides its profile, schedule and number of microbatches.

use pfo_vocabulary::Instruction;

use crate::schedule::name::Schedule;
use crate::step::delays::Delays;

/// Settings of a [`crate::Pipeline`].
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// For schedule `envpipe`: the number of activations that a stage can keep beyond those of
    /// 1F1B. Empty for no limit, one number for all stages, or one for each.
    pub memory_limits: Vec<u32>,
    /// For schedules `interleaved-1f1b`, `interleaved-zero-bubble` and `looped-bfs`: the number of
    /// model chunks of a stage.
    pub chunks: u16,
    /// For schedule `interleaved-1f1b`: how many microbatches go through a chunk before the next one
    /// begins, Megatron's `microbatch_group_size_per_vp_stage`. Without it, as many as PyTorch takes:
    /// of `M` microbatches on `N` stages `M / max(1, M / N)`, which is `N` for every multiple of it.
    pub microbatch_group: Option<u32>,
    /// For schedule `interleaved-1f1b`: whether each stage runs one more forward ahead, as Megatron
    /// does with `overlap_moe_expert_parallel_comm`.
    pub extra_warm_up: bool,
    /// Delays between instructions and between clocks.
    pub delays: Delays,
    /// Instructions whose time does not depend on the clock and that ranks report in addition to
    /// those of the schedule. A load is put before each forward, on the last stage once the
    /// forward's input has come; any other at the end of the step. Only the stages for which the
    /// profile has rows run them.
    pub fixed: Vec<Instruction>,
}

impl Settings {
    /// The schedules that depend on [`Settings::chunks`].
    pub const OF_CHUNKS: &'static [Schedule] =
        &[Schedule::Interleaved, Schedule::InterleavedZeroBubble, Schedule::LoopedBfs];

    /// The schedules that depend on [`Settings::microbatch_group`] or [`Settings::extra_warm_up`].
    pub const OF_MICROBATCH_GROUP: &'static [Schedule] = &[Schedule::Interleaved];

    /// The schedules that depend on [`Settings::memory_limits`].
    pub const OF_MEMORY_LIMITS: &'static [Schedule] = &[Schedule::EnvPipe];
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory_limits: Vec::new(),
            chunks: 2,
            microbatch_group: None,
            extra_warm_up: false,
            delays: Delays::default(),
            fixed: Vec::new(),
        }
    }
}
