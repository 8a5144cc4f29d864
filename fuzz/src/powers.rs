//! The P2P-blocking powers that the agent keeps on disk.

/// The target.
pub fn powers(bytes: &[u8]) {
    let _ = pfo_agent::fuzzing::powers(bytes);
}
