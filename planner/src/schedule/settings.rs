//! What a pipeline is like beside its profile, its schedule and its number of microbatches.

use pfo_vocabulary::Instruction;

use crate::step::delays::Delays;

/// Settings of a [`crate::Pipeline`].
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// For schedule `envpipe`: how many more activations than in 1F1B a stage can keep. Empty for
    /// no limit, one number for all stages, or one for each.
    pub memory_limits: Vec<u32>,
    /// For schedule `interleaved-1f1b`: the model chunks of a stage.
    pub chunks: u16,
    /// What passes between instructions and between clocks.
    pub delays: Delays,
    /// Instructions whose time does not depend on the clock and that ranks announce beside those
    /// of the schedule: a load goes ahead of each forward, others to the end of the step. They run
    /// on the stages that the profile has them for.
    pub fixed: Vec<Instruction>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { memory_limits: Vec::new(), chunks: 2, delays: Delays::default(), fixed: Vec::new() }
    }
}
