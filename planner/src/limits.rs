//! The most that is planned for, read or written: a small file can claim to be huge.

pub(crate) const STAGES: u16 = 1024;
pub(crate) const MICROBATCHES: u32 = 1 << 16;
pub(crate) const GPU_NAME_BYTES: usize = 128;

/// Operations of a step; plans of more would not be read back.
pub(crate) const OPERATIONS: usize = 1 << 20;

/// Instructions that all dependencies of a step together may name.
pub(crate) const DEPENDENCIES: usize = 1 << 20;

/// Rows of one instruction's table in a frontier, which keeps a byte for each.
pub(crate) const TABLE_ROWS: usize = 256;

/// Plans of a frontier.
pub(crate) const PLANS: usize = 100_000;
