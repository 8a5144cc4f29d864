//! The sweeps that the former agent left on disk.

/// The target.
pub fn sweep(bytes: &[u8]) {
    let _ = pfo_agent::fuzzing::sweep(bytes);
}
