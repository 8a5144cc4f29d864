//! Upper limits of what is planned, read and written. A small file can claim to be huge.

pub(crate) const STAGES: u16 = 1024;
pub(crate) const MICROBATCHES: u32 = 1 << 16;

/// What a GPU draws while it waits, in watts; `pfoctl --p2p-power` takes as much.
pub(crate) const WAITING_W: f64 = 10_000.0;

pub(crate) const GPU_NAME_BYTES: usize = 128;

/// Operations of a step. A plan of more could not be read back.
pub(crate) const OPERATIONS: usize = 1 << 20;

/// Instructions that the dependencies of a step name in total.
pub(crate) const DEPENDENCIES: usize = 1 << 20;

/// Rows of one instruction's table: a frontier keeps the number of a row in one byte.
pub(crate) const TABLE_ROWS: usize = 256;

/// Plans of a frontier.
pub(crate) const PLANS: usize = 100_000;

/// Model chunks and microbatches with tables of their own, over all stages; all tables have a number
/// of 16 bits.
pub(crate) const PARTS: usize = 2048;

/// A step of more operations than this is long: its plans are rounded at fewer deadlines, filled in
/// fewer passes and composed in fewer ways. That takes half of the time, and costs less than 0.01 % of
/// the energy.
pub(crate) const LONG_STEP: usize = 1_000;

/// The same again, for half of the time that is left; what the fewer plans save goes into redistributing
/// each, so that no energy is lost.
pub(crate) const VERY_LONG_STEP: usize = 3_000;

/// A step of at most this many operations is short: a plan for one deadline is improved by exchanges,
/// for which the relaxation is solved again. For a longer one that takes longer than all else.
pub(crate) const SHORT_STEP: usize = 512;
